"""Tiny networks whose state is more than keys and values, each loaded once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.experts.tiny_moe import make_checkpoint, plain_network

FAMILIES = ("qwen3_next", "qwen4_exp_text", "deepseek_v4", "qwen3_moe")
NetworkOf = Callable[[str], Any]


@pytest.fixture(scope="session")
def checkpoint_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a family's tiny checkpoint. Not to be changed."""
    made: dict[str, Path] = {}

    def find(family: str) -> Path:
        if family not in made:
            made[family] = make_checkpoint(family, tmp_path_factory.mktemp(family))
        return made[family]

    return find


@pytest.fixture(scope="session")
def network_of(checkpoint_folder: Callable[[str], Path]) -> NetworkOf:
    """A family's tiny network, eager. Not to be changed."""
    made: dict[str, Any] = {}

    def find(family: str) -> Any:
        if family not in made:
            made[family] = plain_network(checkpoint_folder(family))
        return made[family]

    return find
