"""A value that is there and empty, a segment cut short: found, named, made again from the text, or read again."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.errors import PageDamaged, RecordDamaged
from livingkv.store.records import RECORD_HEADER_BYTES, Location
from tests.memory.test_keeping import decoded
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds in all: many stores

SMALL = Settings(block_tokens=64, commit_tokens=64, codec="lossless")
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(40)).encode()
MODEL = tiny_model()
QUESTION = "What is the code of door 17?"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one session of several pages."""
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
    return tmp_path / "s"


def place_of(store: Path, page: int) -> tuple[Path, Location]:
    """The segment file and the place of a page."""
    with Memory.open(store, read_only=True) as memory:
        location = memory._home.store().locate_pages(1, [page])[0].location
    return store / "segments" / f"{location.segment:08d}.seg", location


@pytest.mark.parametrize("with_header", [False, True])
def test_an_empty_page_is_made_again_from_the_text(store: Path, with_header: bool) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL, read_only=True) as memory:
        page = memory.ask(QUESTION, mode="kv", max_tokens=8).evidence[0].tokens[0] // 64
        before = decoded(memory, "default")
    file, location = place_of(store, page)
    data = bytearray(file.read_bytes())
    lo = location.offset + (0 if with_header else RECORD_HEADER_BYTES)
    hi = location.offset + RECORD_HEADER_BYTES + location.length
    data[lo:hi] = bytes(hi - lo)
    file.write_bytes(data)
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        assert any(f"page {page}:" in problem for problem in memory.check().problems)
        with pytest.raises(PageDamaged, match=f"page {page} "):
            memory._home.store().read_pages(1, [page])
        assert "read again" in memory.ask(QUESTION, mode="kv", max_tokens=8).reason
        (repaired,) = memory.repair()
        assert repaired.pages == (page,)
        assert memory.ask(QUESTION, mode="kv", max_tokens=8).mode == "kv"
        after = decoded(memory, "default")
        assert max((one - two).abs().max() for one, two in zip(before, after, strict=True)) <= 1e-4
        assert memory.check().problems == ()


def test_a_segment_cut_short_is_made_again_from_the_text(store: Path) -> None:
    file, location = place_of(store, 6)
    with file.open("r+b") as segment:
        segment.truncate(location.offset + 100)
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        n_pages = memory.stats().n_pages
        assert (
            sum(": the segment ends inside a record" in problem for problem in memory.check().problems) == n_pages - 6
        )
        (repaired,) = memory.repair()
        assert repaired.pages == tuple(range(6, n_pages))
        assert memory.text("default") == TEXT
        assert memory.ask(QUESTION, mode="kv", max_tokens=8).mode == "kv"


def test_text_that_is_lost_can_be_read_again(store: Path) -> None:
    """Its bytes were in the segment of the log: they are nowhere else, and the ingest that is asked for is done."""
    log = store / "segments" / "00000001.seg"
    with log.open("r+b") as segment:
        segment.truncate(log.stat().st_size // 2)
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        assert memory.check().problems
        with pytest.raises(RecordDamaged, match="ingested again"):
            memory.text("default")
        for session in ("anew", "default"):
            assert not memory.ingest("doors", text=TEXT, session=session).skipped
            assert memory.ingest("doors", text=TEXT, session=session).skipped
            answer = memory.ask(QUESTION, mode="extract", session=session)
            assert answer.answer == "The code of door 17 is 1119."
        assert memory.text("anew") == TEXT
        row = memory.session("default")
        assert memory._home.store().text(row.session_id, row.n_bytes - len(TEXT)) == TEXT
