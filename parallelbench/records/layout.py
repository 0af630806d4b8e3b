"""What readers take from the files of a run, by type. The files may hold more."""

from collections.abc import Mapping
from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

Text = Annotated[str, Meta(max_length=1000)]
Name = Annotated[str, Meta(pattern=r"\S", max_length=1000)]


class Identity(TypedDict):
    """Of run.json: the fingerprint of the weights, and the version of each task."""

    weights: NotRequired[str]
    tasks: NotRequired[Mapping[str, str]]


class Git(TypedDict):
    """Of run.json: the commit that made the run."""

    commit: str
    dirty: bool


class Info(TypedDict):
    """Of run.json, besides `Facts`."""

    status: Literal["partial", "done"]
    config_hash: str
    choices: Mapping[str, Text]
    model: Text
    device: Text
    processes: NotRequired[int]
    identity: NotRequired[Identity]
    git: NotRequired[Git | None]


class Choices(TypedDict):
    """Names of config groups; a run that no command has made has none."""

    model: Name
    decoder: Name
    cache: Name
    stop: Name
    suite: Name


class Config(TypedDict):
    """Of config.yaml."""

    decoder: Mapping[str, object]
    suite: Mapping[str, object]
    batch_size: int


class SuiteConfig(Config):
    """The same of a run that a command has made."""

    model: Mapping[str, object]
    cache: Mapping[str, object]
    stop: Mapping[str, object]
    limit: int
    seed: int
    gen_length: int | None
    block_length: int | None
