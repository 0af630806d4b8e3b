"""Records decodes of training prompts: `parallelbench collect_traces model=tiny decoder=oracle out_dir=...`.

Prompts come from the benchmark's own generators at training seeds, or from any file or data set (conf/data; data=rows
data.answer=null for prompts alone). Each is decoded with one token per forward first, then with the decoder;
`decoders/traces.py` says what is kept. Killed, the same command resumes.
"""

from pathlib import Path
from typing import Any, cast

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf
from tqdm import trange

from decoders import Decoder
from decoders.loop import ONE_TOKEN, decode
from decoders.traces import Recorder, open_traces, read_references, shard_path, step_bytes, write_shard
from dllm.training.start import start_from
from dllm.validation import Count, Number, check_named
from parallelbench.run.generator import DiffusionGenerator, make_generator
from parallelbench.training.sources import RowStream


class Settings:
    """The plain keys of conf/collect_traces.yaml that are numbers."""

    limit: Count
    seed: Number
    gen_length: Count
    block_length: Count
    max_mb: Number


def collect(config: DictConfig) -> Path:
    """Writes what is missing and returns the folder. Raises ValueError for settings that do not fit."""
    plain = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    check_named(Settings, {name: plain[name] for name in Settings.__annotations__})
    bound = config.limit * config.gen_length * step_bytes(config.block_length) / 1e6
    if bound > config.max_mb:
        raise ValueError(
            f"limit={config.limit} prompts may take {bound:.0f} MB; lower it or raise max_mb={config.max_mb}"
        )
    decoder, cache, stop, data = (
        instantiate(config[group], _convert_="all") for group in ("decoder", "cache", "stop", "data")
    )
    if not isinstance(decoder, Decoder):
        raise ValueError(
            f"decoder={type(decoder).__name__} has a loop of its own, whose steps are not recorded; use one of the "
            "denoising loop, such as decoder=threshold"
        )
    model: Any
    if config.init is None:
        model = instantiate(config.model, _convert_="all")
    else:
        model = start_from(config.init, spec=config.spec, causal=False, device="auto")
    generator = make_generator(model, decoder, cache=cache, stop=stop, block_len=config.block_length, seed=config.seed)
    assert isinstance(generator, DiffusionGenerator)
    stream = data.open(model.tokenizer)
    num_shards = -(-config.limit // data.batch_size)
    count = num_shards * data.batch_size
    if isinstance(stream, RowStream):  # each row once, as `suite=prompts` does; other data are drawn without end
        count = min(count, len(stream.train))
        num_shards = -(-count // data.batch_size)
    settings = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
    about = {
        "model": model.name,
        "weights": DiffusionGenerator(model, ONE_TOKEN, cache, stop).fingerprint(),
        "decoder_weights": decoder.identity,
        **{key: settings[key] for key in ("decoder", "cache", "stop", "data", "gen_length", "block_length", "seed")},
        "batch_size": data.batch_size,
        "num_shards": num_shards,
    }
    folder = Path(config.out_dir)
    parts = {"gen_len": config.gen_length, "block_len": config.block_length, "cache": cache, "stop": stop}
    shared = {**parts, "seed": config.seed, "device": generator.model.device}
    decoder.check_window(config.block_length)
    open_traces(folder, about)
    print(f"{folder}: {count} prompts{', all that there are' if count < config.limit else ''}")
    for number in trange(num_shards, desc="traces", unit="batch"):
        path = shard_path(folder, number)
        if path.exists():
            continue
        batch, recorder = stream.batch(number), Recorder()
        prompts = [row[:n].tolist() for row, n in zip(batch.canvas, batch.prompt_len, strict=True)]
        prompts = prompts[: count - number * data.batch_size]
        if config.references is None:
            reference = [row.token_ids for row in decode(model, prompts, decoder=ONE_TOKEN, **shared)]
        else:
            reference = read_references(Path(config.references), number, about)
        rows = decode(model, prompts, decoder=decoder, reference=reference, on_step=recorder, **shared)
        write_shard(path, recorder.shard([row.token_ids for row in rows], reference, config.gen_length))
    return folder


def work(config: DictConfig) -> None:
    print(collect(config))
