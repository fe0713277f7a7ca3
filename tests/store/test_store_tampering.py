"""Sealed records that somebody changed or moved, their checksums made right again: nothing of them opens."""

from __future__ import annotations

from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from livingkv.errors import PageDamaged, RecordDamaged
from livingkv.store.making import SEGMENTS
from livingkv.store.records import RECORD_HEADER_BYTES
from tests.store.sealed_cases import filled, open_again
from tests.store.store_cases import (
    new_store,
)


def segment_bytes(root: Path) -> dict[Path, bytearray]:
    """All segments."""
    return {path: bytearray(path.read_bytes()) for path in sorted((root / SEGMENTS).glob("*.seg"))}


def resealed(data: bytearray, offset: int, payload: bytes) -> None:
    """Put a payload in the place of a record's, its checksums made right again, as one would who knows the format."""
    start = offset + RECORD_HEADER_BYTES
    data[start : start + len(payload)] = payload
    data[offset + 32 : offset + 40] = xxh3_64_intdigest(payload).to_bytes(8, "little")
    data[offset + 40 : offset + 48] = xxh3_64_intdigest(bytes(data[offset : offset + 40])).to_bytes(8, "little")


@pytest.mark.parametrize("how", ["flip", "swap", "clear"])
def test_tampering_is_damage_even_with_right_checksums(folder: Path, how: str) -> None:
    root = folder / "s"
    with new_store(root) as store:
        model = filled(store)
        places = [wanted.location for wanted in store.locate_pages(model.session_id, [0, 1])]
    (path,) = [path for path in segment_bytes(root) if int(path.stem) == places[0].segment]
    data = segment_bytes(root)[path]
    payloads = [bytes(data[p.offset + RECORD_HEADER_BYTES :][: p.length]) for p in places]
    assert len(payloads[0]) == len(payloads[1])
    changed = {
        "flip": [payloads[0][:50] + bytes([payloads[0][50] ^ 1]) + payloads[0][51:], payloads[1]],
        "swap": payloads[::-1],
        "clear": [b"\0" * len(payloads[0]), payloads[1]],
    }[how]
    for place, payload in zip(places, changed, strict=True):
        resealed(data, place.offset, payload)
    path.write_bytes(data)
    with open_again(root) as store:
        for page in (0, 1) if how == "swap" else (0,):
            with pytest.raises(PageDamaged, match=f"page {page} of session"):
                store.read_pages(model.session_id, [page])
        assert len(store.check().problems) == (2 if how == "swap" else 1)


def test_a_chunk_of_another_session_does_not_open(folder: Path) -> None:
    root = folder / "s"
    with new_store(root) as store:
        first, second = filled(store, "one", 1), filled(store, "two", 1)
        with store._catalog.read() as snapshot:
            places = [snapshot.chunk(model.session_id, 0).location for model in (first, second)]
    path = root / SEGMENTS / f"{places[0].segment:08d}.seg"
    data = bytearray(path.read_bytes())
    payloads = [bytes(data[p.offset + RECORD_HEADER_BYTES :][: p.length]) for p in places]
    assert len(payloads[0]) == len(payloads[1])
    resealed(data, places[0].offset, payloads[1])
    path.write_bytes(data)
    with open_again(root) as store, pytest.raises(RecordDamaged, match="not sealed with the session's key"):
        store.text(first.session_id)
