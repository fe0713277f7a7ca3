"""The two loops on a tiny random model: what goes in comes back, what broke off goes on, what is committed is there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv import Memory, Settings
from livingkv.errors import InputError, SessionNotFound, StoreFull, StoreNotFound, StoreUnwritable
from livingkv.models import LoadedModel
from livingkv.session_reader import Origin, SessionReader
from livingkv.store import Disk
from livingkv.text import SentenceSpan
from livingkv.writing import Draft
from tests.tiny import tiny_model

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(40)).encode()


@pytest.fixture(scope="module")
def model() -> LoadedModel:
    """One tiny model for all tests of this file; memories take it over one after the other."""
    return tiny_model()


def test_ingest_then_ask_in_another_memory(tmp_path: Path, model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        done = memory.ingest("doors.txt", text=TEXT)
        assert done.n_bytes == len(TEXT) and done.n_tokens > 200 and not done.skipped
    with Memory.open(tmp_path / "s", model=model, settings=SMALL, read_only=True) as memory:
        assert memory.text("default") == TEXT
        assert memory.check().problems == ()
        for mode in ("kv", "ground", "exact", "resume", "extract"):
            answer = memory.ask("What is the code of door 17?", mode=mode, session="default", max_tokens=8)
            assert answer.mode == mode
            assert answer.n_tokens == memory.session("default").n_tokens
            for found in answer.evidence:
                assert 0 < found.tokens[0] < found.tokens[1] <= answer.n_tokens and found.source == "doors.txt"
    with Memory.open(tmp_path / "s", read_only=True) as memory:  # no model: the words alone decide
        answer = memory.ask("What is the code of door 17?", mode="extract")
        assert answer.answer == "The code of door 17 is 1119." and answer.confident and answer.timings_ms.load == 0.0


def test_same_bytes_are_skipped_and_other_bytes_appended(tmp_path: Path, model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("a", text=b"One sentence. ")
        assert memory.ingest("a", text=b"One sentence. ").skipped
        memory.ingest("a", text=b"Another one.")
        assert memory.text("default") == b"One sentence. Another one."
        assert memory.session("default").sources == ("a",)


def test_progress_tells_bytes(tmp_path: Path, model: LoadedModel) -> None:
    told: list[tuple[int, int]] = []
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (len(TEXT), len(TEXT)) and len(told) > 5
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_an_ingest_that_broke_off_goes_on(tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with Memory.open(whole, model=model, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
    with Memory.open(broken, model=model, settings=SMALL) as memory:
        with pytest.raises(KeyboardInterrupt):
            memory.ingest("doors", text=TEXT, progress=stop)
        part = memory.session("default").n_bytes
        assert 0 < part < len(TEXT)
        read: list[bytes] = []
        plain = SessionReader.read_ahead

        def noted(self: SessionReader, text: bytes, spans: Sequence[SentenceSpan], origin: Origin) -> Draft:
            read.append(text)
            return plain(self, text, spans, origin)

        monkeypatch.setattr(SessionReader, "read_ahead", noted)
        assert not memory.ingest("doors", text=TEXT).skipped
        assert sum(map(len, read)) == len(TEXT) - part
        assert memory.text("default") == TEXT
    with (
        Memory.open(whole, read_only=True, model=model) as one,
        Memory.open(broken, read_only=True, model=model) as two,
    ):
        assert one.session("default").n_tokens == two.session("default").n_tokens
        ids = [m._home.store().token_ids(1, 0, m.session("default").n_tokens) for m in (one, two)]
        assert np.array_equal(ids[0], ids[1])


def test_chat_turns_are_durable_and_go_on(tmp_path: Path, model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        first = memory.chat("Hello there.", max_tokens=12)
        assert first.turn == 1 and first.reused_tokens == 0
        stored = memory.session("default").n_tokens
        assert first.n_tokens == stored
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        second = memory.chat("And again.", max_tokens=12)
        assert second.turn == 2 and second.reused_tokens == stored
        assert memory.text("default").startswith(b"Hello there.")
        assert b"And again." in memory.text("default")
        assert memory.check().problems == ()


@pytest.mark.slow
def test_a_conversation_split_over_processes_is_the_one_that_never_stopped(tmp_path: Path, model: LoadedModel) -> None:
    messages = [
        "First message about the sea.",
        "Second one.",
        "A third, longer message with many more words in it." * 4,
    ]
    with Memory.open(tmp_path / "one", model=model, settings=SMALL) as memory:
        want = [memory.chat(message, max_tokens=90).answer for message in messages]
    got = []
    for message in messages:
        with Memory.open(tmp_path / "two", model=model, settings=SMALL) as memory:
            got.append(memory.chat(message, max_tokens=90).answer)
    assert got == want


def test_an_interrupted_turn_leaves_nothing(tmp_path: Path, model: LoadedModel) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.chat("One.", max_tokens=5)
        before, text = memory.session("default"), memory.text("default")
        with pytest.raises(KeyboardInterrupt):
            memory.chat("Two.", max_tokens=40, on_text=interrupt)
        assert memory.session("default") == before and memory.text("default") == text
        assert memory.chat("Three.", max_tokens=5).turn == 2


def test_a_full_disk_loses_nothing_and_later_it_goes_on(
    tmp_path: Path, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("a", text=b"Kept sentence.")
        before = memory.session("default")
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "write", full)
            with pytest.raises(StoreFull):
                memory.ingest("doors", text=TEXT)
            with pytest.raises(StoreFull):
                memory.chat("Hello.", max_tokens=3)
        assert memory.session("default") == before
        memory.ingest("doors", text=TEXT)
        assert memory.text("default") == b"Kept sentence." + TEXT
        assert memory.check().problems == ()


def test_nothing_is_made_by_looking(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match="no store"):
        Memory.open(tmp_path / "s", read_only=True)
    with Memory.open(tmp_path / "s") as memory, pytest.raises(StoreNotFound):
        memory.sessions()
    assert not (tmp_path / "s").exists()


def test_read_only_is_read_only(tmp_path: Path, model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("a", text=b"One.")
    with Memory.open(tmp_path / "s", model=model, read_only=True) as memory:
        with pytest.raises(StoreUnwritable, match="read-only"):
            memory.ingest("b", text=b"Two.")
        with pytest.raises(SessionNotFound):
            memory.ask("What?", session="nobody")


def test_modes_that_need_one_session_say_so(tmp_path: Path, model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("a", text=b"One thing.", session="x")
        memory.ingest("a", text=b"One thing.", session="y")
        with pytest.raises(InputError, match="session"):
            memory.ask("What thing?", mode="exact")


@pytest.mark.slow
@given(st.text(min_size=1).filter(lambda text: any(c.isalnum() for c in text) and "\0" not in text))
@settings(max_examples=10, deadline=None)
def test_any_text_comes_back_byte_for_byte(text: str) -> None:
    import tempfile

    with (
        tempfile.TemporaryDirectory() as folder,
        Memory.open(Path(folder) / "s", model=MODEL, settings=SMALL) as memory,
    ):
        memory.ingest("any", text=text.encode())
        assert memory.text("default") == text.encode()


MODEL = tiny_model()


def test_an_answer_ends_before_a_stop_string(tmp_path: Path, model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        whole = memory.ask("What is the code of door 17?", mode="kv", max_tokens=16).answer
        middle = whole[len(whole) // 2]
        cut = memory.ask("What is the code of door 17?", mode="kv", max_tokens=16, stop=[middle]).answer
        assert cut == whole[: whole.index(middle)].strip()
