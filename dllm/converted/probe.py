"""Tries backbones that no test knows, before they are used."""

from collections.abc import Callable

import torch
from torch import Tensor

from dllm.model import DiffusionLM
from dllm.plan import Plan


@torch.no_grad()
def probe(model: DiffusionLM) -> None:
    """Runs a few tiny forwards. Raises ValueError when the backbone cannot be a denoiser: it fails, does not look
    ahead, sees what its mask hides, or gives other logits for a window on kept K/V than in a full forward."""
    try:
        fault = _fault(model)
    except Exception as error:  # an architecture made for other masks and caches may trip over anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"{model.name} cannot be used as a denoiser: {reason}") from error
    if fault is not None:
        raise ValueError(f"{model.name} cannot be used as a denoiser: {fault}")


@torch.no_grad()
def check_forward(name: str, forward: Callable[[], Tensor]) -> None:
    """Raises ValueError when the smallest forward of a model fails or gives logits that are NaN: its config.json holds
    sizes that do not go together, or its weights hold no numbers. forward: its logits."""
    try:
        logits = forward()
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(f"model {name!r} fails in its first forward ({reason}); mend its config.json") from error
    if not logits.is_meta and logits.isnan().any():
        raise ValueError(f"model {name!r} gives logits that are NaN; mend its weights or its config.json")


def _fault(model: DiffusionLM) -> str | None:
    length, live, vocab = 8, 6, model.backbone.config.vocab_size
    columns = torch.arange(length, device=model.device)
    canvas = (vocab // 2 + columns).repeat(4, 1)  # special tokens are seldom in the middle
    far = min(model.spec.block or length, length) - 1  # the last column that the first one may see
    canvas[1, far] += 1
    canvas[3, live:] += 1
    canvas %= vocab
    if model.spec.context_causal:  # what is drafted looks ahead
        canvas[:, 0] = model.spec.mask_id
    end = torch.tensor([length, length, live, live]).to(columns)
    prompt_len = torch.full_like(end, far + 1 if model.spec.prompt_block or model.spec.prompt_grid else 1)
    others = torch.arange(vocab, device=model.device) != model.spec.mask_id
    logits = model.full_logits(canvas, prompt_len, end)[..., :vocab][..., others].float()
    if not logits.isfinite().all():
        return "its logits are not finite"
    # half precision may send a token to another expert when the shape of a forward changes
    rough = model.backbone.dtype.itemsize < 4 or vars(model.backbone).get("is_quantized", False)
    tolerance = 0.1 if rough else 0.01
    if (logits[2, :live] - logits[3, :live]).norm() > tolerance * logits[2, :live].norm():
        return "what is past a row's end changes its logits, so rows cannot be batched"
    if far and (logits[0, 0] - logits[1, 0]).norm() <= 1e-6 * logits[0, 0].norm():
        return f"column 0 does not see column {far}; its attention is causal or local whatever the mask"
    if not model.spec.kv:
        return None
    kv, rows, query = model.new_kv(prompt_len, length), torch.arange(4, device=model.device), columns.expand(4, -1)
    model.logits(canvas, Plan(rows, query, end, all_rows=True), query, end=end, kv=kv)
    query, want = query[:, 2:live], query[:, 3:live]
    window = model.logits(
        canvas, Plan(rows, query, torch.full_like(end, live - 2), all_rows=True), want, end=end, kv=kv
    )
    exact = logits[:, 3:live]
    if (window[..., :vocab][..., others].float() - exact).norm() > tolerance * exact.norm():
        return "a window on kept K/V gives other logits than a full forward"
    return None
