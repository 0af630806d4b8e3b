"""Answers prompts with a causal LM, as data to train on: `parallelbench answer model.name_or_path=DIR prompts=FILE
out=FILE`.

A model that learns from its own answers relearns nothing: only how to write them changes. Answers that do not end
within `max_tokens` are left out. Killed, the same command resumes after the last complete batch.
"""

import json
import os
from pathlib import Path
from typing import Any, cast

import torch
from hydra.utils import instantiate
from omegaconf import DictConfig
from tqdm import tqdm
from transformers import GenerationConfig

from dllm.causal import CausalLM
from parallelbench.records.files import parse_json, read_bytes, replace_file, to_json


def answers(model: CausalLM, prompts: list[str], config: DictConfig) -> list[str | None]:
    """One answer a prompt, None where it did not end."""
    tokenizer, backbone = cast(Any, model.tokenizer), cast(Any, model.backbone)
    tokenizer.padding_side = "left"
    inputs = tokenizer.apply_chat_template(
        [[{"role": "user", "content": prompt}] for prompt in prompts],
        add_generation_prompt=True,
        padding=True,
        return_tensors="pt",
        return_dict=True,
    ).to(model.device)
    sampling = {"do_sample": True, "temperature": config.temperature, "top_p": config.top_p, "top_k": 0}
    settings = GenerationConfig(
        max_new_tokens=config.max_tokens,
        eos_token_id=list(model.eos_ids),
        pad_token_id=model.pad_id,
        **(sampling if config.temperature > 0 else {"do_sample": False}),
    )
    tokens = backbone.generate(**inputs, generation_config=settings)[:, inputs["input_ids"].shape[1] :].tolist()
    found: list[str | None] = []
    for row in tokens:
        end = next((i for i, token in enumerate(row) if token in model.eos_ids), None)
        found.append(None if end is None else tokenizer.decode(row[:end], skip_special_tokens=True))
    return found


def work(config: DictConfig) -> None:
    torch.set_num_threads(config.threads)
    write_answers(config)


def write_answers(config: DictConfig) -> None:
    """Raises ValueError for prompts that cannot be read, or a file that holds something else than their answers."""
    source, out, done = Path(config.prompts), Path(config.out), Path(f"{config.out}.done")
    if not source.is_file():
        raise ValueError(f"prompts={config.prompts} is not a file")
    rows = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()][: config.limit]
    if not rows or config.prompt not in rows[0]:
        raise ValueError(f"{source} has no column {config.prompt!r}; set prompt= to one of {sorted(rows[0])}")
    if out.exists() and not done.exists():
        raise ValueError(f"{out} is there and no {done.name} says what it holds; give another out=")
    model = instantiate(config.model, _convert_="all")
    out.parent.mkdir(parents=True, exist_ok=True)
    if not done.exists():
        replace_file(done, to_json({"prompts": 0, "bytes": 0}))
    state = parse_json(read_bytes(done))
    with open(out, "a", encoding="utf-8") as file:
        file.truncate(state["bytes"])  # what a killed run wrote after its last complete batch
        for start in tqdm(range(state["prompts"], len(rows), config.batch_size), desc="answers", unit="batch"):
            batch = [row[config.prompt] for row in rows[start : start + config.batch_size]]
            torch.manual_seed(config.seed * 1_000_003 + start)
            for prompt, answer in zip(batch, answers(model, batch, config), strict=True):
                if answer is not None:
                    file.write(json.dumps({"prompt": prompt, "answer": answer}) + "\n")
            file.flush()
            os.fsync(file.fileno())
            replace_file(done, to_json({"prompts": start + len(batch), "bytes": file.tell()}))
    print(out)
