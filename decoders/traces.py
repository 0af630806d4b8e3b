"""Recorded decodes, on which learned rules are trained: what the model offered in each step, what was committed, each
prompt's final tokens, and those of one token per forward.

A folder holds traces.json (what was decoded, and with what) and one safetensors file per batch of prompts. A file is
complete or not there, and depends on its batch alone. A recording that was killed therefore continues where it stopped.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor

from decoders.rules.oracle import agrees
from decoders.signals import Signals, feature_memory, features, signals
from decoders.state import DecodeState
from decoders.types import Shape, Update, View
from dllm.checkpoint import replacing

SCHEMA = "decode-traces/1"
SAME = ("model", "weights", "data", "block_length")  # what recordings of one training set share
Responses = Sequence[Sequence[int]]
_SIGNALS = tuple(field.name for field in fields(Signals))


class Recorder:
    """An `on_step` for `decode` that keeps what each step offered and committed. The decode needs a `reference`."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def __call__(self, state: DecodeState, view: View, update: Update) -> None:
        active = view.masked.any(1).nonzero()[:, 0]
        step = signals(view)
        kept = {name: getattr(step, name) for name in _SIGNALS}
        kept |= {"write": update.write, "agree": agrees(view, step.tokens), "start": view.start}
        kept |= {"row": state.request}
        self.steps.append({name: value[active].cpu() for name, value in kept.items()})

    def shard(self, final: Responses, reference: Responses, gen_len: int) -> dict[str, Tensor]:
        """Everything of one decode call: `[N, ...]` per step, `[R, gen_len]` per row with -1 after the text."""
        joined = {name: torch.cat([step[name] for step in self.steps]) for name in self.steps[0]}
        small = {name: value.int() if value.dtype == torch.long else value for name, value in joined.items()}
        return small | {"final": _padded(final, gen_len), "reference": _padded(reference, gen_len)}


def _padded(responses: Responses, gen_len: int) -> Int[Tensor, "R G"]:
    return torch.tensor([[*ids, *[-1] * (gen_len - len(ids))] for ids in responses], dtype=torch.int)


def step_bytes(window: int) -> int:
    """Bytes of a row's step on disk."""
    return window * (4 + 6 * 4 + 4) + 12


def open_traces(folder: Path, about: Mapping[str, Any]) -> None:
    """Starts a recording, or continues with one of the same settings. Raises ValueError when the folder holds
    another."""
    path, wanted = folder / "traces.json", {"schema": SCHEMA, **about}
    if path.exists():
        if json.loads(path.read_text(encoding="utf-8")) != wanted:
            raise ValueError(f"{folder} holds traces of other settings; give another out_dir or delete it")
        return
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write_text(json.dumps(wanted, indent=2) + "\n", encoding="utf-8")


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"traces-{number:05d}.safetensors"


def read_references(folder: Path, number: int, about: Mapping[str, Any]) -> list[list[int]]:
    """One batch's decodes of one token per forward, from another recording of the same prompts.

    Raises ValueError when it is of other prompts, another model or another way to decode, or has no such batch.
    """
    path, stored = shard_path(folder, number), folder / "traces.json"
    other = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    for key in (*SAME, "cache", "stop", "gen_length", "seed"):
        if other.get(key) != about[key]:
            raise ValueError(f"references={folder} differs in {key} from this recording; give one of the same prompts")
    if not path.exists():
        raise ValueError(f"references={folder} has no {path.name}; finish it first, or lower limit")
    return [[token for token in ids if token >= 0] for ids in load_file(path)["reference"].tolist()]


def write_shard(path: Path, shard: Mapping[str, Tensor]) -> None:
    """Writes a file by an atomic rename, so that it is there complete or not at all."""
    with replacing(path) as file:
        save_file({k: v.contiguous() for k, v in shard.items()}, file)


@dataclass(frozen=True)
class Traces:
    """N recorded steps.

    signals: what each step offered.
    agree: where its candidate is the reference's token.
    write: where it was committed.
    prompt: the number of its prompt. The same number is the same prompt in every folder of one recording's data.
    sequence: the same number for the steps of one window of one decode.
    """

    signals: Signals
    agree: Bool[Tensor, "N W"]
    write: Bool[Tensor, "N W"]
    prompt: Int[Tensor, " N"]
    sequence: Int[Tensor, " N"]

    def features(self) -> Float[Tensor, "N W F"]:
        """What `Agreement` would have seen at each step."""
        s, width = self.signals, self.agree.shape[1]
        result: Tensor | None = None
        memory = feature_memory(Shape(int(self.sequence.max()) + 1, width, 0, torch.device("cpu")))
        for step in range(int(s.step.max()) + 1):
            at = (s.step == step).nonzero()[:, 0]
            rows = self.sequence[at]
            mine = {name: value[rows] for name, value in memory.items()}
            part = features(Signals(**{name: getattr(s, name)[at] for name in _SIGNALS}), mine)
            result = part.new_zeros((len(s.step), *part.shape[1:])) if result is None else result
            result[at] = part
            for name, value in memory.items():
                value[rows] = mine[name]
        assert result is not None
        return result


def read_traces(folders: Sequence[Path]) -> tuple[Traces, list[dict[str, Any]]]:
    """The steps of finished recordings of one model, and what each recording says of itself.

    Raises ValueError for a folder without a recording, an unfinished one, or recordings of different models or windows.
    """
    abouts, parts = [], []
    for place, folder in enumerate(folders):
        path = folder / "traces.json"
        if not path.exists():
            raise ValueError(f"{folder} holds no traces; scripts/collect_traces.py writes them")
        about = json.loads(path.read_text(encoding="utf-8"))
        for key in SAME:
            if abouts and about[key] != abouts[0][key]:
                raise ValueError(
                    f"{folder} holds traces with {key}={about[key]}, {folders[0]} with {abouts[0][key]}; train on one"
                )
        abouts.append(about)
        for number in range(about["num_shards"]):
            if not shard_path(folder, number).exists():
                raise ValueError(f"{folder} is not finished: {shard_path(folder, number).name} is missing; collect on")
            shard = load_file(shard_path(folder, number))
            shard["prompt"] = shard["row"] + number * about["batch_size"]
            shard["place"] = torch.full_like(shard["row"], place)
            parts.append(shard)
    joined = {
        name: torch.cat([part[name] for part in parts]) for name in parts[0] if name not in ("final", "reference")
    }
    joined = {name: value.long() if value.dtype == torch.int else value for name, value in joined.items()}
    keys = torch.stack([joined["place"], joined["prompt"], joined["start"]], 1)
    sequence = keys.unique(dim=0, return_inverse=True)[1]
    steps = Signals(**{name: joined[name] for name in _SIGNALS})
    return Traces(steps, joined["agree"], joined["write"], joined["prompt"], sequence), abouts
