"""How likely a masked diffusion model finds a text: the bound that published multiple-choice numbers are made with."""

import zlib
from collections.abc import Sequence

import torch
from torch.nn import functional as F

from decoders import NO_CACHE, Decoder, FixedK, Never, decode
from dllm.model import DiffusionLM


@torch.inference_mode()
def elbo(
    model: DiffusionLM, context: Sequence[int], target: Sequence[int], samples: int, batch_size: int, seed: int
) -> float:
    """Monte Carlo estimate of a lower bound of log p(target | context) in nats, exact for one token.

    E over k uniform in 1..L and over the k of L target tokens that are masked of -(L / k) sum of their cross-entropies
    (as LLaDA's evaluation does). The samples' k are spread evenly.
    """
    length = len(target)
    rng = torch.Generator().manual_seed(zlib.crc32(repr((seed, list(context), list(target))).encode()))
    samples = samples if length > 1 else 1
    first = torch.randint(length, (1,), generator=rng)
    num_masked = (first + torch.arange(samples) * length // samples) % length + 1
    clean = torch.tensor([*context, *target], device=model.device)
    total = 0.0
    for counts in num_masked.split(batch_size):
        order = torch.rand(len(counts), length, generator=rng).argsort(1).argsort(1)
        masked = (order < counts[:, None]).to(model.device)
        noisy = clean.repeat(len(counts), 1)
        noisy[:, len(context) :].masked_fill_(masked, model.spec.mask_id)
        logits = model.full_logits(noisy, torch.full((len(counts),), len(context), device=model.device))
        loss = F.cross_entropy(
            logits[:, len(context) :][masked].float(),
            clean[len(context) :].expand(len(counts), -1)[masked],
            reduction="none",
        )
        total -= float((loss * (length / counts.to(model.device))[:, None].expand_as(masked)[masked]).sum())
    return total / samples


def is_greedy(model: DiffusionLM, context: Sequence[int], target: Sequence[int]) -> bool:
    """Whether decoding one token per forward gives the target."""
    parts = {"decoder": Decoder(FixedK(1)), "cache": NO_CACHE, "stop": Never(), "device": model.device}
    (row,) = decode(model, [context], gen_len=len(target), block_len=len(target), **parts)
    return row.token_ids == list(target)
