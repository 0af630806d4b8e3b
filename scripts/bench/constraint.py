"""What a constraint costs: making its automaton, and its sums in a step, compared with a forward of SmolLM2-135M's
shape.

    python scripts/bench/constraint.py [tokenizer=FOLDER] [window=32] [prompt=64] [layers=30] [repeats=5]

A schema of ten fields, once with strings of any length and once with strings of up to 20 characters; random weights
and logits, a window that is all masked, one thread, CPU seconds.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from decoders import JsonSchema
from decoders.constraints.automaton import TokenAutomaton, Vocabulary, spelled
from decoders.constraints.chain import Tables, Window
from decoders.logits import Logits
from parallelbench.report.options import split_options
from parallelbench.wiring.exits import explained

TINY = Path(__file__).resolve().parents[2] / "dllm" / "assets" / "tiny"
OPTIONS = {"tokenizer": str(TINY), "window": "32", "prompt": "64", "layers": "30", "repeats": "5"}
NUMBERS = ("age", "visits", "balance")
FIELDS = ("name", "city", *NUMBERS, "email", "phone", "member", "country", "status")


def schema(**bound: int) -> JsonSchema:
    """Ten fields. bound: of the strings."""
    kinds = {name: {"type": "integer"} if name in NUMBERS else {"type": "string", **bound} for name in FIELDS}
    properties = {**kinds, "member": {"type": "boolean"}}
    return JsonSchema({"type": "object", "properties": properties, "required": list(FIELDS)})


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """CPU seconds of the fastest of some calls, after one that is not timed."""
    took = []
    for _ in range(repeats + 1):
        began = time.thread_time()
        work()
        took.append(time.thread_time() - began)
    return min(took[1:])


@torch.inference_mode()
def main(arguments: list[str]) -> None:
    paths, options = split_options(arguments, OPTIONS, needs_paths=False)
    numbers = [options[name] for name in ("window", "prompt", "layers", "repeats")]
    if paths or not all(value.isdecimal() and int(value) for value in numbers):
        raise ValueError(f"options are {', '.join(f'{key}={value}' for key, value in OPTIONS.items())}; whole numbers")
    width, prompt, layers, repeats = map(int, numbers)
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(options["tokenizer"])
    vocabulary = Vocabulary(size := len(tokenizer), spelled(tokenizer, size), (tokenizer.eos_token_id,))
    sizes = {"hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9, "num_key_value_heads": 3}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=size, num_hidden_layers=layers, tie_word_embeddings=True, **sizes))
    ids = torch.randint(size, (1, prompt + width))
    forward = seconds(lambda: model.lm_head(model.model(ids).last_hidden_state[:, -width:]), repeats)
    logits, zero = torch.randn(1, width, size), torch.zeros(1, dtype=torch.long)
    plain = seconds(lambda: Logits(logits).top_prob(), repeats)
    print(f"{size} tokens: a forward takes {1000 * forward:.1f} ms, a step's probabilities {1000 * plain:.1f} ms")
    vocabulary.walk(torch.zeros(1, 256, dtype=torch.long).numpy(), zero.numpy())  # its trie is made once
    for name, constraint in (("any length", schema()), ("up to 20", schema(maxLength=20))):
        began = time.thread_time()
        automaton = TokenAutomaton.of_regex(constraint.pattern, vocabulary)
        made = time.thread_time() - began
        assert automaton is not None
        tables, free = Tables.of([automaton], torch.device("cpu")), torch.ones(1, width, dtype=torch.bool)
        kept = sum(value.nbytes for value in vars(automaton).values() if isinstance(value, torch.Tensor))

        def step(tables: Tables = tables, free: torch.Tensor = free, start: int = automaton.start) -> None:
            row = (zero == 0, zero + start, tables.lines.least < 2**20, zero[:, None].expand(1, width))
            weighed = Window(tables, zero, *row, free, ~free).weigh(Logits(logits))
            weighed.log_prob(weighed.best())

        took = seconds(step, repeats)
        print(
            f"strings of {name}: {automaton.num_states} states, {automaton.member.shape[1]} classes, made in "
            f"{made:.2f} s, {kept / 1e6:.2f} MB, sums {1000 * took:.1f} ms, {took / forward:.1%} of a forward"
        )


if __name__ == "__main__":
    with explained():
        main(sys.argv[1:])
