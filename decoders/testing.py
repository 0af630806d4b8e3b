"""A contract that any decoder can be run through: `check_decoder(decoder)` raises AssertionError where it is broken.

It runs on a made-up model, so it needs no weights and takes seconds: random logits that depend on the canvas, in
several dtypes and blocks, batched and alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from decoders.compose import Decoder, check_is_decoder
from decoders.logits import Logits
from decoders.loop import decode
from decoders.noise import Noise
from decoders.spread import NO_CACHE
from decoders.state import DecodeState
from decoders.stop import Never
from decoders.types import Part, Shape, Update, View
from dllm.kv import ColumnCache
from dllm.plan import Plan
from dllm.soft import SoftInput
from dllm.spec import ModelSpec

VOCAB, SPEC = 40, ModelSpec(mask_id=39, eos_ids=(38,), pad_id=37, delete_id=36, split_id=35)
NOISY = replace(SPEC, noise=35)


class HashModel:
    """Logits that are a fixed random function of a row's canvas: a denoiser without weights."""

    passes = 1

    def __init__(self, dtype: torch.dtype = torch.float32, scale: float = 3.0, spec: ModelSpec = SPEC) -> None:
        self.spec, rng = spec, torch.Generator().manual_seed(0)
        self.mix = torch.randn(VOCAB, VOCAB, generator=rng)
        self.dtype, self.scale = dtype, scale

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> None:
        return None

    def renew_kv(self, kv: None, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        return None

    def logits(
        self,
        canvas: Int[Tensor, "B T"],
        plan: Plan,
        want: Int[Tensor, "R W"],
        *,
        end: Int[Tensor, " B"],
        kv: ColumnCache | None,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "R W V"]:
        return self._logits(canvas[plan.rows], want, end[plan.rows])

    def shadow_logits(
        self, canvas: Int[Tensor, "B T"], want: Int[Tensor, "B W"], prompt_len: Tensor, end: Tensor
    ) -> tuple[Tensor, Tensor]:
        logits = self._logits(canvas, want, end)
        return logits, logits.roll(1, dims=-1).index_fill(-1, torch.tensor(SPEC.mask_id), float("-inf"))

    def _logits(self, canvas: Tensor, want: Tensor, end: Tensor) -> Tensor:
        columns = torch.arange(canvas.shape[1])
        live = (columns < end[:, None])[..., None]
        seen = torch.nn.functional.one_hot(canvas, VOCAB).float() * torch.cos(columns + 1.0)[:, None] * live
        at = torch.sin(want[..., None] * (torch.arange(VOCAB) + 1.0))
        logits = self.scale * (torch.tanh(seen.sum(1) @ self.mix)[:, None] + at)
        logits[..., SPEC.mask_id] = float("-inf")
        return logits.to(self.dtype)


def check_decoder(decoder: Decoder, gen_len: int = 24, block_len: int = 12) -> None:
    """Raises AssertionError, naming the broken promise, unless the decoder

    - writes live positions only, and masked ones only unless it revises,
    - commits at least one token per unfinished row (unless at_least_one=False) and leaves no MASK,
    - decodes a row alike alone, batched and permuted, and alike again under the same seed,
    - keeps no memory from one block or call to the next,
    - leaves the view as it is, and never waits for the device (`.item()`, `bool(tensor)`, `nonzero`),
    - works on float32, bfloat16 and float64 logits,
    - for a model with `spec.noise`, if it is for such models,
    - declares what its parts need (`decoders.types.Part`): shadow, reference, steps, widest window, an identity for
      learned weights, and the parts that they hold.

    Raises ValueError for a rule or a name where a decoder belongs.
    """
    check_is_decoder(decoder)
    _check_declared(decoder, block_len)
    prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [10], [11, 12, 13, 14]]
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        model = HashModel(dtype, spec=_spec(decoder))

        def run(rows: list[list[int]], model: HashModel = model) -> list:
            return decode(
                model,
                rows,
                gen_len=gen_len,
                block_len=block_len,
                decoder=decoder,
                cache=NO_CACHE,
                stop=Never(),
                on_step=lambda state, view, update: _check_step(decoder, state, view, update),
            )

        together = run(prompts)
        assert all(row.stopped_by == "length" for row in together), (
            "MASK tokens are left: a step makes no progress, or a part does not declare its `steps` per window"
        )
        assert together == run(prompts), "the same seed gives other tokens: state outside the memory"
        assert together == [run([prompt])[0] for prompt in prompts], "a row decodes differently alone and batched"
        order = [2, 0, 3, 1]
        assert [together[i] for i in order] == run([prompts[i] for i in order]), "the order of the rows matters"
    _check_memory(decoder, block_len)
    _check_sync_and_purity(decoder, block_len)


