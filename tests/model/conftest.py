"""The default model, loaded once for all tests that need knowledge."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv import Memory
from livingkv.models import LoadedModel, load_model

NOTES = Path(__file__).resolve().parents[2] / "examples" / "notes"


@pytest.fixture(scope="session")
def default_model() -> LoadedModel:
    """The default model in bf16 on the CPU. Taken over by livingkv: for tests that go through it."""
    return load_model(device="cpu")


@pytest.fixture(scope="session")
def notes_store(default_model: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the example notes. Only to be read."""
    path = tmp_path_factory.mktemp("notes") / "notes.lkv"
    with Memory.open(path, model=default_model) as memory:
        for note in sorted(NOTES.glob("*.md")):
            memory.ingest(note)
    return path
