"""One session in one file, from store to store; what was cut or changed is refused and changes nothing."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import FingerprintMismatch, FormatUnsupported, LivingKVError, RecordDamaged, SessionExists
from livingkv.store import Store, portable_text
from tests.store.damage import PAGES_SEGMENT, segment
from tests.store.store_cases import (
    FINGERPRINT,
    SessionModel,
    assert_session,
    assert_whole,
    filled_store,
    grown,
    make_append,
    new_session,
    new_store,
    read_store,
    rebuild,
    write_store,
)


def test_there_and_back(folder: Path) -> None:
    model = filled_store(folder / "one")
    with write_store(folder / "one") as store:
        store.drop_pages(1, [2])
        store.forget_sentences([1])
        model = model.without_pages(frozenset([2])).without_sentence(1)
        size = store.export_session(1, folder / "main.lkv")
        assert (folder / "main.lkv").stat().st_size == size
        assert store.import_session(folder / "main.lkv", name="again").session_id == 2
        assert_session(store, replace(model, session_id=2, name="again"))
        assert_whole(store)
    with new_store(folder / "two") as store:
        store.create_session("first")
        row = store.import_session(folder / "main.lkv")
        moved = replace(model, session_id=row.session_id)
        assert_session(store, moved)
        assert_whole(store)
        after = grown(store, moved, random.Random(1), n_tokens=9)
        assert_session(store, after)
        with pytest.raises(SessionExists):
            store.import_session(folder / "main.lkv")
    rebuild(folder / "two")
    with write_store(folder / "two") as store:
        if store.session("main").needs_tail:
            store.replace_pages(after.session_id, {}, tail=after.tail)
        assert_session(store, after)
        assert_whole(store)


@pytest.mark.parametrize("kv_is_exported", [True, False])
def test_text_only_by_choice(folder: Path, kv_is_exported: bool) -> None:
    model = filled_store(folder / "one")
    with read_store(folder / "one") as store:
        store.export_session(1, folder / "main.lkv", kv=kv_is_exported)
    other = replace(FINGERPRINT, codec="lossless")
    with Store.open(folder / "two", mode="write", fingerprint=other, create=True, catalog_bytes=1 << 24) as store:
        with pytest.raises(FingerprintMismatch, match="codec"):
            store.import_session(folder / "main.lkv")
        assert store.sessions() == []
        row = store.import_session(folder / "main.lkv", kv=False)
        assert (row.text_only, row.n_tokens) == (True, len(model.ids))
        assert store.text(1) == model.text
        assert len(store.missing_pages(1)) == len(model.pages)
        assert_whole(store)
    other = replace(FINGERPRINT, tokenizer="another")
    with (
        Store.open(folder / "three", mode="write", fingerprint=other, create=True, catalog_bytes=1 << 24) as store,
        pytest.raises(FingerprintMismatch, match="tokenizer"),
    ):
        store.import_session(folder / "main.lkv", kv=False)
    assert b"".join(chunk.text for chunk in portable_text(folder / "main.lkv")) == model.text


def test_what_was_cut_or_changed_is_refused(folder: Path) -> None:
    filled_store(folder / "one")
    with read_store(folder / "one") as store:
        store.export_session(1, folder / "main.lkv")
    whole = (folder / "main.lkv").read_bytes()
    rng = random.Random(3)
    bad = folder / "bad.lkv"
    with new_store(folder / "two") as store:
        before = store.stats().size_bytes
        cases = [whole[:size] for size in (0, 5, 16, 100, len(whole) // 2, len(whole) - 1)]
        for _ in range(40):
            data = bytearray(whole)
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            cases.append(bytes(data))
        for case in cases:
            bad.write_bytes(case)
            with pytest.raises((RecordDamaged, FormatUnsupported)):
                store.import_session(bad)
        with pytest.raises(LivingKVError):
            store.import_session(folder / "none.lkv")
        assert store.sessions() == []
        assert store.stats().size_bytes == before
        assert_whole(store)


def test_an_export_of_a_damaged_session_leaves_no_file(folder: Path) -> None:
    filled_store(folder / "one")
    path = segment(folder / "one", PAGES_SEGMENT)
    path.write_bytes(path.read_bytes()[:200])
    with read_store(folder / "one") as store:
        with pytest.raises(RecordDamaged):
            store.export_session(1, folder / "main.lkv")
        assert sorted(path.name for path in folder.iterdir()) == ["one"]
        store.export_session(1, folder / "main.lkv", kv=False)


def test_an_empty_session(folder: Path) -> None:
    with new_store(folder / "one") as store:
        store.create_session("empty")
        store.export_session(1, folder / "empty.lkv")
        row = store.import_session(folder / "empty.lkv", name="copy")
        assert_session(store, SessionModel(row.session_id, "copy"))
        assert_whole(store)


def test_a_session_of_whole_pages_whose_writer_kept_a_tail_of_nothing(folder: Path) -> None:
    with new_store(folder / "one") as store:
        model = new_session(store)
        append = make_append(model, random.Random(2), n_tokens=FINGERPRINT.page_tokens)
        store.append(replace(append, tail=b"a header of no tokens"))
        store.export_session(model.session_id, folder / "whole.lkv")
        row = store.import_session(folder / "whole.lkv", name="copy")
        assert row.n_tokens == row.n_sealed_tokens == FINGERPRINT.page_tokens
        pages = store.read_pages(row.session_id, [0])
        assert pages == store.read_pages(model.session_id, [0]) and store.read_tail(row.session_id)[1] == b""
        assert_whole(store)
