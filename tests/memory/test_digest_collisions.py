"""Two texts with one digest: what is stored is compared byte by byte, and nothing is taken for something else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import livingkv.memory
from livingkv import Memory, Settings
from livingkv.errors import PageDamaged
from livingkv.store import item_bytes
from tests.store.store_cases import assert_session, assert_whole, filled_store, make_append, read_store, write_store
from tests.tiny import tiny_model

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
MODEL = tiny_model()
FIRST = b"The code of door 17 is 1119. Nobody remembers it.\n\n" * 40
SECOND = b"The code of door 17 is 4471. Everybody knows it.\n\n" * 8


@pytest.fixture
def one_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text has the same digest."""
    monkeypatch.setattr(livingkv.memory, "source_digest", lambda text: "same")


@pytest.mark.usefixtures("one_digest")
def test_another_text_of_the_same_digest_is_read(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        for text, skipped in ((FIRST, False), (SECOND, False), (FIRST, True), (SECOND, True)):
            assert memory.ingest("doors", text=text).skipped == skipped
        assert memory.text("default") == FIRST + SECOND
        assert memory.check().problems == ()


@pytest.mark.usefixtures("one_digest")
def test_a_broken_off_ingest_is_not_continued_by_another_text(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        with pytest.raises(KeyboardInterrupt):
            memory.ingest("doors", text=FIRST, progress=stop)
        part = memory.text("default")
        assert 0 < len(part) < len(FIRST)
        memory.ingest("doors", text=SECOND)
        assert memory.text("default") == part + SECOND
        memory.ingest("doors", text=FIRST)
        assert memory.text("default") == part + SECOND + FIRST[len(part) :]


@pytest.mark.usefixtures("one_digest")
def test_a_forgotten_sentence_stays_forgotten(tmp_path: Path) -> None:
    """Its bytes read as spaces, and that is no other text."""
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=FIRST)
        memory.forget(sentence_ids=[memory._home.store().sentences_after(None, 1)[0].sentence_id])
        assert memory.ingest("doors", text=FIRST).skipped
        assert len(memory.text("default")) == len(FIRST)


def test_two_sources_under_one_key_of_the_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(item_bytes, "xxh3_128_digest", lambda identity: b"\0" * 16)
    rng, folder = random.Random(3), tmp_path / "s"
    model = filled_store(folder)
    with write_store(folder) as store:
        before = store.source(1, "book", "digest-book")
        assert before is not None
        assert store.source(1, "tale", "digest-tale") is None
        for _ in range(2):
            append = make_append(model, rng, n_tokens=9, source="tale")
            store.append(append)
            model = model.applied(append)
        found = {row.name: row for row in store.sources(1)}
        assert found["book"] == before and found["tale"].n_tokens == 18
        assert store.source(1, "tale", "digest-tale") == found["tale"]
        assert_session(store, model)
        assert_whole(store)


def test_a_whole_page_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    """Its checksum is right, and so is its length; what it says of itself is not what was asked for."""
    folder = tmp_path / "s"
    model = filled_store(folder)
    with read_store(folder) as store:
        one, two = (wanted.location for wanted in store.locate_pages(1, [1, 3]))
        assert one.segment == two.segment and one.length == two.length
    file = folder / "segments" / f"{one.segment:08d}.seg"
    data = bytearray(file.read_bytes())
    n = two.length + 48
    data[one.offset : one.offset + n] = data[two.offset : two.offset + n]
    file.write_bytes(data)
    with read_store(folder) as store:
        with pytest.raises(PageDamaged):
            store.read_pages(1, [1])
        assert store.read_pages(1, [3]) == [model.pages[3]]
        assert store.check().problems
