"""Folders in memory, for tests that sync a lot and are not about a disk: a real one makes them wait."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def folder_in_memory() -> Iterator[Path]:
    """An empty folder until the block ends, in memory where that is possible."""
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """pytest's empty folder, in memory unless the test is a slow one: those are left on a real disk."""
    if request.node.get_closest_marker("slow") or request.node.get_closest_marker("model"):
        yield tmp_path
    else:
        with folder_in_memory() as folder:
            yield folder
