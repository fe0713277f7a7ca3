"""How many threads PyTorch computes with on a CPU: one for each core that this process may use.

Knows what the system says of cores and quotas; knows no model. PyTorch itself counts neither a container's quota nor
that two threads of one core share its arithmetic; threads beyond that wait for each other in every product.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Set
from pathlib import Path

import torch

from livingkv.errors import InputError

VARIABLE = "LIVINGKV_THREADS"
_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_TOPOLOGY = Path("/sys/devices/system/cpu")


def use_threads(environment: Mapping[str, str] = os.environ) -> None:
    """Have PyTorch use as many threads as LIVINGKV_THREADS says, else as OMP_NUM_THREADS, which it knows itself, else
    one for each core within the quota. Process-wide. Raises InputError for no number from 1 to 1024."""
    asked = environment.get(VARIABLE)
    if asked is not None:
        if not (re.fullmatch("[0-9]{1,9}", asked) and 1 <= int(asked) <= 1024):
            raise InputError(VARIABLE, repr(asked[:40]), "a whole number from 1 to 1024 is allowed")
        wanted = int(asked)
    elif "OMP_NUM_THREADS" in environment:
        return
    else:
        wanted = usable_cores(_usable_processors(), _TOPOLOGY, _QUOTA)
    if wanted != torch.get_num_threads():
        torch.set_num_threads(wanted)


def usable_cores(processors: Set[int], topology: Path, quota: Path) -> int:
    """Cores that the processors belong to, by the system's `topology`, or fewer where the `quota` of the process group
    allows less time. What cannot be read counts as one core for each processor, and as no quota."""
    n_cores = len({_core(topology / f"cpu{number}" / "topology", number) for number in processors})
    return max(1, min(n_cores, _whole_processors(quota) or n_cores))


def _usable_processors() -> Set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core(folder: Path, number: int) -> str:
    try:
        names = ("physical_package_id", "core_id")
        return ":".join((folder / name).read_text("ascii").strip() for name in names)
    except OSError:
        return f"processor {number}"


def _whole_processors(quota: Path) -> int | None:
    """Whole processors that "microseconds per period" comes to, at least 1; None where there is no limit."""
    try:
        limit, period = quota.read_text("ascii").split()
        return max(1, int(limit) // int(period))
    except (OSError, ValueError, ZeroDivisionError):  # "max 100000" is no number: there is no limit
        return None
