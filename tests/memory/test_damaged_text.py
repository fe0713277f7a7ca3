"""A damaged chunk of text in a memory: other sentences are indexed, other pages repaired, and it can be given up."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.cli_forget import what_goes
from livingkv.errors import RecordDamaged
from livingkv.store import Store
from livingkv.store.catalog import Catalog
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow

SMALL = Settings(window_tokens=128, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(30)).encode()
MODEL = tiny_model()


def damaged_memory(root: Path) -> list[int]:
    """A memory of two sessions with one damaged chunk in the first; ids of the sentences that are lost."""
    with Memory.open(root, model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        memory.ingest("other", text=TEXT[:600], session="other")
    catalog = Catalog(root / "catalog", 1 << 24, writable=False)
    try:
        with catalog.read() as snapshot:
            rows = [row for _, row in snapshot.chunks(1)]
    finally:
        catalog.close()
    row = next(row for row in rows[2:] if row.n_sentences > 1)
    path = root / "segments" / f"{row.location.segment:08d}.seg"
    data = bytearray(path.read_bytes())
    data[row.location.offset + 70] ^= 1
    path.write_bytes(bytes(data))
    return list(range(row.first_sentence, row.first_sentence + row.n_sentences))


def test_the_other_sentences_are_indexed_and_the_other_pages_repaired(tmp_path: Path) -> None:
    root = tmp_path / "s"
    lost = damaged_memory(root)
    shutil.rmtree(root / "index")
    with Memory.open(root, model=MODEL, settings=SMALL) as memory:
        store = memory._home.store()
        n_whole = sum(info.n_sentences for info in memory.sessions()) - len(lost)
        assert memory._home.index.current().n_sentences == n_whole
        assert memory.ask("What is the code of door 28?", mode="extract", session="default").evidence
        store.recharge([lost[0], lost[-1] + 1])
        assert [hot.sentence_id for hot in memory.hottest()] == [lost[-1] + 1]
        for row in store.sessions():
            store.drop_pages(row.session_id, range(row.n_sealed_tokens // 64))
        by_name = {one.session: one for one in memory.repair()}
        assert by_name["other"].problem is None
        assert store.missing_pages(2) == []
        assert by_name["default"].problem is not None
        assert "damaged" in by_name["default"].problem
        assert by_name["default"].pages == tuple(
            page for page in range(store.session(1).n_sealed_tokens // 64) if page not in store.missing_pages(1)
        )


def test_what_is_damaged_is_named_and_given_up(tmp_path: Path) -> None:
    root = tmp_path / "s"
    lost = damaged_memory(root)
    with Store.open(root, mode="read") as store:
        assert "1 damaged" in what_goes(store, None, None, [lost[0]])
        with pytest.raises(RecordDamaged):
            store.text(1)
    with Memory.open(root, model=MODEL, settings=SMALL) as memory:
        assert any("are lost" in problem for problem in memory.check().problems)
        assert memory.forget(sentence_ids=[lost[0]]).n_sentences == len(lost)
        assert memory.check().problems == ()
        assert len(memory.text("default")) == len(TEXT)
