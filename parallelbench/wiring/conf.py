"""The conf folder, and what every reader of it needs: parts as objects, settings as values, errors in one sentence."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from hydra.errors import HydraException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from parallelbench.records.compat import public_paths
from parallelbench.records.files import os_sentence
from parallelbench.wiring.catalogue import CONF, GROUPS

__all__ = ["CONF", "GROUPS", "build_part", "in_one_sentence", "make_part", "resolved", "sentence"]


def make_part(config: DictConfig) -> Any:
    """The object that a part of a config describes. Raises Hydra's errors; see `in_one_sentence`."""
    return instantiate(
        public_paths(OmegaConf.to_container(config, resolve=True, throw_on_missing=True)), _convert_="all"
    )


def resolved(config: DictConfig, missing_ok: bool = False) -> dict[str, Any]:
    """The settings that identify a run. Those left out may change for a run that exists: where its numbers go, and how
    many of its samples are traced. A template that is none came later than the first runs."""
    resolved = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True, throw_on_missing=not missing_ok))
    left_out = ("sink", "traces", *(["template"] if resolved.get("template") is None else []))
    return {key: value for key, value in public_paths(resolved).items() if key not in left_out}


@contextmanager
def in_one_sentence() -> Iterator[None]:
    """Hydra's errors inside become ValueErrors of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise ValueError(sentence(error)) from error


@in_one_sentence()
def build_part(config: Mapping[str, Any]) -> Any:
    """The object that a part of a stored config describes. Raises ValueError with one sentence."""
    return make_part(OmegaConf.create(dict(config)))


def sentence(error: Exception) -> str:
    """What went wrong, in one line. Where Hydra only passes on a message of ours, that message."""
    while isinstance(error, HydraException) and isinstance(
        error.__cause__, ValueError | TypeError | OSError | HydraException
    ):
        error = error.__cause__
    if isinstance(error, OSError):
        return os_sentence(error)
    return " ".join(str(error).split("Config search path")[0].split())
