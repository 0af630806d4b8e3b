"""Where the numbers of a record come from."""

import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any


def provenance() -> dict[str, Any]:
    """Where numbers come from: package versions, and the git commit where the code runs from a checkout."""
    here = Path(__file__).parent
    commit = _git(here, "rev-parse", "HEAD")
    changes = _git(here, "status", "--porcelain", "-uall") or ""
    return {
        "git": {"commit": commit, "dirty": is_dirty(changes)} if commit else None,
        "versions": {name: version(name) for name in ("dllm-parallelbench", "torch", "transformers")},
    }


def is_dirty(status: str) -> bool:
    """Whether code or settings differ from the commit, by git's short status with all untracked files. Untracked
    results, such as a report, change nothing."""
    return any(not line.startswith("??") or line.endswith((".py", ".yaml")) for line in status.splitlines())


def _git(folder: Path, *args: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
