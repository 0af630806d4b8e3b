"""What the loop and the benchmark need of a model. A model that offers it is decoded and measured like the shipped
ones. It need not derive from anything."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dllm.plan import Plan
from dllm.soft import SoftInput
from dllm.spec import ModelSpec

# raw text, or chat messages; the content of a message is a text, or parts such as {"type": "image", "image": FILE}
Text = str | Sequence[Mapping[str, Any]]


@runtime_checkable
class Denoiser(Protocol):
    """What the loop needs of a model. What its K/V looks like is its own affair.

    passes: how often one forward computes each column, for the count of queried columns. It is 1 but for guided models.
    """

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def passes(self) -> int: ...

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> Any: ...

    def renew_kv(self, kv: Any, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        """Drops, in place, what `kv` keeps of some rows: they begin other prompts, of these lengths."""
        ...

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: Any,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]: ...


@runtime_checkable
class ShadowDenoiser(Denoiser, Protocol):
    """A denoiser whose forward can also tell what it would think of each token if it did not see it."""

    def shadow_logits(
        self,
        canvas: Int[Tensor, "B T"],
        want: Int[Tensor, "B W"],
        prompt_len: Int[Tensor, " B"],
        end: Int[Tensor, " B"],
    ) -> tuple[Float[Tensor, "B W V"], Float[Tensor, "B W V"]]:
        """Logits for the columns `want`, and what they would be if that column were a MASK."""
        ...


@runtime_checkable
class LanguageModel(Protocol):
    """What the benchmark needs of a model of any kind, besides what its decoder needs.

    device: where its inputs belong.
    dtype: of its weights, for the record.
    vocab_size: numbers per column of its logits.
    max_length: columns of prompt and response at most, None for no limit.
    """

    @property
    def name(self) -> str: ...

    @property
    def device(self) -> torch.device: ...

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def max_length(self) -> int | None: ...

    def identity(self) -> str:
        """What its weights do not say. A run is resumed only with a model of the same identity and weights."""
        ...

    def named_parameters(self) -> Iterable[tuple[str, Tensor]]:
        """Its weights. A model without any gives none."""
        ...

    def encode(self, text: Text) -> list[int]:
        """Token ids of a text, or of a chat up to where the answer begins. Raises ValueError when it cannot read it."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids."""
        ...


@runtime_checkable
class DenoisingLM(Denoiser, LanguageModel, Protocol):
    """A model that can be benchmarked with denoising decoders."""


def usable(device: torch.device | str, model: object) -> torch.device:
    """The device. Raises ValueError for one that does not exist, and for another one than that of the model."""
    try:
        device = torch.empty(0, device=device).device
    except (RuntimeError, AssertionError, TypeError) as error:  # torch says which in many lines
        raise ValueError(f"device={str(device)!r} does not exist; give cpu, or cuda where there is a GPU") from error
    own = model.device if isinstance(model, LanguageModel) else device
    if own.type != device.type:
        raise ValueError(f"device={str(device)!r}, but the model is on {str(own)!r}; give device={str(own)!r}")
    return device


def check_is_denoiser(model: object, kind: type = Denoiser) -> None:
    """Raises ValueError, with how to load one, unless it is a model of a kind that can be denoised with."""
    if isinstance(model, kind) and not isinstance(model, type):
        return
    if isinstance(model, str):
        raise ValueError(f"model={model!r} is a name; give the model: dllm.load({model!r})")
    if isinstance(model, LanguageModel) and not isinstance(model, type):
        raise ValueError(
            f"model {model.name!r} is no diffusion model; give one, such as dllm.load('tiny'), or decode with "
            "generate_verified if it is autoregressive"
        )
    raise ValueError(f"model={model!r:.80} is no diffusion model; give one, such as dllm.load('tiny')")
