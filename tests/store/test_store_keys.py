"""Keys of encrypted sessions: elsewhere, removed, damaged or destroyed; without the key nothing opens."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import KeyMissing, RecordDamaged, SessionNotFound
from livingkv.store import Store
from livingkv.store.key_files import KEYS
from tests.store.sealed_cases import DIGEST, SOURCE, filled, in_the_clear, keys_in, open_again, secret_append
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    new_store,
)


def test_keys_elsewhere_are_needed_and_named(folder: Path) -> None:
    root, keys = folder / "s", folder / "keys"
    with new_store(root):
        pass
    with open_again(root, key_folder=keys) as store:
        model = filled(store)
        plain = SessionModel(store.create_session("plain").session_id, "plain")
        append = replace(secret_append(plain), text=b"", sentences=())
        store.append(append)
        plain = plain.applied(append)
    assert not (root / KEYS).exists() and len(keys_in(keys)) == 1
    with open_again(root) as store:
        row = store.session("diary")
        assert row.encrypted and row.sources == () and not store.has_key(row.session_id)
        assert_session(store, plain)
        assert_whole(store)  # checksums are over what is sealed
        assert store.sentences_after(None, 100) == []
        session_id = model.session_id
        for read in (
            lambda: store.text(session_id),
            lambda: store.token_ids(session_id, 0, 3),
            lambda: store.read_pages(session_id, [0]),
            lambda: store.read_tail(session_id),
            lambda: store.fork(session_id, "copy"),
            lambda: store.rename(session_id, "other"),
            lambda: store.append(secret_append(model)),
            lambda: store.source(session_id, SOURCE, DIGEST),
            lambda: store.export_session(session_id, folder / "x", decrypt=True),
        ):
            with pytest.raises(KeyMissing, match=r"'diary' is encrypted; its key is not in .*: pass --key-folder"):
                read()
        store.pin(session_id)
        store.drop_pages(session_id, [0])
        store.defrag(least_dead=0.0)
    with open_again(root, key_folder=keys) as store:
        assert_session(store, model.without_pages(frozenset({0})))


def test_forgetting_destroys_the_key(folder: Path) -> None:
    root, aside = folder / "s", folder / "aside"
    with new_store(root) as store:
        model = filled(store)
        (key,) = [path.read_bytes() for path in keys_in(root / KEYS)]
        shutil.copytree(root, aside)
        receipt = store.forget_session(model.session_id)
        assert (receipt.n_keys, receipt.keys_left) == (1, ())
        with pytest.raises(SessionNotFound):
            store.session("diary")
    everything = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert keys_in(root / KEYS) == [] and key[-40:-8] not in everything
    shutil.rmtree(aside / KEYS)  # a backup of the segments, and no key anywhere
    with open_again(aside) as store, pytest.raises(KeyMissing):
        store.text(model.session_id)


def test_the_key_goes_with_the_last_of_the_family(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
        fork = store.fork(model.session_id, "copy")
        assert store.forget_session(model.session_id).n_keys == 0
        assert_session(store, replace(model, session_id=fork.session_id, name="copy"))
        assert store.forget_everything().n_keys == 1
        assert keys_in(folder / "s" / KEYS) == []


def test_a_session_whose_key_somebody_removed_can_be_forgotten(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
    (key,) = keys_in(folder / "s" / KEYS)
    key.unlink()
    with open_again(folder / "s") as store:
        receipt = store.forget_session(model.session_id)
        assert (receipt.n_keys, receipt.keys_left) == (0, (key.name,))
        assert store.sessions() == []
        assert_whole(store)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lost_catalog_is_rebuilt_with_the_keys_only(folder: Path, elsewhere: bool) -> None:
    root, keys = folder / "s", folder / "keys" if elsewhere else None
    with new_store(root):
        pass
    with open_again(root, key_folder=keys) as store:
        gone, model = filled(store, "gone"), filled(store)
        store.forget_session(gone.session_id)
    shutil.rmtree(root / "catalog")
    moved = folder / "moved"
    (keys or root / KEYS).rename(moved)
    with pytest.raises(KeyMissing, match="cannot be rebuilt"):
        Store.rebuild_catalog(root, catalog_bytes=1 << 24, key_folder=keys)
    moved.rename(keys or root / KEYS)
    report = Store.rebuild_catalog(root, catalog_bytes=1 << 24, key_folder=keys)
    assert report.n_sessions == 1 and report.problems == ()
    with open_again(root, key_folder=keys) as store:
        assert store.session("diary").encrypted
        store.replace_pages(model.session_id, {}, tail=model.tail)
        assert_session(store, model)
        assert_whole(store)
    assert in_the_clear(root) == []


def test_a_damaged_key_file_is_named(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
    (path,) = keys_in(folder / "s" / KEYS)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-1])
    with open_again(folder / "s") as store:
        with pytest.raises(RecordDamaged, match=f"{path.name} is damaged"):
            store.text(model.session_id)
        assert any(path.name in problem for problem in store.check().problems)


def test_the_rest_of_a_store_goes_on_beside_a_damaged_key_file(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
    (path,) = keys_in(folder / "s" / KEYS)
    path.write_bytes(b"")
    with open_again(folder / "s") as store:
        assert not store.has_key(model.session_id)
        assert store.sentences_after(None, 100) == []
        plain = store.create_session("plain")
        assert len(store.check().problems) == 1
        store.forget_session(model.session_id)
        assert [row.name for row in store.sessions()] == [plain.name] and keys_in(folder / "s" / KEYS) == []
        assert store.check().problems == ()
