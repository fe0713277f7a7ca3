"""Damage to the files of a store, as a bad disk would do it."""

from __future__ import annotations

from pathlib import Path

LOG_SEGMENT, PAGES_SEGMENT = 1, 2
"""The first segments of a store that is made by `filled_store`."""


def segment(root: Path, number: int) -> Path:
    """A segment's file."""
    return root / "segments" / f"{number:08d}.seg"


def flip(path: Path, bit: int) -> None:
    """Flip one bit of a file."""
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(data))
