"""Conversations of the service under the other verbs: found, asked, repaired, migrated; not written to."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from livingkv.errors import InputError
from livingkv.memory import Memory
from livingkv.migrating import migrate
from livingkv.models import LoadedModel
from livingkv.results import Mode
from livingkv.settings import Settings
from tests.server.serving import serving, talk, tiny_model

pytestmark = pytest.mark.slow
SETTINGS = Settings(block_tokens=64, window_tokens=1024)


@pytest.fixture(scope="module", name="model")
def make_model() -> LoadedModel:
    """The model of service and library."""
    return tiny_model()


@pytest.fixture(scope="module", name="made")
def make_store(tmp_path_factory: pytest.TempPathFactory, model: LoadedModel) -> Path:
    """A store with one conversation: a short system message, a tool's long answer."""
    folder = tmp_path_factory.mktemp("library") / "stores"
    with serving(folder, model) as served:
        call = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
        answer = served.post(
            {
                "messages": [
                    {"role": "system", "content": "b"},
                    *talk("Where is the key?"),
                    {"role": "assistant", "content": None, "tool_calls": [call]},
                    {"role": "tool", "content": "The key of the boat hangs behind the clock. " * 12},
                    *talk("And the lock?"),
                ],
                "session": "anna",
            }
        )
        assert answer.status_code == 200, answer.text
    return folder / "default"


@pytest.fixture(name="store")
def copy_store(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "store"))


@pytest.mark.parametrize("mode", ["extract", "kv", "ground", "exact", "resume", "auto"])
def test_every_mode_answers(store: Path, model: LoadedModel, mode: Mode) -> None:
    with Memory.open(store, model=model, settings=SETTINGS, read_only=True) as memory:
        answer = memory.ask("Where does the key of the boat hang?", session="anna", mode=mode, max_tokens=4)
        assert mode == "auto" or answer.mode == mode
        assert mode in ("exact", "resume", "auto") or "behind the clock" in answer.evidence[0].text


def test_it_is_not_written_to(store: Path, model: LoadedModel) -> None:
    with Memory.open(store, model=model, settings=SETTINGS) as memory:
        before = memory.session("anna")
        for write in (
            lambda: memory.chat("Hi.", session="anna"),
            lambda: memory.ingest("x", text=b"x", session="anna"),
        ):
            with pytest.raises(InputError, match="conversation of the service"):
                write()
        assert memory.session("anna") == before


def test_a_repaired_page_is_the_one_that_was(store: Path, model: LoadedModel) -> None:
    with Memory.open(store, model=model, settings=SETTINGS) as memory:
        kept = memory._home.store()
        row = kept.session("anna")
        pages = range(row.n_sealed_tokens // 64)
        before = kept.read_pages(row.session_id, pages)
        assert len(pages) > 4
        kept.drop_pages(row.session_id, pages[1:])
        memory.repair()
        assert kept.read_pages(row.session_id, pages)[0] == before[0]
        after = kept.read_pages(row.session_id, pages)
        assert [len(page) for page in after] == [len(page) for page in before]
        assert after == before


def test_migrated_it_is_a_session_like_any_other(store: Path, model: LoadedModel) -> None:
    migrate(store, model=model, settings=Settings(codec="lossless"))
    with Memory.open(store, model=model) as memory:
        assert b"behind the clock" in memory.text("anna")
        assert memory.chat("Hi.", session="anna", max_tokens=2).turn == 3
