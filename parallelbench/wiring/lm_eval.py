"""lm-evaluation-harness with this project's loop: a dLLM, decoder, cache and stop rule as one of its models.

`generate_until` decodes with `decoders.decode`; the text ends at the first of a task's stop strings, and only tokens
up to there count. `loglikelihood` is the Monte Carlo bound of masked diffusion (LLaDA, arXiv 2502.09992), which is what
published multiple-choice numbers of dLLMs are made with: compare them with each other, not with exact likelihoods of
autoregressive models.
"""

import json
import os
import sys
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import hydra
import numpy as np
from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from tqdm import tqdm

from decoders import Generation
from decoders.filters import Temperature, TopK, TopP
from decoders.generation import describe, encode
from decoders.noise import numbered
from dllm.model import DiffusionLM
from dllm.text import encode_piece, render_chat
from parallelbench.methods.likelihood import elbo, is_greedy
from parallelbench.records.files import append, to_json
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.run.job import Held
from parallelbench.run.measure import timed
from parallelbench.stats.intervals import Value, product
from parallelbench.wiring.catalogue import CONF
from parallelbench.wiring.conf import in_one_sentence
from parallelbench.wiring.config import build_generator, constraint_in
from parallelbench.wiring.overrides import check_overrides

NAME = "dllm"
MAX_GEN_TOKS = 256  # where neither task nor user says, as in the harness's own models
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens")  # names of one thing
SAMPLING = ("do_sample", "temperature", "top_p", "top_k")
CONFIGURED = "dllm configuration"  # the key in a cache of answers that says whose they are


@dataclass(frozen=True)
class Cost:
    """What one generated answer cost. num_tokens: up to the stop string or EOS. seconds: of its forwards, which it
    shared with up to batch_size - 1 others."""

    task: str
    doc_id: int
    num_tokens: int
    nfe: int
    tokens_per_forward: float
    queried: int
    columns: int
    stopped_by: str
    seconds: float
    batch_size: int


