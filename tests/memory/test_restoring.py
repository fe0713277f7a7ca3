"""Pruned sentences read again: their text, their session, and a restore that broke off."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.errors import InputError, SessionNotFound
from livingkv.restoring import joined
from livingkv.store import Append, ArchivedSentence, Store
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds in all: many stores

MODEL = tiny_model()
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(20)).encode()
SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)


def archived(text: str, number: int = 0) -> ArchivedSentence:
    """A sentence of an archive."""
    return ArchivedSentence(number, 1, "s", "doors", "document", text)


def test_joined() -> None:
    assert joined([archived("One."), archived(" Two.\n"), archived("Three."), archived("Four.")]) == (
        b"One. Two.\nThree.\nFour."
    )
    assert joined([archived("cut \udcc3")]) == "cut �".encode()
    assert joined([]) == b""


@pytest.mark.parametrize("kv", [True, False])
def test_all_of_a_session_comes_back_byte_for_byte(tmp_path: Path, kv: bool) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT, kv=kv)
        memory.ingest("other", text=b"Another text.", session="b")
        before = memory.session("default").n_sentences
        assert memory.prune(session="default", keep=0).n_sentences == before
        assert [each.text.encode() for each in memory.archived(session="default")] != []
        assert memory.archived(session="b") == []
        (done,) = memory.restore()
        assert (done.source, done.session, done.n_bytes, done.n_sentences) == ("doors", "default", len(TEXT), before)
        assert memory.text("default").endswith(TEXT)
        assert memory.session("default").n_sentences == before and memory.archived() == []
        assert "1119" in memory.ask("What is the code of door 17?", mode="extract").answer
        assert memory.check().problems == ()
        assert memory.restore() == []


def test_a_restore_that_broke_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, left = Store.append, [3]

    def counting(store: Store, step: Append) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise InterruptedError
        append(store, step)

    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        n_sentences = memory.prune(keep=0).n_sentences
        monkeypatch.setattr(Store, "append", counting)
        with pytest.raises(InterruptedError):
            memory.restore()
        monkeypatch.undo()
        assert 0 < memory.session("default").n_sentences < n_sentences == len(memory.archived())
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.restore()
        assert memory.text("default").endswith(TEXT) and memory.text("default").strip().count(b"door 3 ") == 1
        assert memory.session("default").n_sentences == n_sentences and memory.archived() == []


def test_done_but_still_in_the_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        memory.prune(keep=0)
        monkeypatch.setattr(Store, "erase_archive", lambda *_: (_ for _ in ()).throw(InterruptedError()))
        with pytest.raises(InterruptedError):
            memory.restore()
        monkeypatch.undo()
        n_bytes = memory.session("default").n_bytes
        memory.restore()
        assert memory.session("default").n_bytes == n_bytes and memory.archived() == []
        memory.prune(keep=0)
        memory.restore()  # pruned a second time, it is restored a second time
        assert memory.session("default").n_bytes == n_bytes + len(TEXT)


def test_bad_restores_change_nothing(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        memory.prune(keep=0)
        before = memory.archived()
        for error, call in (
            (InputError, lambda: memory.restore([0, 999])),
            (SessionNotFound, lambda: memory.restore(of="nobody")),
            (InputError, lambda: memory.restore(session="a\nb")),
            (InputError, lambda: memory.erase_archive([999])),
            (SessionNotFound, lambda: memory.erase_archive(session="nobody")),
        ):
            with pytest.raises(error):
                call()
        assert memory.archived() == before
        receipt = memory.erase_archive([before[0].sentence_id])
        assert (receipt.n_sentences, receipt.n_bytes) == (1, len(before[0].text.encode()))
        assert memory.erase_archive(session="default").n_sentences == len(before) - 1
        assert memory.erase_archive().n_sentences == 0
