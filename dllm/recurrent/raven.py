"""Huginn's layers (`huginn_raven`, arXiv 2502.05171): sandwich norms, one matrix for query, key and value with biases
of query and key alone, a gated MLP, scaled embeddings. Module names are those of the published checkpoint."""

import math
from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from dllm.converted.ends import raven_eos
from dllm.converted.fields import Fields, check_unread
from dllm.recurrent.depth import Depth, Place, RecurrentLM, Stack

ONLY = {  # settings with one value in every published checkpoint
    "bias": False,
    "qk_bias": True,
    "tie_embeddings": True,
    "block_class_name": "SandwichBlock",
    "norm_class_name": "RMSNorm_llama",
    "mlp_class_name": "GatedMLP",
    "nonlin_name": "SiLU",
    "injection_type": "linear",
    "state_init": "like-init",
}


HARMLESS = (  # of training and its trials, or said again by others
    "effective_expected_depth|mean_backprop_depth|sampling_scheme|test_time_noise_type|padded_vocab_size|n_layers"
    "|head_dim|num_attention_heads|num_key_value_heads|num_hidden_layers|tie_word_embeddings"
)


class RavenConfig(PreTrainedConfig):
    """Fields of the published config.json, with what they are where it leaves them out."""

    model_type = "huginn_raven"

    n_embd: int = 5280
    n_heads: int = 55
    intermediate_size: int = 17920
    vocab_size: int = 65536
    block_size: int = 4096
    norm_eps: float = 1e-6
    rope_base: float = 50_000
    mean_recurrence: int = 32
    n_layers_in_prelude: int = 2
    n_layers_in_recurrent_block: int = 4
    n_layers_in_coda: int = 2

    @classmethod
    def check_fields(cls, raw: Mapping[str, Any]) -> None:
        """Raises ValueError for a field of config.json that nothing here reads and that may mean something."""
        known = {*cls.__annotations__, *ONLY}
        check_unread(Fields({name: value for name, value in raw.items() if name not in known}), HARMLESS)

    def check(self) -> None:
        """Raises ValueError for a layout that no published checkpoint has."""
        given = vars(self)
        for name, value in ONLY.items():
            if given.get(name, value) != value:
                raise ValueError(
                    f"{name}={given[name]!r}, which no published checkpoint of this family has ({value!r})"
                )
        if given.get("num_key_value_heads", self.n_heads) != self.n_heads or self.n_embd % self.n_heads:
            raise ValueError(f"n_heads={self.n_heads} does not fit n_embd={self.n_embd} and num_key_value_heads")


class RavenNorm(nn.Module):
    """Root mean square in float32."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(config.n_embd)), config.norm_eps

    def forward(self, x: Float[Tensor, "... D"]) -> Float[Tensor, "... D"]:
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.weight


class RavenAttention(nn.Module):
    """Causal attention whose rotary pairs are neighbouring channels."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        head = config.n_embd // config.n_heads
        self.heads, self.base = config.n_heads, config.rope_base
        self.Wqkv = nn.Linear(config.n_embd, 3 * config.n_embd, bias=False)
        self.qk_bias = nn.Parameter(torch.zeros(2, 1, config.n_heads, head))
        self.proj = nn.Linear(config.n_embd, config.n_embd, bias=False)

    def forward(self, x: Float[Tensor, "B W D"], layer: int, place: Place | None, kv: Any) -> Float[Tensor, "B W D"]:
        q, k, v = (part.unflatten(-1, (self.heads, -1)) for part in self.Wqkv(x).chunk(3, dim=-1))
        bias = self.qk_bias.to(q.dtype)
        columns = torch.arange(x.shape[1], device=x.device)[None] if place is None else place.columns
        q, k = (rotate(part, columns, self.base).transpose(1, 2) for part in (q + bias[0], k + bias[1]))
        v = v.transpose(1, 2)
        attend = nn.functional.scaled_dot_product_attention
        if place is None:
            seen = attend(q, k, v, is_causal=True)
        else:
            keys, values = kv.update(k, v, layer)
            seen = attend(q, keys, values, attn_mask=place.mask)
        return self.proj(seen.transpose(1, 2).flatten(2))


