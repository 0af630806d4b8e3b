"""Names of runs, made from their configs, and the curves to which runs belong."""

from collections import Counter
from collections.abc import Sequence
from zlib import crc32

from parallelbench.records.facts import flatten, short_names
from parallelbench.records.files import one_line
from parallelbench.records.record import Run
from parallelbench.stats.groups import K, grouped

LETTERS = 100  # of a value in a name
FEW = 3  # tasks that a name lists


def run_names(runs: Sequence[Run]) -> list[str]:
    """Short names that tell runs apart: the decoder, its knobs, and each other choice in which a run differs from most
    runs. A user's own model is named by its folder."""
    flat = [{key: _class_name(key, value) for key, value in flatten(run.config).items()} for run in runs]
    choices = [_choices(run) for run in runs]
    names = []
    for run, settings, chosen in zip(runs, flat, choices, strict=True):
        parts = [method(run), *(f"{key}={value}" for key, value in shown_knobs(run, runs).items())]
        for group in (group for group in chosen if group != "decoder"):
            if not _is_usual(chosen[group], [other.get(group) for other in choices]):
                parts.append(f"{group}={chosen[group]}")
        for key, value in settings.items():
            group = key.split(".")[0]
            choice = chosen.get(group)
            peers = [s for other, s in zip(choices, flat, strict=True) if other.get(group) == choice]
            hidden = key == "out_dir" or key in run.facts.knobs
            if not hidden and not _is_usual(value, [peer.get(key) for peer in peers]):
                shown = task_names(value) if key == "suite.tasks" else _short(value)
                parts.append(f"{_short(_last_name(key))}={shown}")
        names.append(" ".join(parts))
    times = Counter(names)
    return [f"{name} ({run.folder})" if times[name] > 1 else name for name, run in zip(names, runs, strict=True)]


def task_names(tasks: object) -> str:
    """The last parts of a suite's tasks; of many, how many there are."""
    names = [_short(str(name).rpartition("/")[2]) for name in (tasks if isinstance(tasks, list) else [tasks])]
    return "+".join(names) if len(names) <= FEW else f"{len(names)}_tasks"


def model_title(run: Run) -> str:
    """A model's name for titles: as it was chosen where several models are made from one folder, `smollm2-block`."""
    name, choice = one_line(run.info["model"]), one_line(run.info["choices"].get("model", "")).replace("_", "-")
    return choice if choice.startswith(f"{name}-") else name


def unsaid(runs: Sequence[Run]) -> dict[str, str]:
    """The choices that names leave out because most runs share them, where other runs differ."""
    choices = [_choices(run) for run in runs]
    groups = [group for group in choices[0] if group != "decoder"]
    values = {group: [chosen.get(group) for chosen in choices] for group in groups}
    return {
        group: str(value)
        for group, found in values.items()
        for value in dict.fromkeys(found)
        if len(set(found)) > 1 and _is_usual(value, found)
    }


def _class_name(key: str, value: object) -> object:
    """A class without its module, and any other setting as it is."""
    return str(value).split(".")[-1] if key.endswith("_target_") else value


def _last_name(key: str) -> str:
    """A part that is chosen by its class has the name of its place: `rescore` for `decoder.rescore.0._target_`."""
    return [key, *(part for part in key.removesuffix("._target_").split(".") if not part.isdigit())][-1]


def _is_usual(value: object, all_values: Sequence[object]) -> bool:
    """Whether more than half have it."""
    return sum(repr(other) == repr(value) for other in all_values) > len(all_values) / 2


def _choices(run: Run) -> dict[str, str]:
    """A run's choices. A model that is only "local" is the end of its path."""
    path = run.config.get("model", {}).get("name_or_path", "")
    chosen = {group: one_line(option) for group, option in run.info["choices"].items()}
    return chosen if chosen["model"] != "local" else chosen | {"model": one_line(_end(str(path)))}


def _end(path: str) -> str:
    """The last two folders of a path, without the one that every training names alike."""
    return "/".join([part for part in path.split("/") if part not in ("model", "filter")][-2:])


def method(run: Run) -> str:
    """The decoder's name as it was chosen. A loop around another decoder also names its parts: `d2f(Prefix)`."""
    inner = flatten(run.config["decoder"].get("decoder", {}))
    keys = sorted((key for key in inner if key.endswith("._target_")), key="rule._target_".__ne__)  # the rule first
    parts = [_class_name(key, inner[key]) for key in keys]
    return one_line(run.info["choices"]["decoder"] + (f"({'+'.join(map(str, parts))})" if parts else ""))


def knobs(run: Run) -> dict[str, str]:
    """A run's knobs by their short names, as they are shown."""
    names = short_names(run.facts.knobs)
    return {_short(names[key]): _short(value) for key, value in run.facts.knobs.items()}


def shown_knobs(run: Run, runs: Sequence[Run]) -> dict[str, str]:
    """The knobs in which runs of one decoder differ, or all that are set where none differs."""
    peers = [knobs(other) for other in runs if method(other) == method(run)]
    differing = {key: value for key, value in knobs(run).items() if len({peer.get(key) for peer in peers}) > 1}
    return differing or {key: value for key, value in knobs(run).items() if value != "null"}


def _short(value: object) -> str:
    """As on the command line, without blanks, because blanks separate the parts of a run's name; of a path its end, and
    of a long text its beginning and a digest."""
    text = "null" if value is None else one_line(str(value).replace(" ", ""))
    text = _end(text) if "/" in text else text
    return text if len(text) <= LETTERS else f"{text[:LETTERS]}...{crc32(text.encode()):08x}"


def curve_names(names: Sequence[str], runs: Sequence[Run]) -> list[str]:
    """Each run's name without its knobs. Runs of one curve differ in nothing else."""
    curves = []
    for name, run in zip(names, runs, strict=True):
        dropped = {f"{key}={value}" for key, value in shown_knobs(run, runs).items()}
        curves.append(" ".join(part for part in name.split() if part not in dropped))
    return curves


def places(curve_of: Sequence[K]) -> dict[K, list[int]]:
    """Places of each curve's runs."""
    return grouped(range(len(curve_of)), curve_of.__getitem__)
