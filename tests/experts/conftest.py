"""Tiny checkpoints, each made once for all tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from livingkv.experts import ExpertIndex, pack
from livingkv.experts.loading import FORMATS
from livingkv.experts.plan import plan_of
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


def index_of(folder: Path, device: str = "cpu") -> ExpertIndex:
    """The index of a checkpoint. Rows for a CPU lie as in the file where they can, so that they may be smaller."""
    return plan_of(folder, None, torch.device(device), FORMATS).index


class Packed(NamedTuple):
    """A checkpoint and its pack, both free to be damaged."""

    folder: Path
    pack: Path


@pytest.fixture
def packed(checkpoint_of: MadeOf, tmp_path: Path) -> Packed:
    """A copy of a tiny checkpoint, packed."""
    folder = tmp_path / "model"
    shutil.copytree(checkpoint_of("qwen3_moe"), folder)
    pack(index_of(folder), tmp_path / "pack")
    return Packed(folder, tmp_path / "pack")
