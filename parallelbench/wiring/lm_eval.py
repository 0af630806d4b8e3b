"""lm-evaluation-harness with this project's loop: a dLLM, decoder, cache and stop rule as one of its models.

`generate_until` decodes with `decoders.decode`; the text ends at the first of a task's stop strings, and only tokens
up to there count. `loglikelihood` is the Monte Carlo bound of masked diffusion (LLaDA, arXiv 2502.09992), which is what
published multiple-choice numbers of dLLMs are made with: compare them with each other, not with exact likelihoods of
autoregressive models.
"""

import json
import os
import sys
import zlib
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, cast

import hydra
import numpy as np
import torch
from lm_eval.__main__ import cli_evaluate  # pyright: ignore[reportMissingImports]
from lm_eval.api.instance import Instance  # pyright: ignore[reportMissingImports]
from lm_eval.api.model import LM  # pyright: ignore[reportMissingImports]
from lm_eval.api.registry import register_model  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F
from tqdm import tqdm

from decoders import NO_CACHE, Decoder, FixedK, Generation, Never, decode
from decoders.generate import describe, encode
from dllm.model import DiffusionLM
from dllm.text import render_chat
from parallelbench.records.files import append, to_json
from parallelbench.run.generator import DiffusionGenerator
from parallelbench.run.measure import timed
from parallelbench.stats.intervals import Value, product
from parallelbench.wiring.conf import CONF, in_one_sentence
from parallelbench.wiring.config import build_generator

