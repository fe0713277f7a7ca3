"""Tiny checkpoints, each made once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.experts.tiny_moe import make_checkpoint

MadeOf = Callable[..., Path]


@pytest.fixture(scope="session")
def checkpoint_of(tmp_path_factory: pytest.TempPathFactory) -> MadeOf:
    """The folder of a family's tiny checkpoint. Not to be changed: tests that damage files copy it."""
    made: dict[tuple[str, torch.dtype], Path] = {}

    def find(family: str, dtype: torch.dtype = torch.float32) -> Path:
        if (family, dtype) not in made:
            made[family, dtype] = make_checkpoint(family, tmp_path_factory.mktemp(family), dtype=dtype)
        return made[family, dtype]

    return find
