"""Fixtures of the tiers' tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty folder on a real disk: in memory nothing could be read directly."""
    return tmp_path
