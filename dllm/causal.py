"""Autoregressive language models: the baseline that parallel decoding is measured against, and what verifies drafts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    AutoConfig,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dllm.adapter import attach_all
from dllm.checkpoint import (
    RESCALED,
    check_weights,
    find_file,
    first_device,
    one_sentence,
    prepare,
    raw_config,
    read_backbone,
    read_tokenizer,
    to_dtype,
    warn_of_slow_halves,
)
from dllm.converted.probe import check_forward
from dllm.converted.storage import refuse_quantised
from dllm.kv import ColumnCache, OwnCache
from dllm.layers import hidden_states, moved, use_fast_products_
from dllm.model import DiffusionLM
from dllm.shipped import ASSETS, SPEC_FILE, check_folder, shipped_causal_models, shipped_models
from dllm.text import BackboneLM
from dllm.validation import check


class CausalLM(BackboneLM):
    """A stock transformers causal LM and its tokenizer.

    Of its own generation settings only the special ids are kept: with sampling or repetition penalties, decoding would
    not be greedy.

    eos_ids: what its generation settings or its tokenizer call the end of a text.
    entry: where prompts belong when the backbone is spread over several devices.
    max_length: number of positions that it has, None for no known limit.

    Raises ValueError when nothing names EOS.
    """

    def __init__(
        self,
        backbone: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        name: str = "model",
        *,
        entry: torch.device | None = None,
    ) -> None:
        super().__init__(backbone, tokenizer, name, entry)
        settings = backbone.generation_config
        given = None if settings is None else settings.eos_token_id
        named = [*(given if isinstance(given, list) else [given]), tokenizer.eos_token_id]
        self.eos_ids = tuple(dict.fromkeys(cast(int, eos) for eos in named if eos is not None))
        if not self.eos_ids:
            raise ValueError(f"neither generation_config.json nor the tokenizer of model {name!r} names EOS")
        pad = tokenizer.pad_token_id
        self.pad_id = pad if isinstance(pad, int) else self.eos_ids[0]
        backbone.generation_config = GenerationConfig(eos_token_id=list(self.eos_ids), pad_token_id=self.pad_id)

    @property
    def max_length(self) -> int | None:
        """Rotary positions never end. Learned ones do."""
        config = self.backbone.config
        return None if vars(config).get("rope_parameters") else getattr(config, "max_position_embeddings", None)

    def next_logits(
        self, tokens: Int[Tensor, "B T"], where: Bool[Tensor, "B T"], rng: torch.Generator
    ) -> Float[Tensor, "N V"]:
        """Logits for the token after each marked column, in reading order, for training."""
        head = self.backbone.get_output_embeddings()
        if head is None or any(vars(self.backbone.config).get(name) not in (None, 1) for name in RESCALED):
            return self.backbone(input_ids=tokens, use_cache=False).logits[where]
        hidden = self.backbone.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return head(hidden[where])  # the other columns' logits would cost more than the layers

    def identity(self) -> str:
        return repr((self.eos_ids, self.tokenizer and self.tokenizer.chat_template))


@dataclass(frozen=True)
class StreamPlan:
    """One forward of a causal stream over a subset of rows.

    rows: ascending. columns: canvas columns to compute, ascending, whose K/V is overwritten; a shorter row repeats its
    last. want: places among them whose next tokens are asked for. anchors: columns after each of which a group of
    `size` MASKs drafts on. all_rows: rows are the whole batch in order. enters: nothing is kept of the rows yet.
    """

    rows: Int[Tensor, " R"]
    columns: Int[Tensor, "R C"]
    want: Int[Tensor, "R W"]
    anchors: Int[Tensor, "R A"]
    size: int
    all_rows: bool
    enters: bool


class CausalStream:
    """The causal mode of a model: all there is to a `CausalLM`, the settled columns of a context-causal `DiffusionLM`,
    whose MASKs draft in the same forward.

    drafts: whether forwards may hold drafts, whose columns are computed again. A `CausalLM` without them runs as it is,
        so that windows of attention, ALiBi, states and rescaled logits are its own affair.
    group: MASKs that a model which can draft has in a block, 0 where it cannot. shift: as in `ModelSpec`.

    Raises ValueError for a model without a causal mode, for one that says other things of a text in parts than of all
    of it, and with drafts for one that cannot take them back.
    """

    def __init__(self, model: object, drafts: bool = True) -> None:
        if isinstance(model, DiffusionLM):
            spec, self.shift, self.group = model.spec, model.spec.shift, model.spec.block or 0
            if not spec.context_causal or spec.mix:
                raise ValueError(
                    f"model {model.name!r} has no causal mode to verify drafts with; use an autoregressive model such "
                    "as model=tiny_ar, or set model.spec.context_causal=true for one that was trained so"
                )
            self.eos_ids, self.pad_id, self.mask_id = spec.eos_ids, spec.pad_id, spec.mask_id
        elif isinstance(model, CausalLM):
            self.shift, self.group, self.mask_id = 0, 0, model.pad_id
            self.eos_ids, self.pad_id = model.eos_ids, model.pad_id
            if drafts:
                _check_takes_drafts_back(model)
        else:
            raise ValueError(f"a {type(model).__name__} has no causal mode to verify drafts with; use model=tiny_ar")
        self.model: DiffusionLM | CausalLM = model
        self._as_it_is = isinstance(model, CausalLM) and not drafts
        if isinstance(model, CausalLM) and not self.is_exact():
            raise ValueError(
                f"model {model.name!r} gives other logits where a mask of ours says what it sees, so it cannot verify "
                "drafts; use decoder=ar"
                if drafts
                else f"model {model.name!r} says other things of a text in parts, next to another, than of all of it, "
                "so it cannot be decoded in batches that are refilled; use a model whose state is in a cache of "
                "transformers, or model.dtype=float32"
            )

    @property
    def device(self) -> torch.device:
        return self.model.device

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int, spare: int) -> ColumnCache | OwnCache:
        """An empty cache for canvases of `length` columns, with room for `spare` columns of groups in a forward."""
        if self._as_it_is:
            return OwnCache(self.model.backbone)
        if isinstance(self.model, DiffusionLM):
            kv = self.model.new_kv(prompt_len, length + spare)
            assert kv is not None
            return kv
        columns = torch.arange(length + spare, device=prompt_len.device).expand(len(prompt_len), -1)
        return ColumnCache(self.model.backbone.config.num_hidden_layers, columns)

    def renew_kv(self, kv: ColumnCache | OwnCache, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        """Drops what is kept of some rows, which begin prompts of these lengths. Where positions are those of the
        canvas, nothing reads what another prompt left there."""
        if isinstance(self.model, DiffusionLM):
            self.model.renew_kv(cast(ColumnCache, kv), rows, prompt_len)

    def logits(
        self, canvas: Int[Tensor, "B T"], plan: StreamPlan, kv: ColumnCache | OwnCache
    ) -> tuple[Float[Tensor, "R W V"], Float[Tensor, "R A G V"]]:
        """One forward: logits for the token after each wanted column, which see what is before it, and for the
        tokens that the MASKs of each group stand for, which see what is up to their anchor and each other.

        Writes the K/V of `plan.columns` into `kv`; nothing else reads that of groups. MASK is none of the candidates of
        a diffusion model.
        """
        length, groups = canvas.shape[1], plan.anchors.shape[1]
        pick = (lambda t: t) if plan.all_rows else (lambda t: t[plan.rows])
        columns, device = plan.columns, canvas.device
        if self._as_it_is:
            tokens, own = pick(canvas).gather(1, columns), cast(OwnCache, kv)
            logits = own.next_logits(tokens, plan.want[:, 0], plan.rows, plan.enters)
            return moved(logits, device), logits.new_empty((*plan.anchors.shape, plan.size, logits.shape[-1]))
        kv = cast(ColumnCache, kv)
        behind = plan.anchors[..., None] + torch.arange(1, plan.size + 1, device=device)
        drafted = torch.full_like(behind.flatten(1), self.mask_id)
        embeds = self.model.backbone.get_input_embeddings()(torch.cat([pick(canvas).gather(1, columns), drafted], 1))
        spare = length + torch.arange(drafted.shape[1], device=device)
        store = kv.at(None if plan.all_rows else plan.rows, torch.cat([columns, spare.expand_as(drafted)], 1))
        positions = pick(kv.positions).gather(1, torch.cat([columns, behind.flatten(1)], 1))

        last = torch.cat([columns, plan.anchors.repeat_interleave(plan.size, 1)], 1)  # the last settled column seen
        keys = torch.arange(kv.positions.shape[1], device=device)
        group = torch.arange(drafted.shape[1], device=device) // max(plan.size, 1)
        mask = (keys <= last[..., None]) & (keys < length)
        mask[:, columns.shape[1] :, length : length + len(group)] = group[:, None] == group
        if isinstance(self.model, DiffusionLM) and self.model.gate is not None:
            drafted: Tensor | int = columns.shape[1]
            if self.model.is_compiled:  # which would compile again for each number
                drafted = (torch.arange(embeds.shape[1], device=device) >= drafted).expand_as(last)
            self.model.gate.open_at(drafted)
        hidden = hidden_states(self.model.backbone, embeds, mask[:, None], positions, store)
        wanted = hidden.gather(1, plan.want[..., None].expand(-1, -1, hidden.shape[-1]))
        both = torch.cat([wanted, hidden[:, columns.shape[1] :]], 1)  # so that the head's weights are read once
        logits = self.model.head(both)
        return logits[:, : plan.want.shape[1]], logits[:, plan.want.shape[1] :].unflatten(1, (groups, plan.size))

    @torch.no_grad()
    def is_exact(self) -> bool:
        """Whether forwards over parts of two texts say what a plain one says over each. The shorter text continues
        alone, and the other begins again next to it."""
        backbone, device, again = self.model.backbone, self.device, 0 if self._as_it_is else 1
        tokens = torch.arange(12, device=device).view(2, 6) % self.model.vocab_size
        steps = (([0, 1], [3, 1], True), ([1], [2], False), ([0], [4], True), ([0, 1], [5, 3], False))
        kv, found, wanted = self.new_kv(torch.tensor([4, 2], device=device), 6, 0), list[Tensor](), list[Tensor]()
        try:
            plain = [backbone(input_ids=tokens[row : row + 1], use_cache=False).logits[0] for row in (0, 1)]
            for rows, until, enters in steps:
                last = torch.tensor(until, device=device)[:, None]
                first = last * 0 if enters else last - again
                columns = torch.minimum(first + torch.arange(int((last - first).max()) + 1, device=device), last)
                number = torch.tensor(rows, device=device)
                plan = StreamPlan(number, columns, last - first, columns[:, :0], 0, len(rows) == 2, enters)
                found.append(self.logits(tokens, plan, kv)[0][:, 0].float())
                wanted += [plain[row][column] for row, column in zip(rows, until, strict=True)]
        except Exception:  # an architecture made for other masks and caches may trip over anything
            return False
        exact = torch.stack(wanted).float()
        return bool((torch.cat(found) - exact).norm() <= (0.01 if backbone.dtype.itemsize == 4 else 0.1) * exact.norm())


def _check_takes_drafts_back(model: CausalLM) -> None:
    """Raises ValueError unless forwards over given columns, their attention a mask's to say, are what the model does.

    A trial of a few tokens shows neither windows of thousands of columns nor that all logits are rescaled.
    """
    config, backbone = vars(model.backbone.config), model.backbone
    windows = set(config.get("layer_types") or ["sliding_attention"] * bool(config.get("sliding_window")))
    reason = None
    if backbone._is_stateful:
        reason = "is recurrent and cannot take drafts back"
    elif windows - {"full_attention"}:
        reason = f"has layers of {min(windows - {'full_attention'})}, which a mask of ours would widen"
    elif any(config.get(name) not in (None, 1) for name in RESCALED) or backbone.get_output_embeddings() is None:
        reason = "changes its logits after the head"
    if reason is not None:
        raise ValueError(f"model {model.name!r} {reason}; use decoder=ar")


def load_causal(
    name_or_path: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str = torch.float32,
    chat_template: str | None = None,
    adapter: str | Path | Sequence[str | Path] | None = None,
    **pretrained: Any,
) -> CausalLM:
    """A shipped autoregressive model by name, or any causal LM of transformers by folder or hub id, in eval mode.

    The arguments are those of `dllm.load`, which loads diffusion models too. Raises ValueError, naming what is wrong,
    when the device does not exist; when the checkpoint is absent, incomplete or corrupt; when it is a diffusion or
    masked LM or has no tokenizer; and when it would need hub code or pickled weights."""
    check(load_causal, name_or_path=name_or_path, device=device, dtype=dtype, chat_template=chat_template)
    dtype = to_dtype(dtype)
    check(load_causal, adapter=adapter)
    name = str(name_or_path)
    path = str(ASSETS / name if name in (*shipped_causal_models(), *shipped_models()) else name_or_path)
    check_folder(name)
    device, pretrained, hub = prepare(device, pretrained)
    with one_sentence(name, shipped_causal_models()):
        config = _config(path, hub)
        refuse_quantised(vars(config), stock=True)
        kind = cast(type[PreTrainedModel], MODEL_FOR_CAUSAL_LM_MAPPING[type(config)])
        backbone, info = read_backbone(path, kind, config, dtype, None, pretrained, device)
        tokenizer = read_tokenizer(path, config, AutoTokenizer, chat_template, hub)
        if tokenizer is None:
            raise ValueError("it has no tokenizer to read prompts with")
    check_weights(name, info)
    placed = "device_map" in pretrained
    entry = first_device(backbone) if placed else None
    model = CausalLM(backbone, tokenizer, Path(name).name, entry=entry)
    attach_all(model, adapter)
    model = model.eval() if placed else model.to(device).eval()
    two = torch.full((1, 2), model.pad_id, device=model.device)
    check_forward(model.name, lambda: backbone(input_ids=two, use_cache=False).logits)
    warn_of_slow_halves(model.device, backbone.dtype)
    use_fast_products_(backbone)
    return model


def save_causal(model: CausalLM, folder: Path) -> None:
    """Writes a checkpoint in Hugging Face layout. Its config says that it is causal, because its tokenizer may name a
    MASK."""
    assert model.tokenizer is not None
    model.backbone.config.is_causal = True
    model.backbone.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)


def _config(path: str, hub: dict) -> PreTrainedConfig:
    """A causal LM's config. Raises ValueError for any other model's."""
    raw = raw_config(path, hub)
    if find_file(path, SPEC_FILE, hub) is not None or raw.get("is_causal") is False:
        raise ValueError("it is a diffusion model; load it with dllm.load (model=tiny or model=local)")
    config = AutoConfig.from_pretrained(path, **hub) if raw.get("model_type") in CONFIG_MAPPING else None
    looks_ahead = type(config) in MODEL_FOR_MASKED_LM_MAPPING and not raw.get("is_decoder")
    if config is None or type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING or looks_ahead or config.is_encoder_decoder:
        raise ValueError(f"architecture {raw.get('model_type')!r} is not a causal LM of transformers")
    return config
