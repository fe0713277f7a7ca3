"""Encrypted sessions: every verb works on them, and nothing of them is in the clear in any file."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import InputError
from livingkv.store import Store
from tests.store.sealed_cases import DIGEST, SOURCE, TEXT, filled, in_the_clear, needles, open_again, secret_append
from tests.store.store_cases import (
    FINGERPRINT,
    SessionModel,
    assert_session,
    assert_whole,
    make_append,
    new_store,
)


def test_the_secrets_are_seen_where_they_are(folder: Path) -> None:
    """The search of these tests finds what a session in the clear holds."""
    with new_store(folder / "s") as store:
        model = SessionModel(store.create_session("diary").session_id, "diary")
        store.append(secret_append(model))
    found = {needle for _, needle in in_the_clear(folder)}
    assert found == set(needles())


def test_what_is_sealed_reads_back_and_is_in_no_file(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
        assert store.session("diary").encrypted and store.session("diary").sources == (SOURCE,)
        source = store.source(model.session_id, SOURCE, DIGEST)
        assert source is not None and source.complete and source.n_bytes == 3 * len(TEXT)
        assert store.source(model.session_id, SOURCE, "another") is None
        assert [row.name for row in store.sources(model.session_id)] == [SOURCE]
        assert_session(store, model)
        assert_whole(store)
    with open_again(folder / "s") as store:
        assert_session(store, model)
        assert_whole(store)
    assert in_the_clear(folder) == []


def test_every_verb_leaves_nothing_in_the_clear(folder: Path) -> None:
    root = folder / "s"
    with new_store(root, segment_bytes=1 << 12) as store:
        model = filled(store, n_appends=5)
        store.rename(model.session_id, "journal")
        store.pin(model.session_id)
        store.drop_pages(model.session_id, [0, 1])
        store.replace_pages(model.session_id, {0: model.pages[0]}, tail=model.tail)
        fork = store.fork(model.session_id, "copy")
        model = replace(model, name="journal").without_pages(frozenset({1}))
        twin = replace(model, session_id=fork.session_id, name="copy")
        assert_session(store, twin)
        append = secret_append(twin)
        store.append(append)
        twin = twin.applied(append)
        first = next(store.sentences_of(model.session_id))[0]
        store.recharge([first.sentence_id])
        receipt = store.prune(model.session_id, keep=9)
        assert len(receipt.sentence_ids) == 1 and receipt.n_keys == 0
        (archived,) = store.archived()
        assert archived.source == SOURCE and archived.text.encode() in TEXT
        store.forget_sentences([receipt.sentence_ids[0] + 1] if receipt.sentence_ids[0] != 8 else [9])
        store.defrag()
        assert_session(store, twin)
        assert_whole(store)
    with open_again(root) as store:
        assert_session(store, twin)
        store.forget_source(store.session("journal").session_id, SOURCE)
        assert store.archived() == [] and store.session("journal").sources == ()
        assert_whole(store)
    assert in_the_clear(folder) == []


def test_random_appends_read_back(folder: Path) -> None:
    rng = random.Random(5)
    with new_store(folder / "s", segment_bytes=1 << 11) as store:
        models = [SessionModel(store.create_session(name, encrypt=name == "a").session_id, name) for name in ("a", "b")]
        for number in range(30):
            which = rng.randrange(2)
            append = make_append(models[which], rng, source=f"source {number % 3}")
            store.append_all([append])
            models[which] = models[which].applied(append)
        for model in models:
            assert_session(store, model)
        assert_whole(store)
    with open_again(folder / "s") as store:
        for model in models:
            assert_session(store, model)


def test_export_is_refused_unless_it_is_meant(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
        with pytest.raises(InputError, match="encrypted"):
            store.export_session(model.session_id, folder / "x")
        assert not (folder / "x").exists()
        store.export_session(model.session_id, folder / "x", decrypt=True)
    with new_store(folder / "t") as store:
        row = store.import_session(folder / "x", name="back", encrypt=True)
        assert row.encrypted
        assert_session(store, replace(model, session_id=row.session_id, name="back"))
        assert_whole(store)
    assert in_the_clear(folder / "t") == []
    with open_again(folder / "t") as store:
        assert [chunk.text for chunk in store.portable_chunks(row.session_id)] == [TEXT] * 3


def test_a_store_gets_the_feature_with_its_first_encrypted_session(folder: Path) -> None:
    with new_store(folder / "s") as store:
        store.create_session("plain")
    assert '"features": []' in (folder / "s" / "manifest.json").read_text()
    with open_again(folder / "s") as store:
        store.create_session("diary", encrypt=True)
    assert '"encryption"' in (folder / "s" / "manifest.json").read_text()
    (folder / "s" / "manifest.json").unlink()
    with Store.open(folder / "s", mode="write", fingerprint=FINGERPRINT, create=True, catalog_bytes=1 << 24) as store:
        assert store.session("diary").encrypted and store.seal_bytes
    assert '"encryption"' in (folder / "s" / "manifest.json").read_text()
