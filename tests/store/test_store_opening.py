"""What opening a store makes, takes and refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from livingkv.errors import FingerprintMismatch, InputError, StoreError, StoreNotFound, StoreUnwritable
from livingkv.store import Store
from tests.store.store_cases import (
    FINGERPRINT,
    filled_store,
    new_store,
    read_store,
    write_store,
)


def test_opening(folder: Path) -> None:
    with pytest.raises(StoreNotFound):
        read_store(folder / "store")
    with pytest.raises(StoreNotFound):
        write_store(folder / "store")
    assert not (folder / "store").exists()
    with pytest.raises(InputError, match="fingerprint"):
        Store.open(folder / "store", mode="write", create=True)
    with pytest.raises(InputError, match="mode"):
        Store.open(folder / "store", mode="read", create=True, fingerprint=FINGERPRINT)
    new_store(folder / "store" / "deeper").close()
    with Store.open(folder / "store" / "deeper", mode="read", fingerprint=FINGERPRINT) as store:
        assert store.fingerprint == FINGERPRINT
        with pytest.raises(StoreError, match="reading only"):
            store.create_session("x")
    with pytest.raises(StoreError, match="is closed"):
        store.sessions()
    store.close()


def test_another_model_is_refused_and_every_difference_named(folder: Path) -> None:
    filled_store(folder / "store")
    other = replace(FINGERPRINT, codec="lossless", page_tokens=64)
    for mode in ("read", "write"):
        with pytest.raises(FingerprintMismatch) as caught:
            Store.open(folder / "store", mode=mode, fingerprint=other)
        text = str(caught.value)
        assert "codec: the store has int8, the model needs lossless" in text
        assert "page_tokens: the store has 4, the model needs 64" in text
        assert "\n" not in text
    with pytest.raises(FingerprintMismatch):
        Store.open(folder / "store", mode="write", fingerprint=other, create=True)


def test_somebody_elses_folder_is_refused(folder: Path) -> None:
    (folder / "thesis.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"thesis\.txt"):
        new_store(folder)
    assert [path.name for path in folder.iterdir()] == ["thesis.txt"]
    for path in (folder / "thesis.txt", folder / "thesis.txt" / "store"):
        with pytest.raises(StoreUnwritable):
            new_store(path)
    with pytest.raises(StoreUnwritable, match="not a folder"):
        read_store(folder / "thesis.txt")


def test_labels_are_kept_and_never_compared(folder: Path) -> None:
    for labels, expected in (({"model": "tiny"}, {"model": "tiny"}), ({"model": "other"}, {"model": "tiny"})):
        with Store.open(
            folder / "store", mode="write", create=True, fingerprint=FINGERPRINT, catalog_bytes=1 << 24, labels=labels
        ) as store:
            assert store.labels == expected


def test_an_empty_folder_becomes_a_store(folder: Path) -> None:
    (folder / "index").mkdir()
    new_store(folder).close()
    read_store(folder).close()
