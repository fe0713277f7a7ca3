"""How fast the drive under a folder is read past the page cache, by the size of reads.

A file is written for it and removed. Knows folders; what is measured is `livingkv.experts.drive_speed`.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from livingkv.errors import ExpertReadError, InputError
from livingkv.experts.drive_speed import SIZES, DriveSpeed, measure_drive
from livingkv.planner.probe_machine import free_disk_bytes, is_in_memory

_FILE_BYTES = 1 << 29
_BLOCK = 1 << 22
DEPTHS = (1, 8)


def drive_speeds(folder: Path, seconds_each: float, file_bytes: int | None = None) -> list[DriveSpeed]:
    """By size and depth. Leaves nothing behind. Raises InputError where it cannot be measured, and says why."""
    file_bytes = _FILE_BYTES if file_bytes is None else file_bytes
    try:
        if is_in_memory(folder):
            raise InputError("folder", folder, "its files are in memory: name one on the drive with --folder")
        if free_disk_bytes(folder) < 4 * file_bytes:
            raise InputError("folder", folder, f"{4 * file_bytes >> 20} MiB of free space are needed there")
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".livingkv-probe-") as file:
            for _ in range(file_bytes // _BLOCK):
                file.write(os.urandom(_BLOCK))  # a drive that compresses would be fast with anything else
            file.flush()
            os.fsync(file.fileno())
            return measure_drive([Path(file.name)], sizes=SIZES, depths=DEPTHS, seconds_each=seconds_each)
    except (OSError, ExpertReadError) as error:
        raise InputError(
            "folder", folder, f"it cannot be read or written ({getattr(error, 'strerror', None) or error})"
        ) from error
