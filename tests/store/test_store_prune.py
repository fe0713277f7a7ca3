"""Pruning: the coldest sentences move to the archive, and leave it when they are forgotten or it is erased."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.errors import InputError, RecordDamaged, SentenceForgotten
from tests.store.store_cases import assert_whole, filled_store, new_store, write_store


def test_cold_sentences_go_to_the_archive(folder: Path) -> None:
    root = folder / "store"
    model = filled_store(root)
    n = len(model.sentences)
    with write_store(root) as store:
        store.recharge([2, 3])
        store.recharge([3])
        receipt = store.prune(keep=3)
        kept = [2, 3, n - 1]
        assert [each.sentence_id for each in store.sentences_after(None, 99)] == kept
        assert receipt.sentence_ids == tuple(number for number in range(n) if number not in kept)
        archived = store.archived()
        assert [each.sentence_id for each in archived] == list(receipt.sentence_ids)
        assert [each.text.encode() for each in archived] == [model.sentences[i][2] for i in receipt.sentence_ids]
        assert_whole(store)
        store.prune(1, below=1.5)
        assert [each.sentence_id for each in store.sentences_after(None, 99)] == [3]
        assert len(store.archived()) == n - 1
        assert store.prune(1, keep=1).sentence_ids == ()
        for wrong in ({}, {"keep": 1, "below": 1.0}, {"keep": -1}):
            with pytest.raises(InputError, match="prune"):
                store.prune(**wrong)
    with write_store(root) as store:
        with pytest.raises(SentenceForgotten):
            store.sentence(0)
        store.forget_sentences([0, 1])
        assert sorted(each.sentence_id for each in store.archived())[:2] == [2, 4]
        assert [each.sentence_id for each in store.erase_archive([2])] == [2]
        store.forget_session(1)
        assert store.archived() == []
        assert store.erase_archive() == []
        assert_whole(store)


def test_a_pinned_session_is_not_pruned(folder: Path) -> None:
    filled_store(folder / "store")
    with write_store(folder / "store") as store:
        store.pin(1)
        assert store.prune(keep=0).sentence_ids == ()
        assert store.prune(1, keep=0).sentence_ids


def test_a_damaged_archive_is_named(folder: Path) -> None:
    filled_store(folder / "store")
    with write_store(folder / "store") as store:
        store.prune(keep=1)
        path = folder / "store" / "archive" / "sentences.jsonl"
        data = bytearray(path.read_bytes())
        data[40] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(RecordDamaged, match="line 1"):
            store.archived()
        with pytest.raises(RecordDamaged, match="line 1"):
            store.erase_archive([0])
        (problem,) = store.check().problems
        assert "line 1: damaged" in problem
        store.erase_archive()
        assert_whole(store)
        assert store.archived() == []
        store.prune(keep=0)
        path.write_bytes(b"damaged")
        store.forget_everything()
        assert store.archived() == [] and not path.exists()
    new_store(folder / "store").close()


def test_what_a_broken_off_write_left_is_erased(folder: Path) -> None:
    filled_store(folder / "store")
    draft = folder / "store" / "archive" / "sentences.jsonl.tmp"
    with write_store(folder / "store") as store:
        for erase in (lambda: store.forget_sentences([0]), lambda: store.prune(keep=1), store.erase_archive):
            draft.parent.mkdir(exist_ok=True)
            draft.write_bytes(b"a sentence")
            (folder / "same").hardlink_to(draft)
            erase()
            assert not draft.exists() and (folder / "same").read_bytes() == bytes(10)
            (folder / "same").unlink()
