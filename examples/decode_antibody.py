"""An antibody from nothing: a published BERT of antibody sequences, decoded in parallel from all [MASK].

    pip download --no-deps antiberty==0.1.3
    python examples/decode_antibody.py antiberty-0.1.3-py3-none-any.whl [start=EVQL] [length=118] [rule=fixed] [k=2]
        [tau=0.9] [temperature=0] [seed=0] [folder=FOLDER]

AntiBERTy (Ruffolo et al., arXiv 2112.07782; weights under the MIT licence) was trained to fill in 15 % of a sequence
and never to generate. The path is the wheel or its unpacked folder. Its checkpoint is converted once, to `folder`. rule
is fixed (the k surest amino acids a step) or threshold (all above probability tau). With nothing given it writes the
variable domain of a lambda light chain; start=EVQL asks for a heavy chain.
"""

import io
import json
import sys
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import dllm
from decoders import Decoder, FixedK, Threshold, generate

KEPT = ("bert.embeddings.", "bert.encoder.", "cls.predictions.")  # not its heads for species, chain and graft


def convert(source: Path, folder: Path) -> None:
    """Writes the wheel's (or its unpacked folder's) checkpoint as a stock BERT: config, safetensors, tokenizer."""
    root = source if source.is_dir() else zipfile.Path(source)
    home = root / "antiberty" / "trained_models"
    config = json.loads((home / "AntiBERTy_md_smooth" / "config.json").read_text())
    pickled = (home / "AntiBERTy_md_smooth" / "pytorch_model.bin").read_bytes()
    # weights_only: an unpickler that knows tensors and plain containers, and runs no code of the file's
    weights = torch.load(io.BytesIO(pickled), map_location="cpu", weights_only=True)
    kept = {name: tensor.contiguous() for name, tensor in weights.items() if name.startswith(KEPT)}
    kept.pop("bert.embeddings.position_ids", None)
    kept.pop("cls.predictions.decoder.weight", None)  # tied to the embeddings
    kept.pop("cls.predictions.decoder.bias", None)  # tied to cls.predictions.bias
    vocab = {token: i for i, token in enumerate((home / "vocab.txt").read_text().split())}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    folder.mkdir(parents=True, exist_ok=True)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config | {"architectures": ["BertForMaskedLM"]}, indent=2))


def main() -> None:
    options = {"start": "", "length": "118", "rule": "fixed", "k": "2", "tau": "0.9"}
    options |= {"temperature": "0", "seed": "0", "folder": ""}
    given = dict(argument.partition("=")[::2] for argument in sys.argv[2:])
    if len(sys.argv) < 2 or not given.keys() <= options.keys():
        print(f"usage: decode_antibody.py WHEEL_OR_FOLDER, then any of {' '.join(f'{o}=' for o in options)}")
        raise SystemExit(2)
    source, options = Path(sys.argv[1]), options | given
    folder = Path(options["folder"] or source.parent / "antiberty-safetensors")
    if not (folder / "model.safetensors").exists():
        convert(source, folder)
    model = dllm.load(folder, device="auto")
    assert model.tokenizer is not None
    rule = FixedK(int(options["k"])) if options["rule"] == "fixed" else Threshold(float(options["tau"]))
    decoder = Decoder(rule, temperature=float(options["temperature"]))
    prompt = model.tokenizer.convert_tokens_to_ids(["[CLS]", *options["start"]])
    left = int(options["length"]) - len(options["start"])
    (row,) = generate(model, [prompt], decoder=decoder, gen_len=left, block_len=left, seed=int(options["seed"]))
    print(options["start"] + row.text.replace(" ", ""))
    print(f"{len(row.token_ids)} tokens, NFE {row.nfe}, {row.tokens_per_forward:.2f} tokens per forward")


if __name__ == "__main__":
    main()
