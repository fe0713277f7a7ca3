"""Lines of the archive and session records with right checksums: a field without its type is named in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_hexdigest

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.store import Store
from livingkv.store.events import Created, Dropped, Event, Forked, pack_event, unpack_event
from tests.store.json_cases import HUGE, NO_OBJECTS, one_line, values
from tests.store.store_cases import filled_store, write_store

EVENTS: list[Event] = [
    Created("a", 5, True),
    Dropped(((0, 3), (5, 6)), 1),
    Forked("b", 7, False, 1, ((1, 2, 3),), ((0, 1, 1, 0),)),
]


def with_archive(root: Path) -> tuple[Path, list[dict[str, Any]]]:
    """A store with lines in its archive: the file, and the lines' objects."""
    filled_store(root)
    with write_store(root) as store:
        store.prune(1, keep=3)
    path = root / "archive" / "sentences.jsonl"
    return path, [json.loads(line.partition(b" ")[2]) for line in path.read_bytes().splitlines()]


def write_lines(path: Path, bodies: list[bytes]) -> None:
    """Lines with right checksums."""
    path.write_bytes(b"".join(xxh3_64_hexdigest(body).encode() + b" " + body + b"\n" for body in bodies))


def archive_is_damaged(root: Path, path: Path, says: str) -> None:
    """The archive is refused, and a forgetting takes the line along."""
    with write_store(root) as store:
        for use in (store.archived, lambda: store.erase_archive([0])):
            with pytest.raises(RecordDamaged, match=says) as caught:
                use()
            one_line(caught.value, f"{path} line 2")
        store.forget_sentences([next(store.sentences_of(1))[0].sentence_id])
        assert all(each.sentence_id >= 0 for each in store.archived())


@pytest.mark.parametrize("body", NO_OBJECTS)
def test_a_line_of_the_archive_that_is_no_object(folder: Path, body: bytes) -> None:
    path, lines = with_archive(folder / "s")
    write_lines(path, [json.dumps(lines[0]).encode(), body])
    archive_is_damaged(folder / "s", path, "damaged")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, None) for name in ("sentence_id", "session_id", "session", "source", "role", "text")],
        ("sentence_id", True),
        ("sentence_id", -1),
        ("sentence_id", "3"),
        ("sentence_id", HUGE),
        ("session_id", 1 << 32),
        ("session", 5),
        ("session", "\ud800"),
        ("role", "king"),
        ("text", ["a"]),
        ("text", "\ud800"),
        ("sealed", 5),
        ("sealed", "not base64!"),
        ("unknown", 1),
    ],
)
def test_a_field_of_a_line_of_the_archive(folder: Path, name: str, value: object) -> None:
    path, lines = with_archive(folder / "s")
    write_lines(path, [json.dumps(lines[0]).encode(), json.dumps(lines[1] | {name: value}).encode()])
    archive_is_damaged(folder / "s", path, name)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_session_record(data: st.DataObject) -> None:
    """An event is one with the types it says, or refused."""
    good = data.draw(st.sampled_from(EVENTS))
    assert unpack_event(pack_event(good)) == good
    fields = json.loads(pack_event(good))
    changes = data.draw(st.dictionaries(st.sampled_from(sorted(fields)), values, min_size=1))
    try:
        event = unpack_event(json.dumps(fields | changes).encode())
    except (RecordDamaged, FormatUnsupported) as error:
        assert "\n" not in str(error)
        return
    for name in fields:
        if name != "event":
            assert type(getattr(event, name)) is type(getattr(good, name))
    assert pack_event(event)


@pytest.mark.parametrize("payload", NO_OBJECTS)
def test_a_session_record_that_is_no_object(payload: bytes) -> None:
    with pytest.raises(RecordDamaged, match="session record"):
        unpack_event(payload)


def test_stores_as_they_are_pass(folder: Path) -> None:
    path, lines = with_archive(folder / "s")
    write_lines(path, [json.dumps(line).encode() for line in lines])
    with Store.open(folder / "s", mode="read", catalog_bytes=1 << 24) as store:
        assert len(store.archived()) == len(lines)
