"""Automata over the tokens of a vocabulary.

outlines-core makes the automaton of a regex over single bytes. Here every token is walked through it, all tokens of a
vocabulary at once by their common beginnings. Tokens that no state can tell apart become one class, and pairs of states
that the same classes lead between share one set of classes. Sums over 10^5 tokens thereby become sums over some hundred
classes, once per column.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoders.constraints.patterns import Constraint, Regular, outlines
from dllm.protocols import DenoisingLM
from dllm.validation import shown

FAR = 2**30  # tokens that no answer takes
FORM = "1"  # of the files; changes with what they mean
AT_ONCE = 2**20  # table entries of a walk


@dataclass(frozen=True)
class Vocabulary:
    """The tokens that may spell an answer.

    size: ids of the model. tokens: the bytes of each id that stands for text. eos_ids: ids that end an answer.
    """

    size: int
    tokens: Mapping[int, bytes]
    eos_ids: tuple[int, ...]

    def __hash__(self) -> int:
        return hash(self.digest)

    @cached_property
    def digest(self) -> str:
        digest = hashlib.sha256(repr((self.size, self.eos_ids)).encode())
        for token, text in sorted(self.tokens.items()):
            digest.update(b"%d %d " % (token, len(text)) + text)
        return digest.hexdigest()

    @cached_property
    def trie(self) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray, np.ndarray]:
        """Per length of a beginning, the node of each one's own beginning among those one shorter, and its last byte.
        Then the ids, and the node of each among all, the empty one first."""
        number, levels = {b"": 0}, list[tuple[np.ndarray, np.ndarray]]()
        width = max(map(len, self.tokens.values()), default=0)
        place = {b"": 0}
        for length in range(1, width + 1):
            found = sorted({text[:length] for text in self.tokens.values() if len(text) >= length})
            parents = np.array([place[text[:-1]] for text in found])
            levels.append((parents, np.array([text[-1] for text in found])))
            place = {text: i for i, text in enumerate(found)}
            before = len(number)
            number |= {text: before + i for text, i in place.items()}
        ids = np.array(sorted(self.tokens), dtype=np.int64)
        return levels, ids, np.array([number[self.tokens[token]] for token in ids.tolist()], dtype=np.int64)

    def walk(self, table: np.ndarray, states: np.ndarray) -> np.ndarray:
        """Where each token leads from each of these states of a table of bytes `[S, 256]`, `[len(states), ids]`."""
        levels, _, at = self.trie
        reached = [states[:, None]]
        for parents, last in levels:
            reached.append(table[reached[-1][:, parents], last])
        return np.concatenate(reached, 1)[:, at]


@dataclass(frozen=True)
class TokenAutomaton:
    """A deterministic automaton over V tokens with S states, of which every one leads to acceptance.

    The last state is the end: EOS leads there from every accepting state, and nothing but EOS leads on from it. Class 0
    holds the tokens that lead nowhere, the last class the EOS.

    class_of: the class of each token. member: which of the C classes are in each of the G sets. source, target, of_set:
    pairs of states, and the set of classes that lead from one to the other. least: tokens that an answer takes from
    each state at least, not counting EOS. start: the first state.
    """

    class_of: Int[Tensor, " V"]
    member: Bool[Tensor, "G C"]
    source: Int[Tensor, " P"]
    target: Int[Tensor, " P"]
    of_set: Int[Tensor, " P"]
    least: Int[Tensor, " S"]
    start: int

    @property
    def num_states(self) -> int:
        return len(self.least)

    @property
    def end(self) -> int:
        return len(self.least) - 1

    @property
    def least_tokens(self) -> int:
        """Tokens of the shortest answer, without EOS."""
        return int(self.least[self.start])

    @property
    def accepting(self) -> Bool[Tensor, " S"]:
        return self.least == 0

    @cached_property
    def table(self) -> Int[Tensor, "S C"]:
        """Where each class leads from each state, -1 for nowhere."""
        table = torch.full((self.num_states, self.member.shape[1]), -1)
        for source, target, of_set in zip(*(t.tolist() for t in (self.source, self.target, self.of_set)), strict=True):
            table[source, self.member[of_set]] = target
        return table

    def accepts(self, tokens: Sequence[int]) -> bool:
        """Whether these tokens are a whole answer, with EOS after it or without."""
        state = self.start
        for token in tokens:
            state = int(self.table[state, self.class_of[token]])
            if state < 0:
                return False
        return bool(self.accepting[state])

    @classmethod
    def of_table(
        cls, leads: Int[np.ndarray, "S V"], accepting: Bool[np.ndarray, " S"], start: int, eos_ids: Sequence[int]
    ) -> "TokenAutomaton | None":
        """The automaton of a table: where each token leads from each state, -1 for nowhere; columns of EOS are not
        read. None where it accepts nothing."""
        leads = np.array(leads)
        leads[:, list(eos_ids)] = -1
        _, token, class_of = np.unique(leads, axis=1, return_index=True, return_inverse=True)
        return _assembled(leads[:, token], class_of.ravel(), accepting, start, eos_ids)

    @classmethod
    def of_regex(cls, pattern: str, vocabulary: Vocabulary) -> "TokenAutomaton | None":
        """Raises ValueError for what is no regex. None for one that no tokens of the vocabulary match."""
        table, accepting = _byte_table(pattern)
        if table is None:
            return None
        ids = vocabulary.trie[1]
        number, order, head = {0: 0}, [0], 0  # states at which a token may end, as they are found
        rng = np.random.default_rng(0)
        mixed = np.zeros(len(ids), dtype=np.uint64)  # a random hash of each token's column: two of 64 bits are equal
        many = max(1, AT_ONCE // (sum(len(last) for _, last in vocabulary.trie[0]) + 1))
        while head < len(order):
            states = np.array(order[head : head + many])
            head += len(states)
            for leads in vocabulary.walk(table, states):
                values = rng.integers(0, 2**63, size=len(table), dtype=np.uint64)
                values[-1] = 0
                mixed += values[leads]
                for state in np.flatnonzero(np.bincount(leads)).tolist():
                    if state != len(table) - 1 and state not in number:
                        number[state] = len(order)
                        order.append(state)
        _, token, of_ids = np.unique(mixed, return_index=True, return_inverse=True)
        renumber = np.full(len(table), -1)
        renumber[order] = np.arange(len(order))
        some = Vocabulary(len(token), {i: vocabulary.tokens[int(ids[at])] for i, at in enumerate(token)}, ())
        leads = np.concatenate(
            [renumber[some.walk(table, np.array(order[at : at + many]))] for at in range(0, len(order), many)]
        )
        nowhere = len(token)  # the class of what spells nothing
        class_of = np.full(vocabulary.size, nowhere)
        class_of[ids] = of_ids.ravel()
        leads = np.concatenate([leads, np.full((len(leads), 1), -1)], 1)
        return _assembled(leads, class_of, accepting[order], 0, vocabulary.eos_ids)

    def save(self, file: Path) -> None:
        tensors = {f.name: vars(self)[f.name] for f in fields(self) if f.name != "start"}
        file.parent.mkdir(parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        save_file({**tensors, "start": torch.tensor(self.start)}, part)
        part.replace(file)

    @classmethod
    def load(cls, file: Path) -> "TokenAutomaton":
        tensors = load_file(file)
        return cls(**{**tensors, "start": int(tensors["start"])})


def _assembled(
    leads: np.ndarray, class_of: np.ndarray, accepting: np.ndarray, start: int, eos_ids: Sequence[int]
) -> TokenAutomaton | None:
    """The automaton of where each class leads from each state, without what does not lead to acceptance."""
    least = np.where(accepting, 0, FAR)
    while True:
        shorter = np.minimum(least, np.where(leads < 0, FAR, least[leads]).min(1, initial=FAR) + 1)
        if (shorter == least).all():
            break
        least = shorter
    if least[start] >= FAR:
        return None
    leads = np.where((leads >= 0) & (least[leads] < FAR), leads, -1)
    seen, left = {start}, [start]  # states that still are reached
    while left:
        new = set(np.unique(leads[left.pop()]).tolist()) - seen - {-1}
        seen |= new
        left += new
    kept = np.array(sorted(seen))
    renumber = np.full(len(leads) + 1, -1)
    renumber[kept] = np.arange(len(kept))
    leads, least, accepting = renumber[leads[kept]], least[kept], accepting[kept]
    nowhere = np.full((len(leads), 1), -1)  # first, so that class 0 leads nowhere whatever the columns are
    columns, of_class = np.unique(np.concatenate([nowhere, leads], 1), axis=1, return_inverse=True)
    order = np.argsort(of_class.ravel()[0] != np.arange(columns.shape[1]), kind="stable")  # class 0 first
    columns, place = columns[:, order], np.argsort(order)
    class_of = place[of_class.ravel()[1:][class_of]]
    end, eos = len(leads), columns.shape[1]
    class_of[list(eos_ids)] = eos
    columns = np.concatenate([columns, np.where(accepting, end, -1)[:, None]], 1)
    columns = np.concatenate([columns, np.where(np.arange(eos + 1) == eos, end, -1)[None]])
    sets, pairs = dict[bytes, int](), list[tuple[int, int, int]]()
    member = list[np.ndarray]()
    for source, row in enumerate(columns):
        for target in np.unique(row[row >= 0]).tolist():
            which = row == target
            number = sets.setdefault(np.packbits(which).tobytes(), len(sets))
            if number == len(member):
                member.append(which)
            pairs.append((source, target, number))
    source, target, of_set = torch.tensor(pairs).T.contiguous()
    return TokenAutomaton(
        class_of=torch.from_numpy(class_of.astype(np.int64)),
        member=torch.from_numpy(np.stack(member)),
        source=source.clone(),
        target=target.clone(),
        of_set=of_set.clone(),
        least=torch.from_numpy(np.append(least, 0).astype(np.int64)),
        start=int(renumber[start]),
    )


def _byte_table(pattern: str) -> tuple[np.ndarray | None, np.ndarray]:
    """The smallest automaton of a regex over bytes: where each byte leads, the last state being nowhere, and which
    states accept. State 0 is the first. None where it matches nothing."""
    letters = outlines().Vocabulary(256, {bytes([byte]): [byte] for byte in range(256)})
    try:
        # After a match the library drops bytes that leave it, so each match has to end with a character of our own.
        index = outlines().Index(f"(?s:{pattern})\\x{{10FFFF}}", letters)
    except ValueError as error:
        if "no transitions from state" in str(error):
            return None, np.zeros(0, dtype=bool)
        said = " ".join(str(error).split())[:200]
        raise ValueError(f"regex={shown(pattern)} cannot be used: {said}; give one in Rust's syntax") from error
    found = index.get_transitions()
    order = [index.get_initial_state()]
    order += [state for state in found if state != order[0]]
    number = {state: i for i, state in enumerate(order)}
    table = np.full((len(order) + 1, 256), len(order))
    for state, row in found.items():
        for byte, target in row.items():
            if byte < 256 and target in number:
                table[number[state], byte] = number[target]
    ended = np.arange(len(table))
    for byte in "\U0010ffff".encode():
        ended = table[ended, byte]
    accepting = np.isin(ended, [number[state] for state in index.get_final_states() if state in number])
    block = accepting.astype(np.int64)
    rng = np.random.default_rng(0)  # of hashes: two of 64 bits are equal
    factors = rng.integers(0, 2**63, size=257, dtype=np.uint64) | np.uint64(1)
    while True:  # states that go on alike are one
        values = rng.integers(0, 2**63, size=len(table), dtype=np.uint64)[block]
        _, finer = np.unique((values[table] * factors[:-1]).sum(1) + values * factors[-1], return_inverse=True)
        if finer.max() == block.max():
            break
        block = finer
    kinds, first = np.unique(block, return_index=True)
    renumber = np.empty(len(kinds), dtype=np.int64)
    dead = block[-1]
    others = [kind for kind in kinds if kind not in (block[0], dead)]
    renumber[[block[0], *others, dead]] = np.arange(len(kinds)) if block[0] != dead else 0
    small = np.empty((len(kinds), 256), dtype=np.int64)
    small[renumber[block[first]]] = renumber[block[table[first]]]
    accepts = np.zeros(len(kinds), dtype=bool)
    accepts[renumber[block[first]]] = accepting[first]
    return small, accepts


@lru_cache(maxsize=16)
def _known(pattern: str) -> tuple[bytes, bytes]:
    """The table of a pattern with its states numbered as a search from the first finds them."""
    table, accepting = _byte_table(pattern)
    if table is None:
        return b"", b""
    order = [0]
    for state in order:
        order += [new for new in dict.fromkeys(table[state].tolist()) if new not in order]
    renumber = np.full(len(table), -1)
    renumber[order] = np.arange(len(order))
    return renumber[table[order]].tobytes(), accepting[order].tobytes()


@lru_cache(maxsize=256)
def excludes_nothing(constraint: Regular) -> bool:
    """Whether every text matches, as it does `.*`. Such a constraint is none."""
    return len(constraint.pattern) < 100 and _known(constraint.pattern) == _known(".*")


def automata_of(
    model: Any, constraints: Constraint | Sequence[Constraint | None], number: int, folder: Path | None = None
) -> list[TokenAutomaton | None]:
    """The automaton of each of so many prompts: one constraint is that of all. None where it is free, or where every
    text matches. Raises ValueError for a constraint that no tokens of the model match, and for a grammar."""
    each = [constraints] * number if isinstance(constraints, Constraint) else list(constraints)
    if len(each) != number:
        raise ValueError(f"constraints has {len(each)} entries for {number} prompts; give one for each, None for none")
    vocabulary = vocabulary_of(model) if any(each) else None
    made = dict[Constraint, TokenAutomaton | None]()
    for constraint in each:
        if constraint is None or constraint in made:
            continue
        if not isinstance(constraint, Regular):
            raise ValueError(
                f"a {type(constraint).__name__} is kept by decoders that write from left to right alone; use "
                "decoder=ar or decoder=prompt_lookup, or a regex or JSON schema"
            )
        made[constraint] = None
        if not excludes_nothing(constraint):
            assert vocabulary is not None
            made[constraint] = found = automaton_of(constraint, vocabulary, folder)
            if found is None:
                what, table = f"{shown(constraint.pattern)}", _byte_table(constraint.pattern)[0]
                if table is None or len(table) == 1:
                    raise ValueError(f"the constraint {what} matches no text; write one that does")
                raise ValueError(
                    f"no tokens of model {model.name!r} spell what the constraint {what} matches; use other "
                    "letters, or a model with a larger vocabulary"
                )
    return [None if constraint is None else made[constraint] for constraint in each]


@lru_cache(maxsize=256)
def automaton_of(constraint: Regular, vocabulary: Vocabulary, folder: Path | None = None) -> TokenAutomaton | None:
    """The automaton of a constraint; None where no tokens match. It is made once and kept in `folder`, by default
    $XDG_CACHE_HOME/dllm-parallelbench (~/.cache); a file that cannot be read or written is made again."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dllm-parallelbench"
    name = hashlib.sha256(repr((FORM, constraint.pattern, vocabulary.digest)).encode()).hexdigest()[:32]
    file = (folder or home) / "automata" / f"{name}.safetensors"
    try:
        return TokenAutomaton.load(file)
    except (OSError, SafetensorError, KeyError, TypeError):
        found = TokenAutomaton.of_regex(constraint.pattern, vocabulary)
        if found is not None:
            with suppress(OSError):
                found.save(file)
        return found


