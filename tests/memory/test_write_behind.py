"""What was read becomes durable behind the reading: in order, bounded, and nothing is told of too early."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from livingkv import Memory, Settings
from livingkv.errors import StoreFull
from livingkv.store import Append, IdempotencyKey, SentenceRecord, Store
from livingkv.writing import Draft, WriteBehind
from tests.tiny import tiny_model

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = b"".join(b"The code of door %d is %d. Nobody remembers it.\n\n" % (i, 1000 + i) for i in range(40))


def draft(number: int) -> Draft:
    """An append that can be told from others."""
    return Draft(Append(1, number, np.empty(0, np.int32), b"", (), "s", "document"), None)


class Disk:
    """Takes appends when it is let; the nth fails."""

    def __init__(self, *, fails_at: int | None = None, is_open: bool = True) -> None:
        self.written: list[int] = []
        self.opened = threading.Event()
        self._fails_at = fails_at
        if is_open:
            self.opened.set()

    def append(self, append: Append) -> None:
        """Stands in for Store.append."""
        assert self.opened.wait(10)
        if append.first_token == self._fails_at:
            raise StoreFull("no space left on the device: make room")
        self.written.append(append.first_token)


def test_marks_are_told_in_order_and_only_when_durable() -> None:
    disk, told = Disk(is_open=False), []
    with WriteBehind(disk.append) as behind:
        for number in range(2):
            assert behind.put(draft(number), number) == []
        assert behind.durable() == []
        disk.opened.set()
        for number in range(2, 20):
            told += behind.put(draft(number), number)
            assert set(told) <= set(disk.written) and len(told) >= number - 1, "two are under way at most"
        told += behind.finish()
    assert told == disk.written == list(range(20))


def test_an_error_of_the_writer_comes_with_the_next_call_and_nothing_is_written_behind_it() -> None:
    disk, told = Disk(fails_at=3), []
    with pytest.raises(StoreFull), WriteBehind(disk.append) as behind:
        for number in range(20):
            told += behind.put(draft(number), number)
    assert disk.written == [0, 1, 2] and told == [0, 1, 2][: len(told)] and number <= 5


def test_what_was_given_behind_an_error_is_never_told_as_durable() -> None:
    disk = Disk(fails_at=0, is_open=False)
    with pytest.raises(StoreFull), WriteBehind(disk.append) as behind:
        for number in range(2):
            behind.put(draft(number), number)
        disk.opened.set()
        for _ in range(2):  # a caller who goes on all the same
            with pytest.raises(StoreFull):
                behind.finish()
        behind.put(draft(2), 2)
    assert disk.written == []


def test_leaving_waits_for_what_was_given_and_raises_its_error() -> None:
    disk = Disk()
    with pytest.raises(StoreFull), WriteBehind(Disk(fails_at=0).append) as behind:
        behind.put(draft(0), 0)
    with pytest.raises(KeyError), WriteBehind(disk.append) as behind:
        behind.put(draft(1), 1)
        raise KeyError
    assert disk.written == [1]


def test_of_an_ingest_that_meets_a_full_disk_all_that_was_told_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, told, n_appends = tiny_model(), [], 0
    plain = Store.append

    def fills_up(self: Store, append: Append) -> range:
        nonlocal n_appends
        n_appends += 1
        if n_appends == 6:
            raise StoreFull("no space left on the device: make room")
        return plain(self, append)

    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        with monkeypatch.context() as patch, pytest.raises(StoreFull):
            patch.setattr(Store, "append", fills_up)
            memory.ingest("doors", text=TEXT, progress=lambda done, total: told.append(done))
        assert n_appends == 6
        n_bytes = memory.session("default").n_bytes
        assert told and max(told) <= n_bytes < len(TEXT) and memory.text("default") == TEXT[:n_bytes]
        memory.ingest("doors", text=TEXT)
        assert memory.text("default") == TEXT and memory.check().problems == ()


def test_messages_have_their_own_ids_whatever_is_written_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Store.append_all

    with Memory.open(tmp_path / "s", model=tiny_model(), settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT, session="other", kv=False)
        other = next(row.session_id for row in memory.sessions() if row.name == "other")

        def beside(self: Store, appends: Sequence[Append], once: IdempotencyKey | None) -> range:
            row = self.session("other")
            spans = (SentenceRecord(row.n_bytes, row.n_bytes + 3, row.n_tokens, row.n_tokens + 1),)
            plain(self, [Append(other, row.n_tokens, np.zeros(1, np.int32), b"Ah.", spans, "s", "document")])
            return plain(self, appends, once)

        monkeypatch.setattr(Store, "append_all", beside)
        said = [{"role": "user", "content": "The gate is green. It squeaks."}]
        added = memory.add_messages(said, session="mine")
        texts = [memory.around(number, 0, 0)[0].text.strip() for number in added.sentence_ids]
        assert texts == ["The gate is green.", "It squeaks."]
