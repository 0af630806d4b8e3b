"""A diffusion language model: a stock transformers backbone, its spec and its tokenizer in one call, `logits`.

The backbone is a decoder-only transformers model that runs with `config.is_causal = False`, a ready 4-D mask and our
ColumnCache. Logits come back for the columns that were asked for, so no other file knows of the token shift. MASK is
never a candidate.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dllm.graphs import Graphs
from dllm.kv import ColumnCache
from dllm.layers import Gate, NeighbourMix, arange_like, hidden_states, lora_layers, moved, padded, queried, sources
from dllm.plan import Plan
from dllm.soft import SoftInput
from dllm.spec import ModelSpec
from dllm.text import BackboneLM


class DiffusionLM(BackboneLM):
    """A masked (or block) diffusion LM over a transformers backbone.

    tokenizer: None for models made in code.
    keys: regular expressions from published weight names to the backbone's, for adapters trained on the published
        layout.
    entry: where canvases belong when the backbone is spread over several devices.
    max_length: columns that a canvas can have, None for no known limit.

    Raises ValueError when the spec does not fit or the attention takes no 4-D mask.
    """

    passes = 1

    def __init__(
        self,
        backbone: PreTrainedModel,
        spec: ModelSpec,
        tokenizer: PreTrainedTokenizerBase | None = None,
        name: str = "model",
        *,
        keys: Mapping[str, str] | None = None,
        entry: torch.device | None = None,
    ) -> None:
        super().__init__(backbone, tokenizer, name, entry)
        spec.check_vocab(backbone.config.vocab_size)
        self._check(spec, backbone.config._attn_implementation)
        backbone.config.is_causal = False  # transformers then leaves our mask alone
        self.spec, self.keys = spec, dict(keys or {})
        self.gate: Gate | None = None  # of an adapter that is active at drafted columns only
        self.mask_embedding: nn.Parameter | None = None  # while one is learned
        self.mix = NeighbourMix(backbone.config.hidden_size, look_ahead=spec.block is None) if spec.mix else None
        self.max_length = self._max_length()
        self.kv_samples, self.fixed_shapes = list[tuple[Tensor, Tensor]](), False  # of a compiled backbone
        self.graphs: Graphs | None = None

    def _check(self, spec: ModelSpec, implementation: str | None) -> None:
        if implementation not in (None, "sdpa", "eager"):
            raise ValueError(
                f"attn_implementation={implementation!r} takes no 4-D mask, which every step needs; use sdpa or eager"
            )

    def _max_length(self) -> int | None:
        """Rotary positions never end. Learned and tabulated ones do, and a fixed response position skips some."""
        config = self.backbone.config
        if vars(config).get("rope_parameters"):
            return None
        limit = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
        return limit and limit - (self.spec.response_position or 0)

    def identity(self) -> str:
        """What the weights do not say: the spec, the chat template, and how much an attached adapter adds."""
        scalings = {name: layer.scaling for name, layer in lora_layers(self.backbone).items()}
        drafts = ("context_causal", self.gate is not None, *["lead"] * self.spec.shift) * self.spec.context_causal
        grids = {"prompt_block": self.spec.prompt_block, "prompt_grid": self.spec.block and self.spec.prompt_grid}
        more = *drafts, *(name for name, chosen in grids.items() if chosen)
        return repr((self.spec, self.tokenizer and self.tokenizer.chat_template, scalings, *more))

    @property
    def id_limit(self) -> int:
        """Ids of a canvas are below it."""
        return self.vocab_size

    @property
    def is_compiled(self) -> bool:
        """Whether another way to call the backbone, without a mask or with a number in place of a tensor, would be one
        more to compile."""
        return bool(self.kv_samples)

    def positions(self, prompt_len: Int[Tensor, " B"], length: int) -> Int[Tensor, "B T"]:
        """RoPE position of each canvas column: its number, or moved so that responses start at a fixed position."""
        columns = torch.arange(length, device=prompt_len.device).expand(len(prompt_len), length)
        if self.spec.response_position is None:
            return columns
        gap = (self.spec.response_position - prompt_len).clamp(min=0)[:, None]
        return torch.where(columns >= prompt_len[:, None], columns + gap, columns)

    def new_kv(self, prompt_len: Int[Tensor, " B"], length: int) -> ColumnCache | None:
        """An empty cache for canvases of `length` columns, None for a model that keeps no K/V. Raises ValueError for
        more columns than `max_length`."""
        if self.max_length is not None and length > self.max_length:
            raise ValueError(
                f"a canvas of {length} columns is too long for {self.name}, which has {self.max_length} positions"
            )
        if not self.spec.kv:
            return None
        positions = self.positions(prompt_len, length)
        return ColumnCache(self.backbone.config.num_hidden_layers, positions, prompt_len, self.kv_samples)

    def renew_kv(self, kv: ColumnCache | None, rows: Int[Tensor, " N"], prompt_len: Int[Tensor, " N"]) -> None:
        """Drops what is kept of some rows, which begin new prompts."""
        if kv is not None:
            kv.drop(rows, self.positions(prompt_len, kv.positions.shape[1]), prompt_len)

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
        """One forward over the plan's columns. Returns logits FOR the columns `want`, with MASK at -inf.

        Writes the K/V of `plan.query` into `kv`, unless the plan keeps none. Columns at or past a row's `end` are not
        attended. soft: for the plan's rows. Each wanted column minus the shift must be among the query's columns. The
        cache strategy promises that; it is not checked. An example with shift 1:

            want             5  6  7  8    columns whose logits are returned
            want - shift     4  5  6  7    columns whose hidden states predict them
            plan.query    3  4  5  6  7
            source           1  2  3  4    places of those columns in the query
        """
        assert kv is not None
        asked = len(plan.rows)
        if self.fixed_shapes:
            plan, of = padded(plan, len(canvas))
            want, soft = want[of], soft and soft[of]
        rows = None if plan.all_rows else plan.rows
        pick = (lambda t: t) if rows is None else (lambda t: t[rows])
        tokens, row_end, positions, prompt_len = pick(canvas), pick(end), pick(kv.positions), pick(kv.prompt_len)
        embeds = self._embed(tokens, plan.query, row_end, soft, whole=plan.first == 0 and not plan.keep)  # all of a row
        drafted, query = self._drafted(tokens, plan.query, row_end, prompt_len)
        if plan.keep:
            keys = tokens.shape[1] if plan.seen is None or self.is_compiled else plan.seen
            store = kv.at(rows, plan.query, keys)
        else:  # attend to the query alone, once to a column that a shorter row repeats
            keys, store = queried(plan, tokens.shape[1]), None
        sees_all = plan.first is not None and not plan.keep and self.spec.block is None and drafted is None
        sees_all = sees_all and not self.is_compiled
        mask = None if sees_all else self._attention_mask(query, row_end, keys, prompt_len, drafted)
        hidden = self._forward(embeds, mask, self._rotary(tokens, positions, plan.query), store, drafted)
        source = sources(plan, want, self.spec.shift, tokens.shape[1])
        return self.head(hidden.flatten(0, 1)[source[:asked] if self.fixed_shapes else source])

    def full_logits(
        self,
        canvas: Int[Tensor, "B T"],
        prompt_len: Int[Tensor, " B"],
        end: Int[Tensor, " B"] | None = None,
        where: Bool[Tensor, "B T"] | None = None,
        soft: SoftInput | None = None,
    ) -> Float[Tensor, "... V"]:
        """Logits for all columns `[B, T, V]` or the N of `where` `[N, V]`. Column 0 of a shifted model gets its own."""
        length = canvas.shape[1]
        end = torch.full_like(prompt_len, length) if end is None else end
        columns = torch.arange(length, device=canvas.device).expand_as(canvas)
        drafted, query = self._drafted(canvas, columns, end, prompt_len)
        mask = self._attention_mask(query, end, length, prompt_len, drafted)
        embeds, positions = self._embed(canvas, columns, end, soft), self.positions(prompt_len, length)
        hidden = self._forward(embeds, mask, self._rotary(canvas, positions, columns), None, drafted)
        hidden = hidden.gather(1, (columns - self.spec.shift).clamp(min=0)[..., None].expand_as(hidden))
        return self.head(hidden if where is None else hidden[where])

    def response_blocks(self, prompt_len: Int[Tensor, " B"], count: int) -> Int[Tensor, "B N"]:
        """`count` canvas columns of each row, from the start of the block in which its response begins. Raises
        ValueError for a model without blocks."""
        block = self.spec.block
        if block is None or self.spec.prompt_block:
            raise ValueError("response blocks lie on a grid over the prompt too; set spec.block without prompt_block")
        return self.spec.block_start(prompt_len, prompt_len)[:, None] + torch.arange(count, device=prompt_len.device)

    def two_stream_logits(
        self,
        noisy: Int[Tensor, "V B N"],
        clean: Int[Tensor, "B T"],
        prompt_len: Int[Tensor, " B"],
        end: Int[Tensor, " B"],
        *,
        clean_before: bool = True,
        group_start: Int[Tensor, "B N"] | None = None,
    ) -> Float[Tensor, "V B N Vocab"]:
        """Logits for the columns `response_blocks(prompt_len, N)`, each given its group of blocks of `noisy` up to its
        own, and the clean blocks before: one forward over the clean canvas and V noisy views (block diffusion training:
        Arriola et al. 2503.09573; Fast-dLLM v2, 2509.26328; groups: MultiBD, 2606.29215).

        With blocks of 2, clean canvas a b c d, and one view C D of its last block, an input attends to those marked x:

                  a b c d  C D
            a, b  x x . .  . .
            c, d  x x x x  . .
            C, D  x x . .  x x

        Columns at or past a row's `end` mean nothing. clean_before: in a shifted model, whether a group's first column
        is predicted from the clean column before it, as in decoding, or from the view's. group_start: of each column's
        group, None where each block is one. Raises ValueError for a model without blocks, or with a neighbour mix.
        """
        (views, _, count), length = noisy.shape, clean.shape[1]
        block = self.spec.block
        ours = self.response_blocks(prompt_len, count)
        if block is None or self.mix is not None or self.spec.context_causal:
            raise ValueError("two streams need a model with spec.block, without neighbour mix or context_causal")
        columns = torch.arange(length, device=clean.device).expand_as(clean)
        stream = torch.cat([columns, ours.clamp(max=length - 1).repeat(1, views)], dim=1)  # the column of each input
        live = torch.cat([columns < end[:, None], (ours < end[:, None]).repeat(1, views)], dim=1)
        view = (torch.arange(length + views * count, device=clean.device) - length) // count  # of the canvas: below 0
        first, of_clean, index = (self.spec.block_start(c, prompt_len[:, None]) for c in (ours, columns, stream))
        start = first if group_start is None else group_start
        sees = torch.cat([of_clean + block, start.repeat(1, views)], dim=1)  # clean blocks before this one
        own = (sees[:, :, None] == sees[:, None]) & (index[:, :, None] >= index[:, None]) & (view[:, None] == view)
        mask = own | ((sees[:, :, None] > index[:, None]) & (view < 0))
        noise = self.backbone.get_input_embeddings()(noisy.transpose(0, 1).flatten(1))
        embeds = torch.cat([self._embed(clean, columns, end), noise], dim=1)
        positions = self.positions(prompt_len, length).gather(1, stream)
        hidden = self._forward(embeds, (mask & live[:, None])[:, None], positions, None)
        # where the hidden state is that predicts each column: in its own view, or at the end of the clean blocks before
        wanted = ours - self.spec.shift
        place = length + torch.arange(views * count, device=clean.device).view(views, 1, count) - self.spec.shift
        source = torch.where(wanted < (start if clean_before else ours[:, :1]), wanted.clamp(0, length - 1), place)
        picked = hidden.gather(1, source.transpose(0, 1).flatten(1)[..., None].expand(-1, -1, hidden.shape[-1]))
        return self.head(picked).unflatten(1, (views, count)).transpose(0, 1)

    def shadow_logits(
        self,
        canvas: Int[Tensor, "B T"],
        want: Int[Tensor, "B W"],
        prompt_len: Int[Tensor, " B"],
        end: Int[Tensor, " B"],
    ) -> tuple[Float[Tensor, "B W V"], Float[Tensor, "B W V"]]:
        """Logits for the columns `want`, and for their shadows, in one forward without a cache.

        WINO (arXiv 2507.18578): a wanted column's shadow is a MASK at the same position. It attends to the canvas
        without that column, and to all shadows, as in the authors' code. The canvas attends to no shadow. Raises
        ValueError for a token-shifted model, whose prediction for a column is read off the column before it.
        """
        if self.spec.shift or self.spec.context_causal:
            raise ValueError("shadow columns need a model without token shift or context_causal")
        length, mask_id = canvas.shape[1], self.spec.mask_id
        columns = torch.arange(length, device=canvas.device).expand_as(canvas)
        mask_embed = self.backbone.get_input_embeddings()(torch.full_like(want, mask_id))
        shadows = self._mixed(mask_embed, canvas, want, end)
        embeds = torch.cat([self._embed(canvas, columns, end), shadows], dim=1)
        places = torch.cat([columns, want], dim=1)
        positions = self._rotary(canvas, self.positions(prompt_len, length), places)
        # keys: the canvas, without a shadow's own column (and those whose input mix holds its token), then the shadows
        hidden_from = (columns[:, None] - want[..., None]).abs() <= self.spec.mix
        to_canvas = self._attention_mask(want, end, length, prompt_len) & ~hidden_from[:, None]
        to_canvas = torch.cat([self._attention_mask(columns, end, length, prompt_len), to_canvas], dim=2)
        apart = (want[:, :, None] - want[:, None]).abs()
        to_shadows = ((apart == 0) | (apart > self.spec.mix))[:, None]
        to_shadows = nn.functional.pad(to_shadows, (0, 0, length, 0))
        hidden = self._forward(embeds, torch.cat([to_canvas, to_shadows], dim=3), positions, None)
        plain = hidden.gather(1, want[..., None].expand(-1, -1, hidden.shape[-1]))
        return self.head(plain), self.head(hidden[:, length:])

    def head(self, hidden: Float[Tensor, "... D"]) -> Float[Tensor, "... V"]:
        """Logits of the last layer's states, with MASK at -inf."""
        logits = super().head(hidden)
        logits.select(-1, self.spec.mask_id).fill_(float("-inf"))
        return logits

    def _forward(
        self,
        embeds: Float[Tensor, "R Q D"],
        mask: Bool[Tensor, "R 1 Q T"] | None,
        position_ids: Tensor,
        kv: ColumnCache | None,
        drafted: Bool[Tensor, "R Q"] | None = None,
    ) -> Float[Tensor, "R Q D"]:
        """Hidden states of the query columns, on the canvas' device."""
        if self.gate is not None:
            self.gate.open_at(0 if drafted is None else drafted)
        elif self.graphs is not None and mask is not None:
            return self.graphs(embeds, mask, position_ids, kv)
        return hidden_states(self.backbone, embeds, mask, position_ids, kv)

    def _rotary(self, tokens: Tensor, positions: Tensor, query: Tensor) -> Tensor:
        return positions.gather(1, query)

    def _embed(
        self, tokens: Tensor, query: Tensor, end: Tensor, soft: SoftInput | None = None, whole: bool = False
    ) -> Float[Tensor, "R Q D"]:
        embed = self.backbone.get_input_embeddings()
        here = moved(embed(tokens.gather(1, query)), tokens.device)
        if soft is not None and soft.soft is not None:
            # where in the window each query column is, -1 outside
            place = torch.where(soft.where, arange_like(soft.columns), -1)
            place = torch.full_like(tokens, -1).scatter_(1, soft.columns, place).gather(1, query)[..., None]
            mixture = soft.embed(embed, tokens if self.spec.noise else self.spec.mask_id)
            here = torch.where(place < 0, here, mixture.gather(1, place.clamp(min=0).expand_as(here)))
        elif whole and self.mix is not None:
            return self.mix.among(here)
        return self._mixed(here, tokens, query, end)

    def _mixed(self, here: Tensor, tokens: Tensor, query: Tensor, end: Tensor) -> Float[Tensor, "R Q D"]:
        """Embeddings of the query columns with those of their canvas neighbours mixed in."""
        if self.mix is None:
            return here
        embed = self.backbone.get_input_embeddings()
        last = tokens.shape[1] - 1
        before = embed(tokens.gather(1, (query - 1).clamp(min=0))) * (query > 0)[..., None]
        after = embed(tokens.gather(1, (query + 1).clamp(max=last))) * (query + 1 < end[:, None])[..., None]
        return self.mix(here, before, after)

    def _drafted(
        self, tokens: Tensor, query: Tensor, end: Tensor, prompt_len: Tensor
    ) -> tuple[Bool[Tensor, "R Q"] | None, Int[Tensor, "R Q"]]:
        """Which query columns are drafted (`ModelSpec.context_causal`; None: no matter), and these columns for the
        attention mask: one before the first MASK, where drafted, counts as that MASK. It is settled in a forward that
        does not compute the MASK (`BlockCache.first_token`)."""
        if not self.spec.context_causal:
            return None, query
        columns = torch.arange(tokens.shape[1], device=tokens.device)
        masked, live = tokens == self.spec.mask_id, columns < end[:, None]
        first = torch.where(masked & live, columns, tokens.shape[1]).amin(1, keepdim=True)
        if not self.spec.shift or self.spec.block is None:
            return query >= first, query
        stop = self.spec.block_start(first, prompt_len[:, None]) + self.spec.block
        kept_ahead = (~masked & live & (columns > first) & (columns < stop)).any(1, keepdim=True)
        lead = kept_ahead & (query == first).any(1, keepdim=True)
        drafted = query >= first - lead.to(first.dtype)
        return drafted, torch.where(drafted, query.maximum(first), query)

    def _attention_mask(
        self, query: Tensor, end: Tensor, keys: Tensor | int, prompt_len: Tensor, drafted: Tensor | None = None
    ) -> Bool[Tensor, "R 1 Q K"]:
        """keys: the columns attended to, `[R, K]`, or how many from the first. drafted: the query columns that look
        ahead."""
        if isinstance(keys, int):
            keys = torch.arange(keys, device=query.device)[None]
        keys, width = keys.view(len(keys), 1, 1, -1), query.shape[1]
        allowed, query = keys < end.view(-1, 1, 1, 1), query[:, None, :, None]
        if self.spec.block is not None:
            grid = self.spec.grid(prompt_len).view(-1, 1, 1, 1)
            of_key, of_query = ((c - grid).clamp(min=-1) // self.spec.block for c in (keys, query))
            allowed = allowed & (of_key <= of_query)
        if drafted is not None:
            allowed = allowed & (drafted[:, None, :, None] | (keys <= query))
        return allowed.expand(-1, -1, width, -1)
