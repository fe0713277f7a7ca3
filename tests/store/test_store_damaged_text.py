"""A damaged chunk of text: it is named, it keeps nobody from the others, and it can be given up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from livingkv.errors import LivingKVError, RecordDamaged, SentenceForgotten, StoreError
from livingkv.store import Disk, Store
from livingkv.store.catalog import Catalog
from livingkv.store.items import ChunkItem
from tests.store.store_cases import SessionModel, assert_whole, filled_store, read_store, write_store


def chunk_rows(root: Path) -> list[ChunkItem]:
    """The rows of session 1's chunks."""
    catalog = Catalog(root / "catalog", 1 << 24, writable=False)
    try:
        with catalog.read() as snapshot:
            return [row for _, row in snapshot.chunks(1)]
    finally:
        catalog.close()


def damaged_store(root: Path) -> tuple[SessionModel, list[int]]:
    """A store with a damaged chunk in the middle, and the ids of that chunk's sentences."""
    model = filled_store(root, n_appends=8)
    rows = chunk_rows(root)
    row = next(row for row in rows[2:] if row.n_sentences > 1)
    path = root / "segments" / f"{row.location.segment:08d}.seg"
    data = bytearray(path.read_bytes())
    data[row.location.offset + 60] ^= 4
    path.write_bytes(bytes(data))
    return model, list(range(row.first_sentence, row.first_sentence + row.n_sentences))


def test_the_other_sentences_can_still_be_read(folder: Path) -> None:
    model, lost = damaged_store(folder / "store")
    whole = [number for number in range(len(model.sentences)) if number not in lost]
    with read_store(folder / "store") as store:
        assert [each.sentence_id for each in store.sentences_after(None, 99)] == whole
        assert [each.sentence_id for each in store.sentences_after(None, 3)] == whole[:3]
        assert [each.sentence_id for each in store.sentences_after(lost[0] - 1, 2)] == [lost[-1] + 1, lost[-1] + 2]
        around = store.neighbours(lost[-1] + 1, 99, 99)
        assert [each.sentence_id for each in around] == list(range(lost[-1] + 1, len(model.sentences)))
        assert store.neighbours(lost[0] - 1, 99, 99)[-1].sentence_id == lost[0] - 1
        with pytest.raises(RecordDamaged, match="chunk"):
            store.sentence(lost[0])
        [problem] = [each for each in store.check().problems if "are lost" in each]
        assert f"sentences {lost[0]} to {lost[-1]} are lost" in problem
        assert "\n" not in problem


def test_pruning_passes_a_damaged_chunk_by(folder: Path) -> None:
    _, lost = damaged_store(folder / "store")
    with write_store(folder / "store") as store:
        receipt = store.prune(keep=2)
        assert not set(receipt.sentence_ids) & set(lost)
        assert [each.sentence_id for each in store.archived()] == list(receipt.sentence_ids)


@pytest.mark.parametrize("by", ["sentence", "source", "session"])
def test_a_damaged_chunk_can_be_forgotten(folder: Path, by: str) -> None:
    model, lost = damaged_store(folder / "store")
    with write_store(folder / "store") as store:
        first = store.forget_sentences([0])
        assert first.sentence_ids == (0,)
        if by == "sentence":
            assert store.forget_sentences([lost[0]]).sentence_ids == tuple(lost)
        elif by == "source":
            assert set(store.forget_source(1, "book").sentence_ids) == set(range(1, len(model.sentences)))
        else:
            store.forget_session(1)
        assert_whole(store)
        if by == "sentence":
            with pytest.raises(SentenceForgotten):
                store.sentence(lost[1])
            assert len(store.text(1)) == len(model.text)
            assert store.session(1).n_sentences == len(model.sentences) - 1 - len(lost)
            assert store.text(1, len(model.text) - 3) == model.text[-3:]
    (folder / "store" / "catalog" / "data.mdb").unlink()
    assert Store.rebuild_catalog(folder / "store", catalog_bytes=1 << 24).problems == ()
    with write_store(folder / "store") as store:
        assert_whole(store)
        if by == "sentence":
            assert store.session(1).n_sentences == len(model.sentences) - 1 - len(lost)


class ShortDisk(Disk):
    """Has no descriptors left while `is_short`."""

    is_short = False

    def read(self, descriptor: int, n_bytes: int, offset: int) -> bytes:
        if self.is_short:
            raise OSError(24, os.strerror(24))
        return super().read(descriptor, n_bytes, offset)


def test_a_shortage_is_no_damage(folder: Path) -> None:
    """Else the index would pass sentences by that are whole."""
    model, disk = filled_store(folder / "store"), ShortDisk()
    with read_store(folder / "store", disk=disk) as store:
        disk.is_short = True
        with pytest.raises(StoreError) as caught:
            store.sentences_after(None, 99)
        assert not isinstance(caught.value, RecordDamaged)
        assert isinstance(caught.value, LivingKVError)
        disk.is_short = False
        assert len(store.sentences_after(None, 99)) == len(model.sentences)