def _check_step(decoder: Decoder, state: DecodeState, view: View, update: Update) -> None:
    batch, width = view.tokens.shape
    assert update.tokens.shape == update.write.shape == (batch, width), f"an update has shape {(batch, width)}"
    assert update.tokens.dtype == torch.long and update.write.dtype == torch.bool, "tokens are int64, write is bool"
    assert not (update.write & ~view.live).any(), "positions outside the live window are written"
    if decoder.revise is None:
        assert not (update.write & ~view.masked).any(), "committed tokens are overwritten without a revision"
        assert not (update.write & (update.tokens == view.spec.mask_id)).any(), "MASK is committed"
        if decoder.at_least_one:
            assert update.write.any(1).equal(view.masked.any(1)), "an unfinished row commits nothing"


def _spec(decoder: Decoder) -> ModelSpec:
    return NOISY if decoder.needs_noise else SPEC


def example_view(decoder: Decoder, step: int, block_len: int, seed: int = 0) -> View:
    """What a decoder may see of a step: three rows of the made-up model, of a window of `block_len` masks. step:
    forwards made in the window before."""
    rng = torch.Generator().manual_seed(seed)
    model = HashModel()
    canvas = torch.randint(0, 30, (3, 3 * block_len), generator=rng)
    prompts, responses = canvas[:, :block_len].tolist(), [[SPEC.mask_id] * block_len] * 3
    state = DecodeState.begin(_spec(decoder), prompts, responses, block_len, [1, 2, 3], [9] * 3, torch.device("cpu"))
    logits = model._logits(state.canvas, state.columns, state.end)
    logits, shadow = logits + torch.randn(logits.shape, generator=rng), torch.rand(3, block_len, generator=rng)
    steps = torch.full((3,), step)
    state.reference = torch.randint(0, VOCAB - 1, canvas.shape, generator=rng)
    return replace(state.view(Logits(logits), shadow), step=steps, noise=Noise(state.seeds, steps))


def _check_declared(decoder: Decoder, block_len: int) -> None:
    """What the loop gives is what was asked for, and what runs are told apart by is there."""
    parts = list(decoder.tree())
    for part in parts:
        held = [value for value in _values(part) if isinstance(value, Part)]
        assert all(value is decoder.rule or any(value is listed for listed in part.parts()) for value in held), (
            f"{type(part).__name__} holds a part that its parts() does not name"
        )
        learned = any(isinstance(value, nn.Module | Tensor) for value in _values(part))
        assert part.identity or not learned, f"{type(part).__name__} holds weights and has no `identity`"
        assert part.identity == part.identity, f"the `identity` of {type(part).__name__} changes by itself"

    widest = min((part.widest for part in parts if part.widest is not None), default=None)
    view = example_view(decoder, 0, 8 * block_len if widest is None else widest)
    given, again = _step(decoder, view), _step(decoder, view)
    same = again.write.equal(given.write) and again.tokens.equal(given.tokens)
    assert same, "the same seed gives other tokens: state outside the memory"
    if widest is not None:
        assert _refuses(decoder, widest + 1), "a window wider than a part's `widest` is not refused"
    for name, declared in (("shadow", decoder.needs_shadow), ("reference", decoder.needs_reference)):
        if declared:
            continue
        try:
            bare = _step(decoder, replace(view, **{name: None}))
        except Exception:  # whatever a part does to None
            bare = None
        assert bare is not None and bare.write.equal(given.write) and bare.tokens.equal(given.tokens), (
            f"a part reads View.{name} and does not declare needs_{name}"
        )

    rng = torch.Generator().manual_seed(1)
    decided = view.masked & (torch.rand(view.masked.shape, generator=rng) < 0.5)
    half = replace(view, tokens=torch.where(decided, 1, view.tokens), masked=view.masked & ~decided)
    elsewhere = view.logits.values + decided[..., None] * torch.randn(view.logits.shape, generator=rng)
    given, other = _step(decoder, half), _step(decoder, replace(half, logits=Logits(elsewhere)))
    assert decoder.needs_decided or (other.write.equal(given.write) and _written(other).equal(_written(given))), (
        "a part reads logits of decided positions and does not declare needs_decided"
    )