NAME = "dllm"
MAX_GEN_TOKS = 256  # where neither task nor user says, as in the harness's own models
IGNORED = ("do_sample", "temperature", "top_p", "top_k", "num_beams")  # of greedy tasks; decoding is the decoder's


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
    samples per likelihood. costs: JSONL file that gets a `Cost` per answer; it must not exist.
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
        self.generator, self.model = generator, generator.model
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
        return render_chat(tokenizer, self.model.name, chat_history, **how)

    def get_model_info(self) -> dict[str, Any]:
        """What the harness writes beside its results: the model, and costs with their 95 % intervals."""
        return {"dllm": {**self.generator.describe(), "answers": len(self.costs), **summarize(self.costs)}}

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answers in the order of the requests. Raises ValueError for generation arguments that it cannot honour."""
        jobs = [(i, self._gen_len(_pair(request)[1])) for i, request in enumerate(requests)]
        prompts = [encode(self.model, _pair(request)[0], i) for i, request in enumerate(requests)]
        jobs.sort(key=lambda job: (job[1], len(prompts[job[0]])))
        texts = [""] * len(requests)
        with tqdm(total=len(jobs), desc="generate", disable=disable_tqdm) as bar:
            queue, gen_lens = [prompts[i] for i, _ in jobs], [gen_len for _, gen_len in jobs]
            for ended in timed(lambda: self.generator.turns(queue, gen_lens, self.batch_size), len(jobs)):
                for one, generation in zip(ended, describe(self.model, [one.result for one in ended]), strict=True):
                    i, _ = jobs[one.place]
                    texts[i], num_tokens = self._until(generation, _pair(requests[i])[1])
                    self._log(requests[i], generation, num_tokens, one.latency_s)
                    self.cache_hook.add_partial("generate_until", requests[i].args, texts[i])
                bar.update(len(ended))
        return texts

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """A lower bound of log p(continuation | context) each, and whether decoding one token per forward gives the
        continuation. Raises ValueError for block-causal models, whose bound is another one."""
        if self.model.spec.block is not None:
            raise ValueError(
                f"{self.model.name!r} generates block by block, for which likelihoods are not implemented; "
                "choose tasks of type generate_until"
            )
        answers = []
        for request in tqdm(requests, desc="loglikelihood", disable=disable_tqdm):
            context, target = self._encode_pair(*_pair(request))
            bound = elbo(self.model, context, target, self.num_samples, self.batch_size, self.generator.seed)
            answers.append((bound, self._is_greedy(context, target)))
            self.cache_hook.add_partial("loglikelihood", request.args, answers[-1])
        return answers

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        raise NotImplementedError(
            "perplexities of whole texts (loglikelihood_rolling) are not implemented for diffusion models; "
            "choose tasks of type generate_until, loglikelihood or multiple_choice"
        )

    def _gen_len(self, arguments: Mapping[str, Any]) -> int:
        unknown = [key for key in arguments if key not in ("until", "max_gen_toks", *IGNORED)]
        if unknown:
            raise ValueError(f"generation arguments {', '.join(unknown)} mean nothing here; leave them out")
        if arguments.get("do_sample") or (arguments.get("temperature") or 0) > 0:
            raise ValueError("the decoder samples, not the task; put decoder.temperature=... into --model_args")
        wanted = self.gen_len or int(arguments.get("max_gen_toks") or MAX_GEN_TOKS)
        block = self.generator.block_len or wanted
        return -(-wanted // block) * block

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
        ids = encode(self.model, stripped)
        whole = encode(self.model, context + continuation)
        if len(whole) <= len(ids):
            raise ValueError(f"the continuation {continuation!r} has no tokens of its own")
        return ids, whole[len(ids) :]

    def _is_greedy(self, context: Sequence[int], target: Sequence[int]) -> bool:
        (row,) = decode(
            self.model,
            [context],
            gen_len=len(target),
            block_len=len(target),
            decoder=Decoder(FixedK(1)),
            cache=NO_CACHE,
            stop=Never(),
            device=self.model.device,
        )
        return row.token_ids == list(target)


register_model(NAME)(DllmLM)


def _pair(request: Instance) -> tuple[str, Any]:
    """The context, and the generation arguments or the continuation."""
    return cast(tuple[str, Any], request.args)


@torch.inference_mode()
def elbo(
    model: DiffusionLM, context: Sequence[int], target: Sequence[int], samples: int, batch_size: int, seed: int
) -> float:
    """Monte Carlo estimate of a lower bound of log p(target | context) in nats, exact for one token.

    E over k uniform in 1..L and over the k of L target tokens that are masked of -(L / k) sum of their cross-entropies
    (as LLaDA's evaluation does). The samples' k are spread evenly.
    """
    length = len(target)
    rng = torch.Generator().manual_seed(zlib.crc32(repr((seed, list(context), list(target))).encode()))
    samples = samples if length > 1 else 1
    first = torch.randint(length, (1,), generator=rng)
    num_masked = (first + torch.arange(samples) * length // samples) % length + 1
    clean = torch.tensor([*context, *target], device=model.device)
    total = 0.0
    for counts in num_masked.split(batch_size):
        order = torch.rand(len(counts), length, generator=rng).argsort(1).argsort(1)
        masked = (order < counts[:, None]).to(model.device)
        noisy = clean.repeat(len(counts), 1)
        noisy[:, len(context) :].masked_fill_(masked, model.spec.mask_id)
        logits = model.full_logits(noisy, torch.full((len(counts),), len(context), device=model.device))
        loss = F.cross_entropy(
            logits[:, len(context) :][masked].float(),
            clean[len(context) :].expand(len(counts), -1)[masked],
            reduction="none",
        )
        total -= float((loss * (length / counts.to(model.device))[:, None].expand_as(masked)[masked]).sum())
    return total / samples


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
    model = [] if "--model" in arguments or "--model_args" not in arguments else ["--model", NAME]
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
    known = (CONF / "model" / f"{name}.yaml").exists()
    overrides = [f"model={name}"] if known else ["model=local", f"model.name_or_path={json.dumps(str(name))}"]
    overrides += [f"batch_size={batch_size}"] if batch_size else []
    overrides += ["gen_length=null", *(f"{key}={json.dumps(value)}" for key, value in options.items())]
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
    }
