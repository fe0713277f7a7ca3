"""Stores that grow, and what is timed over them, with a tiny model."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from experiments.growing_store import SESSION, GrowingStore, folder_bytes
from experiments.timed_asks import Decoding, first_token_seconds
from livingkv import Memory
from livingkv.models import LoadedModel, load_model
from livingkv.results import Mode

SENTENCES = (f"Sentence {i} says that the returned value of call {i * 7} is a list of {i % 13} words." for i in count())
QUESTION = "Which word describes the returned value?"


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> LoadedModel:
    return load_model(tiny_folder, device="cpu")


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory, model: LoadedModel) -> Path:
    """A store of a little text that was read and 8,192 tokens whose pages are copies."""
    path = tmp_path_factory.mktemp("grown") / "store"
    with GrowingStore(path, model, SENTENCES) as growing:
        assert growing.read(600) > 0
        n_read = growing.n_tokens
        assert n_read > 500
        growing.copy(n_read + 5000)
        assert growing.n_tokens == n_read + 8192
    return path


def test_a_grown_store_is_whole_and_goes_on(grown: Path, model: LoadedModel) -> None:
    with Memory.open(grown, model=model, read_only=True) as memory:
        report = memory.check()
        assert report.ok, report.problems
        session = memory.session(SESSION)
        stored = memory.text(SESSION)
        assert len(stored) == session.n_bytes and stored.decode().count(". ") > 100
        assert memory.ask(QUESTION, mode="kv", max_tokens=1).evidence
    assert folder_bytes(grown) > len(stored)


def test_a_store_that_is_opened_again_grows_from_its_end(grown: Path, model: LoadedModel) -> None:
    with GrowingStore(grown, model, SENTENCES) as growing:
        before = growing.n_tokens
        growing.copy(before + 1)
        assert growing.n_tokens == before + 4096


@pytest.mark.parametrize("mode", ["kv", "resume"])
def test_steps_are_timed_one_by_one(grown: Path, model: LoadedModel, mode: Mode) -> None:
    assert first_token_seconds(grown, model, mode, QUESTION, cold=mode == "resume") > 0
    with Decoding(grown, model, mode, QUESTION, n_tokens=4) as decoding:
        assert decoding.attended > 10
        assert all(decoding.step_seconds() > 0 for _ in range(3))
