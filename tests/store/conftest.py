"""Fixtures of the store's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.in_memory import folder_in_memory
from tests.in_memory import tmp_path as tmp_path


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder, in memory where that is possible: these tests sync a lot."""
    with folder_in_memory() as made:
        yield made
