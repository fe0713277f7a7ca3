"""What a result must say of the circumstances it was made in: machine, versions, commit. Names no host and no user."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def circumstances() -> dict[str, Any]:
    """Commit, machine and versions, for JSON. LIVINGKV_COMMIT names the commit that lies here unchanged where git does
    not know it, as in a copy of a checkout. Imports torch to ask for a GPU."""
    import torch

    copied = os.environ.get("LIVINGKV_COMMIT")

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "commit": copied or _git("rev-parse", "--verify", "--quiet", "HEAD") or None,
        "uncommitted_changes": not copied and bool(_git("status", "--porcelain", "--untracked-files=no")),
        "cpu": _first_field("/proc/cpuinfo", "model name") or platform.processor(),
        "n_cores": len(os.sched_getaffinity(0)),
        "memory": _first_field("/proc/meminfo", "MemTotal"),
        "gpus": gpus,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in ("torch", "transformers", "tantivy", "numpy")},
    }


def peak_memory_bytes() -> int | None:
    """The largest resident size that this process ever had (VmHWM), None where the system does not tell."""
    value = _first_field("/proc/self/status", "VmHWM")
    return None if value is None else 1024 * int(value.split()[0])


def memory_bytes() -> int:
    """The resident size of this process at this moment (VmRSS). Linux only."""
    value = _first_field("/proc/self/status", "VmRSS")
    assert value is not None, "/proc tells nothing"
    return 1024 * int(value.split()[0])


def write_json(path: Path, document: Any) -> None:
    """Replaces the file by the document, all or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(path.suffix + ".new")
    temporary.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", "utf-8")
    temporary.replace(path)


def _version(name: str) -> str | None:
    """A package's version; None where it is not installed, which an experiment that does not use it need not mind."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def _first_field(file: str, name: str) -> str | None:
    """The value of the first "name: value" line of a file of /proc."""
    try:
        lines = Path(file).read_text("utf-8").splitlines()
    except OSError:
        return None
    found = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == name)
    return next(found, None)
