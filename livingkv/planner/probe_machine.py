"""What the system says of this machine: cores and quota, memory and its limit, free disk and the kind of file system.

Reads files of /proc and /sys; knows Linux, measures nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")


def cores() -> float:
    """Processors that this process may use, cut by its quota of time."""
    n_cores = float(len(os.sched_getaffinity(0)))
    words = _first_line(_CGROUP / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]) > 0:
        return min(n_cores, int(words[0]) / int(words[1]))
    return n_cores


def memory_bytes() -> tuple[int, int]:
    """All memory that this process may have, and what of it is free. Raises OSError where the system does not tell."""
    lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    found: Mapping[str, int] = {
        line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines if len(line.split()) == 3
    }
    total, free = found["MemTotal"], found["MemAvailable"]
    limit, used = _first_line(_CGROUP / "memory.max"), _first_line(_CGROUP / "memory.current")
    if limit.isdigit():
        total = min(total, int(limit))
        free = min(free, max(0, total - int(used))) if used.isdigit() else min(free, total)
    return total, free


def free_disk_bytes(folder: Path) -> int:
    """What may be written there. Raises OSError."""
    return shutil.disk_usage(folder).free


def is_in_memory(folder: Path) -> bool:
    """Whether the folder's file system keeps its files in memory, so that reading them says nothing of a drive."""
    best, kind = -1, ""
    place = str(folder.resolve())
    for line in _lines(Path("/proc/self/mounts")):
        words = line.split()
        if (
            len(words) > 2
            and len(words[1]) > best
            and (place == words[1] or place.startswith(words[1].rstrip("/") + "/"))
        ):
            best, kind = len(words[1]), words[2]
    return kind in _IN_MEMORY


def _first_line(path: Path) -> str:
    return next(iter(_lines(path)), "")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
