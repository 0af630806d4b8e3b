"""On-policy distillation: the states are those of the model's own decode, the loss by hand, and that it falls."""

from dataclasses import replace

import pytest
import torch
from conftest import make_model

import dllm
from decoders import Decoder, StrictEos, Threshold, decode
from dllm import DiffusionLM
from dllm.cache import BlockCache
from dllm.training.objectives import Batch
from dllm.training.on_policy import OnPolicy
from parallelbench.records.record import NEVER
from parallelbench.tasks import builtin_tasks
from parallelbench.training.trajectories import Trajectories

GEN_LEN, BLOCK = 24, 8


def decoded(model: DiffusionLM) -> Batch:
    """The model's samples for six prompts."""
    prompts = [model.encode(sample.messages) for sample in builtin_tasks()["waiting_line/shuffle"].samples(6, 1)]
    decoder = Decoder(Threshold(0.5), temperature=1.0)
    parts = {"block_len": BLOCK, "decoder": decoder, "cache": BlockCache(), "stop": StrictEos()}
    rows = decode(model, prompts, gen_len=GEN_LEN, **parts)
    columns = [row.token_ids for row in rows], [row.committed_at for row in rows], [row.nfe for row in rows]
    assert any(NEVER in row.committed_at for row in rows)  # behind an early EOS
    ids = model.spec.pad_id, model.spec.eos_ids[0]
    return Trajectories(prompts, *columns, GEN_LEN, *ids, batch_size=4, seed=0).batch(0)


def test_it_learns_in_states_of_its_own_decodes_what_the_causal_lm_says() -> None:
    model, objective = dllm.load("tiny-block"), OnPolicy(dllm.load_causal("tiny-ar"), BLOCK)
    batch, seen, plain = decoded(model), [], model.full_logits

    def record(canvas, *others):
        seen.append(canvas)
        return plain(canvas, *others)

    model.full_logits = record
    loss = objective(model, batch, torch.Generator().manual_seed(0))
    masked, columns = seen[0] == model.spec.mask_id, torch.arange(batch.canvas.shape[1])
    assert torch.equal(seen[0][~masked], batch.canvas[~masked])
    expected, sizes = [], set()
    for row, (hidden, order) in enumerate(zip(masked, batch.order, strict=True)):
        first = int(hidden.int().argmax()) // BLOCK * BLOCK  # of the block, on the model's grid
        text, end = batch.text[row], int(batch.end[row])
        last = end if batch.text_end[row] <= first + BLOCK else first + BLOCK  # a text's last block takes the padding
        block = (columns >= max(first, int(batch.prompt_len[row]))) & (columns < last)
        forward = order[hidden & block & text].min()
        assert torch.equal(hidden, (block & (order >= forward)) | ((columns >= last) & (columns < end)))
        where = (hidden & block & text).nonzero()[:, 0]
        log_q = plain(seen[0][row : row + 1], batch.prompt_len[row : row + 1], batch.end[row : row + 1])[0]
        log_p = objective.teacher.backbone(batch.canvas[row : row + 1]).logits[0, where - 1]
        log_p[:, model.spec.mask_id] = float("-inf")
        known = torch.arange(log_p.shape[1]) != model.spec.mask_id
        log_p, log_q = (logits.log_softmax(-1)[:, known] for logits in (log_p, log_q[where]))
        expected.append((log_p.exp() * (log_p - log_q)).sum(-1).mean())
        sizes.add(len(where))
    torch.testing.assert_close(loss, torch.stack(expected).mean())
    assert loss > 0 and len(sizes) > 1


def test_a_few_steps_lower_the_loss() -> None:
    model, objective = dllm.load("tiny-block"), OnPolicy(dllm.load_causal("tiny-ar"), BLOCK)
    batch = decoded(model)
    model.requires_grad_(True)
    optimizer, losses = torch.optim.AdamW(model.parameters(), lr=1e-4), []
    for _ in range(5):
        loss = objective(model, batch, torch.Generator().manual_seed(0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    with pytest.raises(ValueError, match=r"the model's own decodes; use scripts/distill.py"):
        objective(model, replace(batch, order=None), torch.Generator())
    with pytest.raises(ValueError, match=r"teacher 'tiny-ar' has \d+ tokens, .* has 48; give the causal LM"):
        objective(make_model("block_causal"), batch, torch.Generator())