def vocabulary_of(model: Any) -> Vocabulary:
    """The vocabulary of a model with a tokenizer. Raises ValueError for one without."""
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise ValueError(f"model {model.name!r} has no tokenizer, so no constraint can be put into its tokens")
    if isinstance(model, DenoisingLM):
        eos_ids, others = model.spec.eos_ids, (model.spec.mask_id, model.spec.pad_id)
    else:
        eos_ids, others = tuple(model.eos_ids), ()
    silent = {*tokenizer.all_special_ids, *eos_ids, *others}
    return _vocabulary(tokenizer, model.vocab_size, eos_ids, frozenset(silent))


@lru_cache(maxsize=8)
def _vocabulary(tokenizer: Any, size: int, eos_ids: tuple[int, ...], silent: frozenset[int]) -> Vocabulary:
    return Vocabulary(size, spelled(tokenizer, size, silent), eos_ids)


def spelled(tokenizer: Any, size: int, silent: frozenset[int] = frozenset()) -> dict[int, bytes]:
    """The bytes of each of a tokenizer's ids below `size` that stands for text. silent: ids that do not, besides those
    that it calls special itself."""
    added = tokenizer.added_tokens_decoder
    silent = silent | {number for number, token in added.items() if token.special}
    decoder = _decoder_kinds(tokenizer)
    letters = _letters() if "ByteLevel" in decoder else {}
    tokens = dict[int, bytes]()
    for text, number in tokenizer.get_vocab().items():
        if number in silent or number >= size:
            continue
        if number in added:
            text_bytes = str(added[number].content).encode()
        elif letters:
            text_bytes = bytes(letters[c] for c in text) if all(c in letters for c in text) else b""
        elif "ByteFallback" in decoder and len(text) == 6 and text.startswith("<0x"):
            text_bytes = bytes([int(text[3:5], 16)])
        elif "Replace" in decoder or "Metaspace" in decoder:
            text_bytes = text.replace("\u2581", " ").encode()
        else:
            text_bytes = text.encode()
        if text_bytes:
            tokens[number] = text_bytes
    return tokens


def _decoder_kinds(tokenizer: Any) -> set[str]:
    """The kinds of a fast tokenizer's decoders."""
    from transformers import PreTrainedTokenizerFast  # loads slowly, and most calls have no constraint

    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise ValueError(f"{type(tokenizer).__name__} does not say what its tokens spell; use a fast tokenizer")
    decoder = json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]
    inner = [decoder, *(decoder or {}).get("decoders", [])]
    return {each["type"] for each in inner if each}


def _letters() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
