"""Rules that were trained to tell which candidates agree with what one token per forward would write.

`Learn2PD` is the published rule (arXiv 2509.25188, section 3.2). Its filter reads the confidences of a block of 32, and
is tied to that length and to its model. `Agreement` is ours: one small net for every position alike, over features that
know neither. Both are trained on recorded decodes (`decoders.traces`, scripts/train_filter.py). Trained ones ship in
decoders/assets.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Bool, Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from decoders.compose import surest
from decoders.rules.schedules import Schedule
from decoders.signals import NUM_FEATURES, feature_memory, features, signals as read_signals
from decoders.traces import Traces
from decoders.types import Candidates, CommitRule, Memory, Shape, View
from dllm.validation import Fraction, Number

ASSETS = Path(__file__).parents[1] / "assets"
Network = TypeVar("Network", bound=nn.Module)


class BlockFilter(nn.Module):
    """The published filter: Linear, ReLU, Linear over the confidences of a block (2,112 parameters at 32)."""

    def __init__(self, block_len: int = 32) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(block_len, block_len), nn.Linear(block_len, block_len)

    def forward(self, confidence: Float[Tensor, "N W"]) -> Float[Tensor, "N W"]:
        """Logits of agreement. A shorter block is padded with confidence 0 on the right."""
        width = confidence.shape[1]
        padded = nn.functional.pad(confidence, (0, self.fc1.in_features - width))
        return self.fc2(torch.relu(self.fc1(padded)))[:, :width]

    def examples(self, traces: Traces) -> tuple[Float[Tensor, "N W"], Bool[Tensor, "N W"]]:
        """Inputs of recorded steps, and the positions whose labels count: all of the response, decided ones too.

        Raises ValueError for recordings of wider windows.
        """
        steps, block_len = traces.signals, self.fc1.in_features
        if steps.prob.shape[1] > block_len:
            raise ValueError(
                f"the traces have windows of {steps.prob.shape[1]} columns, the filter a block of {block_len}; give "
                f"filter.block_len={steps.prob.shape[1]}"
            )
        return steps.prob * steps.live, steps.live


class PositionFilter(nn.Module):
    """One net for every position: Linear, ReLU, Linear over its features."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(NUM_FEATURES, hidden), nn.Linear(hidden, 1)

    def forward(self, inputs: Float[Tensor, "N W F"]) -> Float[Tensor, "N W"]:
        """Logits of agreement."""
        return self.fc2(torch.relu(self.fc1(inputs)))[..., 0]

    def examples(self, traces: Traces) -> tuple[Float[Tensor, "N W F"], Bool[Tensor, "N W"]]:
        """Inputs of recorded steps, and the positions whose labels count: the masked ones."""
        return traces.features(), traces.signals.masked


@dataclass(frozen=True)
class Learn2PD(CommitRule):
    """Commits where the block's filter gives agreement a probability above tau (published: 0.96).

    The filter reads the largest probability of every response position of the window, decided ones too. Deviation:
    columns outside the response or past the live end count as 0, as the padding of a short block does.

    filter: the name of a shipped one, or a folder with its model.safetensors.
    steps: as in the authors' code, the surest tokens of LLaDA's schedule with so many steps per block go too (the
        block's length: one per step). 0: the surest goes only where the filter accepts none.
    """

    tau: Fraction = 0.96
    filter: str = "learn2pd-tiny"
    steps: Number = 0
    needs_decided: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.network  # a filter that cannot be read is refused here

    @cached_property
    def network(self) -> BlockFilter:
        """The filter, in float64. Raises ValueError where it cannot be read or is another rule's."""
        weights = _read(self.filter)
        return _filled(lambda: BlockFilter(len(weights.get("fc1.bias", ()))), weights, self.filter)

    @property
    def widest(self) -> int:
        """Columns of the widest window that the filter takes."""
        return self.network.fc1.in_features

    @property
    def identity(self) -> str:
        return _digest(self.network)

    def init(self, shape: Shape) -> Memory:
        self.network.to(shape.device)
        accepted = shape.zeros(shape.window, dtype=torch.bool)
        return {"accepted": accepted} | (Schedule(self.steps).init(shape) if self.steps else {})

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        confidence = view.logits.top_prob() * view.live
        accepted = view.masked & (self.network(confidence.double()).sigmoid() > self.tau)
        memory["accepted"].copy_(accepted)
        return accepted | Schedule(self.steps)(view, candidates, memory) if self.steps else accepted


@dataclass(frozen=True)
class Agreement(CommitRule):
    """Commits where a small net gives agreement a probability of at least tau, and the surest of the other positions.

    Only one unsure position is committed per step. One guess cannot contradict positions that are sure; two guesses can
    contradict each other.

    The net sees `decoders.signals.features` of one position: how sure it is, how sure the others are, whether they
    contend for tokens, how its candidate has fared, where it lies. It fits any block length, vocabulary and model. Only
    a run tells whether it is any good there.

    filter: as in `Learn2PD`.
    """

    tau: Fraction = 0.99
    filter: str = "agreement-tiny"
    needs_decided: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.network

    @cached_property
    def network(self) -> PositionFilter:
        """The net, in float64. Raises ValueError where it cannot be read or is another rule's."""
        weights = _read(self.filter)
        return _filled(lambda: PositionFilter(len(weights.get("fc1.bias", ()))), weights, self.filter)

    @property
    def identity(self) -> str:
        return _digest(self.network)

    def init(self, shape: Shape) -> Memory:
        self.network.to(shape.device)
        return feature_memory(shape)

    def __call__(self, view: View, candidates: Candidates, memory: Memory) -> Bool[Tensor, "B W"]:
        accepted = view.masked & (self.network(features(read_signals(view), memory).double()).sigmoid() >= self.tau)
        return accepted | surest(candidates.confidence, view.masked & ~accepted)


def save_filter(network: nn.Module, folder: Path, record: Mapping[str, Any]) -> None:
    """Writes model.safetensors and filter.json (how it was trained) into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: weight.detach().float().contiguous() for name, weight in network.state_dict().items()}
    save_file(weights, folder / "model.safetensors")
    (folder / "filter.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def _read(name: str) -> dict[str, Tensor]:
    shipped = ASSETS / name / "model.safetensors"
    path = shipped if shipped.exists() else Path(name) / "model.safetensors"
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        names = ", ".join(sorted(folder.name for folder in ASSETS.iterdir()))
        raise ValueError(
            f"filter={name!r} is neither a shipped filter ({names}) nor a folder with a readable model.safetensors "
            "(scripts/train_filter.py writes one)"
        ) from error


def _filled(make: Callable[[], Network], weights: Mapping[str, Tensor], name: str) -> Network:
    """A network with these weights, in float64. Sums in another order, as in another batch, then decide alike."""
    with torch.device("meta"):  # no random initialisation
        network = make()
    try:
        network.load_state_dict(dict(weights), assign=True)
    except RuntimeError as error:
        raise ValueError(
            f"filter={name!r} is not a filter of this rule: its weights have other names or shapes"
        ) from error
    return network.double().eval().requires_grad_(False)


def _digest(network: nn.Module) -> str:
    state = network.state_dict()
    return hashlib.sha256(b"".join(weight.cpu().numpy().tobytes() for weight in state.values())).hexdigest()[:16]
