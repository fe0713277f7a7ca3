"""What a store does when nothing goes wrong, and how it answers wrong requests."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from livingkv.errors import (
    InputError,
    SessionExists,
    SessionNotFound,
)
from livingkv.store import Append, SentenceRecord
from tests.store.store_cases import (
    assert_session,
    assert_whole,
    filled_store,
    grown,
    make_append,
    new_session,
    new_store,
    read_store,
    write_store,
)


def test_what_was_appended_is_there_after_reopening(folder: Path) -> None:
    model = filled_store(folder / "store", segment_bytes=700)
    for store in (read_store(folder / "store"), write_store(folder / "store")):
        with store:
            assert_session(store, model)
            assert_whole(store)
    assert len(list((folder / "store" / "segments").iterdir())) > 3


def test_chunks_are_the_appends_in_order(folder: Path) -> None:
    rng = random.Random(3)
    with new_store(folder / "store") as store:
        model, appends = new_session(store), list[Append]()
        for _ in range(4):
            appends.append(make_append(model, rng))
            model = model.applied(appends[-1])
        store.append_all(appends)
        chunks = store.chunks(appends[0].session_id)
        assert [chunk.role for chunk in chunks] == [append.role for append in appends]
        assert [(chunk.token_lo, chunk.token_hi - chunk.token_lo) for chunk in chunks] == [
            (append.first_token, len(append.token_ids)) for append in appends
        ]
        text = store.text(appends[0].session_id)
        assert [text[chunk.byte_lo : chunk.byte_hi] for chunk in chunks] == [append.text for append in appends]
        with pytest.raises(SessionNotFound):
            store.chunks(99)


def test_a_group_is_one_commit_over_several_sessions(folder: Path) -> None:
    rng = random.Random(1)
    with new_store(folder / "store") as store:
        models = [new_session(store, name) for name in ("one", "two")]
        appends: list[Append] = []
        for number in (0, 1, 0, 0, 1):
            append = make_append(models[number], rng, source=f"source {len(appends) % 2}")
            models[number] = models[number].applied(append)
            appends.append(append)
        store.append_all(appends)
        store.append_all([])
        for model in models:
            assert_session(store, model)
        wrong = replace(make_append(models[0], rng, n_tokens=4), first_token=1)
        with pytest.raises(InputError):
            store.append_all([make_append(models[1], rng, n_tokens=4), wrong])
        for model in models:
            assert_session(store, model)
        assert_whole(store)


def test_spans_of_ids_and_text(folder: Path) -> None:
    model = filled_store(folder / "store")
    with read_store(folder / "store") as store:
        for lo in range(0, len(model.ids) + 1, 5):
            for hi in range(lo, len(model.ids) + 1, 7):
                assert store.token_ids(1, lo, hi).tolist() == model.ids[lo:hi]
        for lo in range(0, len(model.text) + 1, 11):
            for hi in range(lo, len(model.text) + 1, 23):
                assert store.text(1, lo, hi) == model.text[lo:hi]
        assert store.token_ids(1, 0, 0).dtype == np.int32
        assert store.read_pages(1, [5, 0, 5, 2]) == [model.pages[page] for page in (5, 0, 5, 2)]
        assert store.read_pages(1, []) == []


def test_sentences_and_neighbours(folder: Path) -> None:
    rng = random.Random(2)
    with new_store(folder / "store") as store:
        models = [new_session(store, name) for name in ("one", "two")]
        for number in range(40):
            model = models[number % 2]
            models[number % 2] = grown(store, model, rng, n_tokens=5, source=rng.choice(["book", "notes"]))
        every = store.sentences_after(None, 1000)
        assert [each.sentence_id for each in every] == list(range(len(every)))
        for position in range(0, len(every), 7):
            assert store.sentence(position) == every[position]
            assert store.sentences_after(position, 5) == every[position + 1 : position + 6]
            own = [
                each
                for each in every
                if (each.session_id, each.source) == (every[position].session_id, every[position].source)
            ]
            at = own.index(every[position])
            for before, after in ((0, 0), (1, 0), (0, 2), (3, 3), (100, 100)):
                expected = own[max(0, at - before) : at + after + 1]
                assert store.neighbours(position, before, after) == expected
        assert every[0].text == every[0].raw.decode()
        assert {each.session for each in every} == {"one", "two"}
        for wrong in (-1, len(every)):
            with pytest.raises(InputError, match="sentence id"):
                store.sentence(wrong)


def test_sources_are_known_by_name_and_digest(folder: Path) -> None:
    rng = random.Random(3)
    with new_store(folder / "store") as store:
        model = new_session(store)
        for digest, end in (("d1", False), ("d1", True), ("d2", False)):
            append = replace(make_append(model, rng, n_tokens=9), source_digest=digest, end_of_source=end)
            store.append(append)
            model = model.applied(append)
        first = store.source(1, "book", "d1")
        second = store.source(1, "book", "d2")
        assert first is not None
        assert second is not None
        assert (first.n_tokens, first.complete, second.n_tokens, second.complete) == (18, True, 9, False)
        assert first.n_bytes + second.n_bytes == len(model.text)
        assert store.source(1, "book", "d3") is None
        assert store.sources(1) == [first, second]
        assert store.session("main").sources == ("book",)
        append = replace(make_append(model, rng), source="odd \udcff name", source_digest="")
        store.append(append)
        assert store.session("main").sources == ("book", "odd \udcff name")
        assert_whole(store)


def test_sessions(folder: Path) -> None:
    with new_store(folder / "store") as store:
        assert store.sessions() == []
        before = time.time()
        row = store.create_session("日本語 🙂")
        assert before - 1 < row.created_s <= time.time() + 1
        assert store.session("日本語 🙂") == store.session(row.session_id) == row
        with pytest.raises(SessionExists, match="another name"):
            store.create_session("日本語 🙂")
        for name in ("", "a\nb", "x" * 256, "\udcff"):
            with pytest.raises(InputError, match="session name"):
                store.create_session(name)
        for wrong in ("other", 7, "x" * 600, ""):
            with pytest.raises(SessionNotFound, match="it has 日本語 🙂"):
                store.session(wrong)
        with pytest.raises(SessionNotFound):
            store.read_tail(9)
        with pytest.raises(SessionNotFound):
            store.append(Append(9, 0, np.empty(0, dtype=np.int32), b"", (), "s", "document"))


def test_the_clock_may_go_backwards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = filled_store(folder / "store")
    with write_store(folder / "store") as store:
        before = store.session("main").updated_s
        monkeypatch.setattr(time, "time", lambda: 1000.0)
        store.append(make_append(model, random.Random(1)))
        assert store.session("main").updated_s == before


SPAN = SentenceRecord(0, 2, 0, 4)
IDS = np.arange(4, dtype=np.int32)
GOOD = Append(1, 0, IDS, b"ab", (SPAN,), "book", "document", (b"page",))


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"first_token": 1}, "append.first_token: got 1; 0 is allowed"),
        ({"role": "nobody"}, "append.role"),
        ({"pages": ()}, "append.pages: got 0 pages; 1 became full"),
        ({"pages": (b"", b"")}, "append.pages"),
        ({"token_ids": IDS - 1}, "append.token_ids"),
        ({"token_ids": IDS.reshape(2, 2)}, "append.token_ids"),
        ({"token_ids": IDS.astype(np.float32)}, "append.token_ids"),
        ({"sentences": ()}, "append.sentences"),
        ({"text": b""}, "append.sentences"),
        ({"text": b"abc"}, "append.sentences"),
        ({"sentences": (SentenceRecord(0, 1, 0, 4), SentenceRecord(1, 1, 0, 4), SentenceRecord(1, 2, 0, 4))}, "tile"),
        ({"sentences": (SentenceRecord(0, 2, 0, 5),)}, "token spans outside 0 to 4"),
        ({"sentences": (SentenceRecord(0, 2, 3, 2),)}, "token spans"),
    ],
)
def test_an_append_that_does_not_fit_is_refused_and_names_the_field(
    folder: Path, changes: dict[str, Any], field: str
) -> None:
    with new_store(folder / "store") as store:
        store.create_session("main")
        with pytest.raises(InputError, match=field):
            store.append(replace(GOOD, **changes))
        assert store.session("main").n_tokens == 0
        store.append(GOOD)
        assert_whole(store)


def test_wrong_spans_and_pages_are_refused(folder: Path) -> None:
    filled_store(folder / "store")
    with read_store(folder / "store") as store:
        for lo, hi in ((-1, 2), (3, 2), (0, 1 << 40)):
            with pytest.raises(InputError):
                store.token_ids(1, lo, hi)
            with pytest.raises(InputError):
                store.text(1, lo, hi)
        for page in (-1, 13):
            with pytest.raises(InputError, match="has 13 pages"):
                store.read_pages(1, [page])


def test_a_reader_sees_each_commit_of_a_writer(folder: Path) -> None:
    model = filled_store(folder / "store")
    rng = random.Random(5)
    with write_store(folder / "store") as writer, read_store(folder / "store") as reader:
        for _ in range(5):
            model = grown(writer, model, rng)
            assert_session(reader, model)


def test_a_reader_becomes_the_neighbour_of_a_writer_in_one_process(folder: Path) -> None:
    model = filled_store(folder / "store")
    with read_store(folder / "store") as reader:
        with write_store(folder / "store") as writer:
            model = grown(writer, model, random.Random(1))
        assert_session(reader, model)


def test_stats_name_every_part(folder: Path) -> None:
    model = filled_store(folder / "store")
    (folder / "store" / "index").mkdir()
    (folder / "store" / "index" / "vectors").write_bytes(bytes(1234))
    with read_store(folder / "store") as store:
        stats = store.stats()
    assert (stats.n_sessions, stats.n_tokens, stats.n_bytes, stats.n_chunks) == (1, len(model.ids), len(model.text), 6)
    assert (stats.n_pages, stats.n_sentences) == (len(model.pages), len(model.sentences))
    parts = stats.bytes_by_part
    assert parts["pages"] == sum(map(len, model.pages))
    assert parts["tails"] == len(model.tail)
    assert parts["index"] == 1234
    assert parts["dead"] == 0
    files = [path for path in (folder / "store").rglob("*") if path.is_file()]
    assert stats.size_bytes == sum(parts.values()) == sum(path.stat().st_size for path in files)
