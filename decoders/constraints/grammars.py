"""Context-free grammars, for answers that are written from left to right. llguidance says which tokens may come next;
it works on the host, so each forward waits for it, row by row."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from decoders.constraints.automaton import Vocabulary
from decoders.constraints.patterns import ContextFree
from dllm.validation import shown


@dataclass
class Grammars:
    """The grammar of each prompt of a call, None where it is free. It stands for `Constraints` in verified decoding.

    After the last column of its response an answer may be incomplete: how many tokens a grammar still takes is not
    known.
    """

    grammars: Sequence[ContextFree | None]
    vocabulary: Vocabulary
    _tokenizer: Any = field(init=False, repr=False)
    _matchers: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        """Raises ValueError for what is no grammar, and where llguidance is not installed."""
        if find_spec("llguidance") is None:
            raise ValueError("grammars need llguidance; pip install 'dllm-parallelbench[structured]'")
        from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

        self._tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(self.vocabulary)))
        for grammar in dict.fromkeys(grammar for grammar in self.grammars if grammar is not None):
            if error := LLMatcher.validate_grammar(LLMatcher.grammar_from_lark(grammar.lark), self._tokenizer):
                said = " ".join(error.split())[:200]
                raise ValueError(f"grammar={shown(grammar.lark)} of Grammar: {said}; mend it")

    def begin(self) -> Int[Tensor, " N"]:
        return torch.zeros(len(self.grammars), dtype=torch.long)

    def admit_(self, prompts: Sequence[int], device: torch.device) -> None:
        """Keeps where the answers of these prompts stand, and no others."""
        from llguidance import LLMatcher

        for prompt in prompts:
            grammar = self.grammars[prompt]
            if grammar is not None and prompt not in self._matchers:
                lark = LLMatcher.grammar_from_lark(grammar.lark)
                self._matchers[prompt] = LLMatcher(self._tokenizer, lark, log_level=0)
        self._matchers = {prompt: matcher for prompt, matcher in self._matchers.items() if prompt in prompts}

    def allowed(
        self,
        entry: Int[Tensor, " R"],
        request: Int[Tensor, " R"],
        drafts: Int[Tensor, "R K"],
        left: Int[Tensor, " R"],
    ) -> Bool[Tensor, "R N V"]:
        """As `Constraints.allowed`, without a bound on what an answer still takes."""
        places, eos_ids = drafts.shape[1] + 1, list(self.vocabulary.eos_ids)
        found = np.ones((len(drafts), places, self.vocabulary.size), dtype=bool)
        for row, (prompt, tokens) in enumerate(zip(request.tolist(), drafts.tolist(), strict=True)):
            if (matcher := self._matchers.get(prompt)) is None:
                continue
            taken = 0
            for place in range(places):
                if matcher.is_stopped():  # nothing may follow but EOS
                    found[row, place] = False
                else:
                    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
                    found[row, place] = np.unpackbits(bits, bitorder="little")[: self.vocabulary.size]
                ends = found[row, place, eos_ids[0]] or not found[row, place].any()
                found[row, place, eos_ids] = ends
                draft = tokens[place] if place < drafts.shape[1] else eos_ids[0]
                if draft in eos_ids or not matcher.try_consume_tokens([draft]):
                    break
                taken += 1
            matcher.rollback(taken)
        return torch.from_numpy(found).to(drafts.device)

    def follow(
        self,
        entry: Int[Tensor, " B"],
        request: Int[Tensor, " B"],
        canvas: Int[Tensor, "B T"],
        begin: Int[Tensor, " B"],
        end: Int[Tensor, " B"],
        columns: int,
    ) -> Int[Tensor, " B"]:
        """Reads the columns from `begin` to `end`."""
        numbers = zip(request.tolist(), canvas.tolist(), begin.tolist(), end.tolist(), strict=True)
        for prompt, tokens, first, last in numbers:
            if (matcher := self._matchers.get(prompt)) is not None:
                matcher.consume_tokens([t for t in tokens[first:last] if t not in self.vocabulary.eos_ids])
        return entry


class _Tokens:
    """A vocabulary as llguidance reads one. It never asks how a text is tokenized, where the bytes have no tokens."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.eos_token_id, self.bos_token_id = vocabulary.eos_ids[0], None
        silent = [number for number in range(vocabulary.size) if number not in vocabulary.tokens]
        self.tokens = [vocabulary.tokens.get(i, b"\xff<%d>" % i) for i in range(vocabulary.size)]
        self.special_token_ids = silent
        self._by_text = {text: number for number, text in vocabulary.tokens.items()}
        self._longest = max(map(len, self._by_text), default=1)

    def __call__(self, text: bytes | str) -> list[int]:
        """Tokens of a text, the longest first."""
        left, found = text.encode() if isinstance(text, str) else text, list[int]()
        while left:
            lengths = range(min(self._longest, len(left)), 0, -1)
            length = next((length for length in lengths if left[:length] in self._by_text), 1)
            found += [self._by_text[left[:length]]] if left[:length] in self._by_text else []
            left = left[length:]
        return found