class DllmLM(LM):
    """A model of the harness.

    gen_len: tokens of an answer, None for each task's max_gen_toks (rounded up to whole blocks). samples: Monte Carlo
    samples per likelihood. costs: JSONL file that gets a `Cost` per answer; it must not exist. constraint: what
    generated answers are held to, before their stop strings cut them.
    """

    build: ClassVar[Callable[[Mapping[str, Any]], "DllmLM"]]  # of --model_args; `main` sets it

    def __init__(
        self,
        generator: DiffusionGenerator,
        *,
        gen_len: int | None = None,
        batch_size: int = 16,
        samples: int = 128,
        costs: Path | None = None,
        constraint: Held = None,
    ) -> None:
        super().__init__()
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise ValueError("lm_eval runs in one process here; start it without torchrun or accelerate launch")
        if batch_size < 1 or samples < 1:
            raise ValueError(f"batch_size={batch_size} and samples={samples}; give at least 1 of each")
        if costs is not None and costs.exists():
            raise ValueError(f"{costs} exists; choose another file for costs")
        if not isinstance(generator.model, DiffusionLM):
            raise ValueError(f"lm_eval needs a DiffusionLM, and {generator.model.name!r} is another kind of model")
        if constraint == "task":
            raise ValueError(
                "constraint=task is for tasks of this benchmark; give constraint.regex or another of its keys"
            )
        self.generator, self.model, self.constraint = generator, generator.model, constraint
        self.gen_len, self.batch_size, self.num_samples = gen_len, batch_size, samples
        self.costs_file, self.costs = costs, cast(list[Cost], [])

    @classmethod
    def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> "DllmLM":
        """What the harness calls with --model_args, and with its own --batch_size and --device where given."""
        return cls.build({**(additional_config or {}), **arg_dict})

    @property
    def tokenizer_name(self) -> str:
        return self.model.name

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        assert self.model.tokenizer is not None
        return cast(str | None, self.model.tokenizer.chat_template)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Messages as text. Raises ValueError for a tokenizer without a template."""
        tokenizer = self.model.tokenizer
        if tokenizer is None or tokenizer.chat_template is None:
            raise ValueError(f"model {self.model.name!r} has no chat template; leave out --apply_chat_template")
        given = not add_generation_prompt  # the answer's beginning
        how = {"add_generation_prompt": add_generation_prompt, "continue_final_message": given}
        return render_chat(tokenizer, self.model.name, chat_history, None, **how)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes next to its results: the model, and costs with their 95 % intervals."""
        return {"dllm": {**self.generator.describe(), "answers": len(self.costs), **summarize(self.costs)}}

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests; equal ones of a task get different samples. Raises ValueError for
        generation arguments that it cannot honour."""
        gen_lens = [self._gen_len(_pair(request)[1]) for request in requests]
        prompts = [self._encode(_pair(request)[0]) for request in requests]
        draws = numbered((request.task_name, _pair(request)[0]) for request in requests)
        groups: dict[Any, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(self._sampling(_pair(request)[1]), []).append(i)
        generators = {sampling: self._sampled(sampling) for sampling in groups}  # all may be refused before the first
        texts = [""] * len(requests)
        with tqdm(total=len(requests), desc="generate", disable=disable_tqdm) as bar:
            for sampling, group in groups.items():
                jobs = sorted(group, key=lambda i: (gen_lens[i], len(prompts[i])))
                queue = [[values[i] for i in jobs] for values in (prompts, gen_lens, draws)]
                held = {"draws": queue[2], "constraints": [self.constraint] * len(jobs)}
                turns = partial(generators[sampling].turns, *queue[:2], self.batch_size, **held)
                for ended in timed(turns, len(jobs)):
                    for one, generation in zip(ended, describe(self.model, [one.result for one in ended]), strict=True):
                        i = jobs[one.place]
                        texts[i], num_tokens = self._until(generation, _pair(requests[i])[1])
                        self._log(requests[i], generation, num_tokens, one.latency_s)
                        self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                    bar.update(len(ended))
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """A lower bound of log p(continuation | context) each, and whether decoding one token per forward gives the
        continuation. An empty one is certain. Raises ValueError for block-causal models, whose bound is another one."""
        if self.model.spec.block is not None:
            raise ValueError(
                f"{self.model.name!r} generates block by block, for which likelihoods are not implemented; "
                "choose tasks of type generate_until"
            )
        answers = []
        for request in tqdm(requests, desc="loglikelihood", disable=disable_tqdm):
            context, target = self._encode_pair(*_pair(request))
            how = (self.num_samples, self.batch_size, self.generator.seed)
            bound = elbo(self.model, context, target, *how) if target else 0.0
            answer = (bound, not target or is_greedy(self.model, context, target))
            answers.append(answer)
            self.cache_hook.add_partial("loglikelihood", request.args, answers[-1])
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError(
            "perplexities of whole texts (loglikelihood_rolling) are not implemented for diffusion models; "
            "choose tasks of type generate_until, loglikelihood or multiple_choice"
        )

    def _gen_len(self, arguments: Mapping[str, Any]) -> int:
        known = ("until", *LENGTHS, *SAMPLING, *(["num_beams"] if arguments.get("num_beams") in (None, 1) else []))
        if unknown := [f"{key}={value}" for key, value in arguments.items() if key not in known]:
            raise ValueError(f"generation arguments {', '.join(unknown)} mean nothing here; leave them out")
        lengths = {int(arguments[key]) for key in LENGTHS if arguments.get(key)} or {MAX_GEN_TOKS}
        if len(lengths) > 1 and not self.gen_len:
            raise ValueError(f"generation arguments name the lengths {sorted(lengths)}; leave one of {LENGTHS}")
        wanted = self.gen_len or lengths.pop()
        block = self.generator.block_len or wanted
        return -(-wanted // block) * block

    def _sampling(self, arguments: Mapping[str, Any]) -> tuple[float, int, float] | None:
        """Temperature, top_k and top_p of a request that samples (0 and 1: all). None: what the decoder itself says,
        as always where it has a temperature."""
        temperature, do_sample = float(arguments.get("temperature") or 0), arguments.get("do_sample")
        if not (temperature > 0 if do_sample is None else do_sample) or self.generator.decoder.temperature > 0:
            return None
        if not temperature:
            raise ValueError(
                "the task says do_sample=true and no temperature; put decoder.temperature=... into --model_args, or "
                "--gen_kwargs do_sample=false"
            )
        return temperature, max(int(arguments.get("top_k") or 0), 0), float(arguments.get("top_p") or 1)

    def _sampled(self, sampling: tuple[float, int, float] | None) -> DiffusionGenerator:
        if sampling is None:
            return self.generator
        (temperature, top_k, top_p), decoder = sampling, self.generator.decoder
        if top_k == 0 and top_p == 1:
            return replace(self.generator, decoder=replace(decoder, temperature=temperature))
        kept = [*([TopK(top_k)] if top_k else []), *([TopP(top_p)] if top_p < 1 else [])]
        transforms = [*decoder.transforms, Temperature(temperature), *kept]  # the nucleus is of tempered probabilities
        return replace(self.generator, decoder=replace(decoder, temperature=1.0, transforms=transforms))

    def _encode(self, context: str) -> list[int]:
        """Token ids of a context. An empty one is the token that texts begin with, as in the harness's own models."""
        if context:
            return encode(self.model, context)
        bos = getattr(self.model.tokenizer, "bos_token_id", None)
        return [self.model.spec.eos_ids[0] if bos is None else bos]

    def set_cache_hook(self, cache_hook: Any) -> None:
        """Raises ValueError for a cache of answers by another model or decoder, which the harness does not tell."""
        super().set_cache_hook(cache_hook)
        if (cached := cache_hook.dbdict) is None:
            return
        generator = self.generator
        parts = (generator.decoder, generator.cache, generator.stop, generator.block_len, generator.seed)
        own = repr(
            (generator.fingerprint(), *parts, generator.template, self.gen_len, self.num_samples, self.constraint)
        )
        if len(cached) and cached.get(CONFIGURED) != own:
            raise ValueError("--use_cache has answers of another model or decoder; give each its own file")
        if generator.decoder.temperature > 0:
            raise ValueError("--use_cache keeps one answer per prompt, and this decoder samples; leave --use_cache out")
        cached[CONFIGURED] = own

    def _until(self, generation: Generation, arguments: Mapping[str, Any]) -> tuple[str, int]:
        """The text before the first stop string, and how many tokens it takes."""
        until = arguments.get("until") or []
        stops = [stop for stop in ([until] if isinstance(until, str) else until) if stop]
        ends = [end for stop in stops if (end := generation.text.find(stop)) >= 0]
        if not ends:
            return generation.text, generation.num_tokens
        tokenizer, ids = self.model.tokenizer, generation.token_ids
        assert tokenizer is not None
        written = range(len(ids) + 1)
        return generation.text[: min(ends)], bisect_left(
            written, min(ends), key=lambda n: len(cast(str, tokenizer.decode(ids[:n])))
        )

    def _log(self, request: Instance, generation: Generation, num_tokens: int, seconds: float) -> None:
        nfe = generation.nfe
        cost = Cost(
            str(request.task_name),
            int(request.doc_id or 0),
            num_tokens,
            nfe,
            num_tokens / nfe,
            generation.queried,
            len(generation.committed_at),
            generation.stopped_by,
            seconds,
            self.batch_size,
        )
        self.costs.append(cost)
        if self.costs_file is not None:
            append(self.costs_file, to_json(asdict(cost)) + "\n")

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Token ids of context and continuation, as they are when written together; the space between them belongs to
        the continuation."""
        stripped = context.rstrip(" ")
        ids = self._encode(stripped)
        if not stripped:
            return ids, encode_piece(self.model, context + continuation)
        whole = encode(self.model, context + continuation)
        if continuation and len(whole) <= len(ids):
            raise ValueError(f"the continuation {continuation!r} has no tokens of its own")
        return ids, whole[len(ids) :] if continuation else []


register_model(NAME)(DllmLM)


def _pair(request: Instance) -> tuple[str, Any]:
    """The context, and the generation arguments or the continuation."""
    return cast(tuple[str, Any], request.args)


def summarize(costs: Sequence[Cost]) -> dict[str, Any]:
    """Tokens per forward and forwards per answer with their 95 % intervals."""
    if not costs:
        return {}
    numbers = np.array([(cost.num_tokens, cost.nfe) for cost in costs], dtype=float).T
    tasks, nfe = np.array([cost.task for cost in costs]), numbers[1]
    slow = np.array([numbers[0].mean(), max(nfe.max(), *(cost.columns for cost in costs))])
    unseen = (slow if np.ptp(nfe) else numbers.mean(1))[None]  # of a fixed number of forwards there are no others
    values = {"tpf": product(numbers, (1, -1), tasks, unseen), "nfe": product(numbers[1:], (1,), tasks, unseen[:, 1:])}
    return {name: asdict(value) for name, value in values.items()}


def main(arguments: Sequence[str]) -> None:
    """The harness's own command line with the model `dllm`, made of --model_args; prints what the answers cost at the
    end."""
    made: list[DllmLM] = []

    def keep(given: Mapping[str, Any]) -> DllmLM:
        made.append(DllmLM(**_options(given)))
        return made[-1]

    DllmLM.build = staticmethod(keep)
    given = {argument.split("=")[0] for argument in arguments}
    model = [] if given & {"--model", "-M"} or not given & {"--tasks", "-t"} else ["--model", NAME]
    model += [] if given & {"--model_args", "-a"} or not model else ["--model_args", "pretrained=tiny"]
    sys.argv = ["lm_eval", *arguments, *model]
    try:
        cli_evaluate()
    except NotImplementedError as error:
        raise ValueError(str(error)) from error
    for lm in made:
        for name, value in summarize(lm.costs).items():
            print(f"{name} {Value(**value).text('.3f')}, n {value['n']}")


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of DllmLM from lm_eval's --model_args: pretrained (an option of conf/model, a path or a hub id),
    samples, costs, and what `run` takes."""
    options = {"pretrained": "tiny", "batch_size": None, "samples": 128, "costs": None, **given}
    name, batch_size, samples, costs = (options.pop(key) for key in ("pretrained", "batch_size", "samples", "costs"))
    for key in ("device", "max_batch_size"):  # the harness always gives them; here model.device says it
        options.pop(key, None)
    if "dtype" in options:
        raise ValueError(f"dtype={options['dtype']} in --model_args; write model.dtype={options['dtype']}")
    known = (CONF / "model" / f"{name}.yaml").exists()
    overrides = [f"model={name}"] if known else ["model=local", f"model.name_or_path={json.dumps(str(name))}"]
    overrides += [f"batch_size={batch_size}"] if batch_size else []
    overrides += ["gen_length=null", *(f"{key}={json.dumps(value)}" for key, value in options.items())]
    check_overrides(overrides, sweeps=False)
    with in_one_sentence():
        with hydra.initialize_config_dir(str(CONF), version_base=None):
            config = hydra.compose("run", overrides)
        generator = build_generator(config)
    if not isinstance(generator, DiffusionGenerator):
        raise ValueError(
            f"pretrained={name} with these arguments is no diffusion model and decoder, as lm_eval needs here"
        )
    return {
        "generator": generator,
        "gen_len": config.gen_length,
        "batch_size": config.batch_size,
        "samples": samples,
        "costs": costs and Path(costs),
        "constraint": constraint_in(config),
    }
