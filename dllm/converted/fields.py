"""Fields of a config.json or adapter_config.json: those that are read, those that change nothing, and no others.

Whoever trains a model writes notes and settings of the training into its config, so a field that nobody here reads may
be harmless. It may also be a scale or another attention. So it passes if its name is known to be harmless, if its value
says "none of it", or if it is a remark; else it is refused by name.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from transformers import GenerationConfig, PreTrainedConfig

from dllm.validation import shown

HARMLESS = re.compile(
    r"_\w*|\w*token_(id|ids|index)|(bos|eos|pad|unk|cls|sep|mask)_token|\w*_?version|\w*dtype|precision"  # remarks, ids
    r"|\w*dropout\w*|\w*_p?drop|init|init_\w+|\w+_init|\w*initializer\w*|\w*loss\w*|\w+_coeff?|seq_aux"  # training
    r"|\w*checkpoint\w*|train\w*|trainer\w*|optimizer\w*|wandb\w*|debug|seed|learning_rate|z_loss|fuse_\w+|micro_\w+"
    r"|architectures?|architecture_class_name|auto_map|model_type|tokenizer_\w+|base_model\w*|revision|task_type"
    r"|name|names|tags|licen[cs]e|languages?|author\w*|date|description|notes?|comments?|datasets?|unsloth\w*"  # words
    r"|id2label|label2id|num_labels|problem_type|finetuning_task|task_specific_params|summary_\w+|classifier_\w+"
    r"|torchscript|use_bfloat16|output_(attentions|hidden_states|router_logits|scores|logits|past)|return_dict\w*"
    r"|use_cache|\w*flash\w*|\w*_implementation|(ep|tp|pp|dp)_size|\w*device\w*|padding_multiple|\w*_prefix"
    r"|(conplemenrary|complementary)_mask"  # Fast-dLLM v2's training
)
UNITS = re.compile(r"\w*(scale|scaling|multiplier|factor|group_size|_tp)")  # of which one is none
NOT_IN_LAYERS = {*vars(GenerationConfig()), *vars(PreTrainedConfig())} - {"is_encoder_decoder", "use_mtp"}


class Fields(Mapping[str, Any]):
    """A config that remembers what was read of it. A field that is null counts as absent."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = {name: value for name, value in raw.items() if value is not None}
        self._read: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self._read.add(name)
        return self._raw[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._raw)

    def __len__(self) -> int:
        return len(self._raw)

    def unread(self, harmless: str = "") -> dict[str, Any]:
        """Fields that nothing has read and that may mean something. harmless: a pattern of names that mean nothing."""
        left = {name: value for name, value in self._raw.items() if name not in self._read | NOT_IN_LAYERS}
        names = [name for name in left if not HARMLESS.fullmatch(name) and not re.fullmatch(harmless or "(?!)", name)]
        return {name: left[name] for name in names if not _says_nothing(name, left[name])}


def check_unread(fields: Fields, harmless: str = "", place: str = "") -> None:
    """Raises ValueError for the first field that `Fields.unread` finds. place: what its name begins with."""
    for name, value in fields.unread(harmless).items():
        raise ValueError(
            f"{place}{name}={shown(value)}, which is not read here and may change what the model computes; if it does "
            f"not, leave it out with config.{place}{name}=null"
        )


def check_whole_attention(config: PreTrainedConfig) -> None:
    """Raises ValueError for layers that see a window: our mask is every layer's, so the window would be lost."""
    kinds = [kind for kind in vars(config).get("layer_types") or () if re.search("sliding|chunked", kind)]
    window = vars(config).get("sliding_window") if vars(config).get("use_sliding_window") is not False else None
    if kinds or window is not None:
        raise ValueError(f"{kinds[0] if kinds else f'sliding_window={window}'}: local attention is not supported")


def of_class(raw: Mapping[str, Any], config: PreTrainedConfig, place: str = "", harmless: str = "") -> dict[str, Any]:
    """The fields that a stock config has, and its parts'. Raises ValueError for others in its parts, and for others at
    all where `place` names it as a part."""
    fields = Fields(raw) if place else raw
    found = {name: fields[name] for name in fields if name in _names(config)}
    for name in set(cast(Any, type(config)).sub_configs) & set(found):
        if isinstance(found[name], Mapping) and isinstance(part := getattr(config, name, None), PreTrainedConfig):
            found[name] = of_class(found[name], part, f"{place}{name}.", harmless)
    if isinstance(fields, Fields) and place:
        check_unread(fields, harmless, place)
    return found


def _names(config: PreTrainedConfig) -> set[str]:
    rotary = {"rope_theta", "rope_scaling", "partial_rotary_factor"} if "rope_parameters" in vars(config) else set()
    return {*vars(config), "model_type"} | rotary


def _says_nothing(name: str, value: object) -> bool:
    """Whether the value is that of something absent, or a text for people."""
    if isinstance(value, str):
        return value.lower() in ("", "none", "null", "default") or bool(re.search(r"[\s/:]", value))
    if isinstance(value, list | dict):
        return all(one == "full_attention" for one in value) if isinstance(value, list) else not value
    return value in (0, False) or (value is not True and value == 1 and bool(UNITS.fullmatch(name)))