def _written(update: Update) -> Tensor:
    return torch.where(update.write, update.tokens, 0)


def _values(part: Part) -> Iterator[object]:
    """What a part holds, also in sequences."""
    for value in vars(part).values():
        yield from value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)


def _step(decoder: Decoder, view: View) -> Update:
    batch, width = view.tokens.shape
    try:
        return decoder.step(view, decoder.init(Shape(batch, width, VOCAB, torch.device("cpu"))))
    except (RuntimeError, IndexError) as error:
        raise AssertionError(f"a window of {width} columns breaks a part that does not declare `widest`") from error


def _refuses(decoder: Decoder, block_len: int) -> bool:
    try:
        decoder.check_window(block_len)
    except ValueError:
        return True
    return False


def _check_memory(decoder: Decoder, block_len: int) -> None:
    """A window's first step must forget what came before."""
    shape = Shape(3, block_len, VOCAB, torch.device("cpu"))
    used, fresh = decoder.init(shape), decoder.init(shape)
    for tensor in (tensor for part in used for tensor in part.values()):
        assert len(tensor) == 3, "memory is per row: its first dimension is the batch"
    for step in range(4):
        decoder.step(example_view(decoder, step, block_len, seed=step), used)
    after, alone = (decoder.step(example_view(decoder, 0, block_len, seed=9), memory) for memory in (used, fresh))
    assert after.tokens[after.write].equal(alone.tokens[alone.write]), "memory of one block reaches the next"
    assert after.write.equal(alone.write), "memory of one block reaches the next"


def _check_sync_and_purity(decoder: Decoder, block_len: int) -> None:
    view = example_view(decoder, 1, block_len)
    before = [view.tokens.clone(), view.masked.clone(), view.live.clone(), view.logits.values.clone()]
    memory = decoder.init(Shape(3, block_len, VOCAB, torch.device("cpu")))
    decoder.step(example_view(decoder, 0, block_len, seed=5), memory)
    with _NoSync():
        decoder.step(view, memory)
    after = [view.tokens, view.masked, view.live, view.logits.values]
    assert all(a.equal(b) for a, b in zip(before, after, strict=True)), "the view is changed in place"


_WAITING = ("_local_scalar_dense", "equal", "item", "masked_select", "nonzero", "repeat_interleave", "_unique2")


def waits_for_device(operation: OpOverload, args: Sequence[Any]) -> bool:
    """Whether an operation must know a tensor's values on the host, or how many of them are true."""
    name = operation.overloadpacket.__name__
    indices = args[1] if name in ("index", "index_put", "index_put_") else ()
    return name in _WAITING or any(index is not None and index.dtype == torch.bool for index in indices)


class _NoSync(TorchDispatchMode):
    """Inside, any operation that must read a tensor's values on the host raises AssertionError; works on the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert not waits_for_device(func, args), f"the step waits for the device: {func.overloadpacket.__name__}"
        return func(*args, **(kwargs or {}))