def rotate(x: Float[Tensor, "B W H E"], columns: Int[Tensor, "B W"], base: float) -> Float[Tensor, "B W H E"]:
    """Turns channels 2i and 2i + 1 by column * base ** (-2i / E), in float32."""
    half = x.shape[-1] // 2
    frequency = 1 / base ** (torch.arange(0, 2 * half, 2, dtype=torch.float32, device=x.device) / (2 * half))
    angle = (columns[..., None].float() * frequency)[..., None, :]
    even, odd = x.float().unflatten(-1, (half, 2)).unbind(-1)
    turned = torch.stack([even * angle.cos() - odd * angle.sin(), odd * angle.cos() + even * angle.sin()], dim=-1)
    return turned.flatten(-2).to(x.dtype)


class RavenMLP(nn.Module):
    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.fc = nn.Linear(config.n_embd, 2 * config.intermediate_size, bias=False)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.fc(x).chunk(2, dim=-1)
        return self.proj(nn.functional.silu(gate) * up)


class RavenBlock(nn.Module):
    """Each half of a layer is normalised before and, with its residual, after."""

    def __init__(self, config: RavenConfig) -> None:
        super().__init__()
        self.norm_1, self.norm_2, self.norm_3, self.norm_4 = (RavenNorm(config) for _ in range(4))
        self.attn, self.mlp = RavenAttention(config), RavenMLP(config)

    def forward(self, x: Tensor, layer: int, place: Place | None, kv: Any) -> Tensor:
        x = self.norm_2(self.attn(self.norm_1(x), layer, place, kv) + x)
        return self.norm_4(self.mlp(self.norm_3(x)) + x)


class RavenBackbone(PreTrainedModel):
    """The weights. Of a published checkpoint it leaves out the second copy of the tied embeddings and the table of
    rotary angles."""

    config_class = RavenConfig
    _keys_to_ignore_on_load_unexpected = [r"^lm_head\.weight$", r"^freqs_cis$"]  # noqa: RUF012

    def __init__(self, config: RavenConfig) -> None:
        super().__init__(config)
        config.check()

        def blocks(number: int) -> nn.ModuleList:
            return nn.ModuleList(RavenBlock(config) for _ in range(number))

        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(config.vocab_size, config.n_embd),
                "prelude": blocks(config.n_layers_in_prelude),
                "adapter": nn.Linear(2 * config.n_embd, config.n_embd, bias=False),
                "core_block": blocks(config.n_layers_in_recurrent_block),
                "coda": blocks(config.n_layers_in_coda),
                "ln_f": RavenNorm(config),
            }
        )
        self.post_init()


class RavenLM(RecurrentLM):
    """Huginn. One norm serves the state that leaves the core and the logits. Its noise is a normal distribution cut at
    three standard deviations, scaled like its embeddings."""

    def __init__(self, backbone: RavenBackbone, tokenizer: PreTrainedTokenizerBase | None, name: str) -> None:
        config = cast(RavenConfig, backbone.config)
        depth = Depth(
            config.n_layers_in_prelude,
            config.n_layers_in_recurrent_block,
            config.n_layers_in_coda,
            config.mean_recurrence,
        )
        eos_ids = raven_eos(vars(config))
        pad = vars(config).get("pad_token_id")
        super().__init__(
            depth,
            tokenizer,
            name,
            eos_ids=eos_ids,
            pad_id=pad if isinstance(pad, int) else eos_ids[0],
            width=config.n_embd,
            max_length=config.block_size,
        )
        self.backbone, self.config = backbone, config
        self.embed = cast(nn.Embedding, backbone.transformer["wte"])
        self.scale = math.sqrt(config.n_embd)

    def inject(self, tokens: Tensor, place: Place | None = None) -> Tensor:
        return self.run("prelude", self.embed(tokens) * self.scale, place)

    def run(self, stack: Stack, states: Tensor, place: Place | None, step: int = 0) -> Tensor:
        parts = self.backbone.transformer
        x = states
        kv = None if place is None else place.cache.of(stack, step).at(place.rows, place.columns)
        for layer, block in enumerate(cast(nn.ModuleList, parts["core_block" if stack == "core" else stack])):
            x = block(x, layer, place, kv)
        return parts["ln_f"](x) if stack == "coda" else x

    def join(self, state: Tensor, injected: Tensor) -> Tensor:
        return self.backbone.transformer["adapter"](torch.cat([state, injected], dim=-1))

    def leave(self, state: Tensor) -> Tensor:
        return self.backbone.transformer["ln_f"](state)

    def initial(self, columns: int, rng: torch.Generator) -> Tensor:
        std = math.sqrt(2 / (5 * self.width))
        noise = torch.empty(columns, self.width)
        return nn.init.trunc_normal_(noise, std=std, a=-3 * std, b=3 * std, generator=rng) * self.scale
