"""The life of an index folder: reopening, readers, damage, other embedders, no space."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from livingkv.errors import EmbedderMismatch, IndexDamaged, IndexFault, StoreFull, StoreLocked
from livingkv.index import Entry, Hit, Index
from livingkv.index.sentence_index import FLUSH_SENTENCES
from tests.index.word_embedder import WordEmbedder

NOTES = [
    "The boiler in the flat failed again.",
    "The staging database moved to port 5433.",
    "The production database stays on port 5432.",
    "Signe arrives on Wednesday at 18:40.",
    "parse_retry_after returns the seconds to wait.",
]


def notes(first: int = 0) -> list[Entry]:
    return [Entry(first + row, row % 2, text) for row, text in enumerate(NOTES)]


def made(path: Path, embedder: WordEmbedder | None = None) -> Index:
    index = Index.recreate(path, embedder)
    index.add(notes())
    index.commit(4)
    return index


def ids(hits: list[Hit]) -> list[int]:
    return [hit.sentence_id for hit in hits]


@pytest.mark.parametrize("embedder", [None, WordEmbedder()])
def test_what_was_committed_is_found_now_and_after_reopening(tmp_path: Path, embedder: WordEmbedder | None) -> None:
    with made(tmp_path / "index", embedder) as index:
        now = index.probe("Which port does the staging database use?", limit=3)
    with Index.open(tmp_path / "index", embedder, "write") as again:
        later = again.probe("Which port does the staging database use?", limit=3)
        assert (again.high_water, again.n_sentences) == (4, 5)
        assert again.size_bytes > 1000
        assert again.check() == []
    assert ids(now)[:2] == [1, 2]
    assert ids(later) == ids(now)


def test_staged_sentences_wait_for_the_commit(tmp_path: Path) -> None:
    with made(tmp_path) as index:
        index.add([Entry(9, 0, "A zebra crossed the road.")])
        assert index.probe("zebra", limit=3) == []
        index.commit(9)
        assert ids(index.probe("zebra", limit=3)) == [9]


def test_a_question_without_terms_or_matches_finds_nothing(tmp_path: Path) -> None:
    with made(tmp_path) as index:
        assert index.probe("", limit=3) == []
        assert index.probe("?!", limit=3) == []
        assert index.probe("zzz", limit=3) == []
        assert index.probe("boiler", limit=3, session_ids=frozenset()) == []


def test_adding_again_replaces(tmp_path: Path) -> None:
    with made(tmp_path, WordEmbedder()) as index:
        for _ in range(2):
            index.add(notes())
            index.commit(4)
            index.flush()
        assert index.n_sentences == 5
        index.add([Entry(0, 0, "The heat pump is new.")])
        index.commit(4)
        assert ids(index.probe("boiler", limit=1)) != [0] or index.probe("boiler", limit=1)[0].lexical is None
        assert ids(index.probe("heat pump", limit=1)) == [0]
        assert index.n_sentences == 5
    assert Index.open(tmp_path, None, "read").check() == []


def test_a_reader_follows_the_writer(tmp_path: Path) -> None:
    embedder = WordEmbedder()
    with made(tmp_path, embedder) as writer:
        writer.flush()
        reader = Index.open(tmp_path, embedder, "read")
        for step in range(6):
            writer.add([Entry(100 + step, 0, f"A zebra came by for time {step}.")])
            writer.commit(100 + step)
            assert len([hit for hit in reader.probe("zebra", limit=10) if hit.lexical]) == step
            writer.flush()
            assert len([hit for hit in reader.probe("zebra", limit=10) if hit.lexical]) == step + 1
            assert reader.high_water == 100 + step
        writer.remove(session_ids=[0])  # writes a new vector file and deletes the old one
        assert {hit.session_id for hit in reader.probe("zebra", limit=10)} == {1}
        reader.close()


def test_a_reader_may_add_for_itself_and_writes_nothing(tmp_path: Path) -> None:
    with made(tmp_path, WordEmbedder()) as writer:
        writer.flush()
        before = sorted(path.name for path in tmp_path.rglob("*"))
        with Index.open(tmp_path, WordEmbedder(), "read") as reader:
            reader.add([Entry(5, 0, "A zebra crossed.")])
            reader.commit(5)
            assert ids(reader.probe("zebra", limit=1)) == [5]
            for call in (reader.flush, lambda: reader.remove(sentence_ids=[0])):
                with pytest.raises(IndexFault, match="opened for reading"):
                    call()
            writer.add([Entry(5, 0, "A zebra crossed."), Entry(6, 0, "Then a giraffe.")])
            writer.commit(6)
            writer.flush()
            assert [hit.sentence_id for hit in reader.probe("zebra", limit=9) if hit.lexical] == [5]
            assert (reader.n_sentences, reader.high_water) == (7, 6)
        assert len(before) > 3


def test_a_second_writer_is_refused_and_harms_nothing(tmp_path: Path) -> None:
    with made(tmp_path, WordEmbedder()) as writer:
        writer.flush()
        second = Index.open(tmp_path, WordEmbedder(), "write")
        second.add([Entry(50, 0, "An intruder.")])
        second.commit(50)
        with pytest.raises(StoreLocked, match="another process writes"):
            second.flush()
        writer.add([Entry(5, 0, "A zebra crossed.")])
        writer.commit(5)
    with Index.open(tmp_path, WordEmbedder(), "read") as index:
        assert index.check() == []
        assert ids(index.probe("zebra", limit=1)) == [5]


def test_other_embedders_are_refused_by_name(tmp_path: Path) -> None:
    made(tmp_path, WordEmbedder("first")).close()
    for other in (WordEmbedder("second"), WordEmbedder("first", 32)):
        with pytest.raises(EmbedderMismatch, match=r"vectors of first \(64 numbers each\).*rebuild"):
            Index.open(tmp_path, other, "read")
    index = Index.open(tmp_path, None, "write")
    assert ids(index.probe("boiler", limit=1)) == [0]
    with pytest.raises(EmbedderMismatch, match="needs vectors of first"):
        index.add(notes(10))
    index.use_embedder(WordEmbedder("first"))
    index.add(notes(10))
    index.commit(14)
    index.close()
    assert index.n_sentences == 10
    made(tmp_path).close()
    with pytest.raises(EmbedderMismatch, match="are none"):
        Index.open(tmp_path, WordEmbedder("first"), "read")


def test_nothing_there_and_recreate(tmp_path: Path) -> None:
    with pytest.raises(IndexDamaged, match="rebuild it from the store"):
        Index.open(tmp_path / "index", None, "write")
    made(tmp_path / "index", WordEmbedder()).close()
    with Index.recreate(tmp_path / "index", WordEmbedder("other")) as index:
        assert (index.n_sentences, index.high_water, index.embedder_id) == (0, None, "other")
        assert index.probe("boiler", limit=3) == []


def test_a_damaged_file_is_noticed_at_open_or_at_the_first_probe(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    made(whole, WordEmbedder()).close()
    names = [path.relative_to(whole) for path in whole.rglob("*") if path.is_file() and path.stat().st_size > 20]
    names = [name for name in names if not name.name.startswith(".")]
    assert len(names) >= 8
    for name in names:
        for harm in ("flip", "cut", "remove"):
            damaged = tmp_path / "damaged"
            shutil.rmtree(damaged, ignore_errors=True)
            shutil.copytree(whole, damaged)
            content = bytearray((whole / name).read_bytes())
            content[10] ^= 4
            if harm == "remove":
                (damaged / name).unlink()
            else:
                (damaged / name).write_bytes(content if harm == "flip" else content[: len(content) // 2])
            if (name.name, harm) == ("meta.json", "flip"):
                continue  # tantivy gives it no checksum; the counts of the state guard against lost sentences
            with pytest.raises(IndexDamaged, match="rebuild"):
                Index.open(damaged, WordEmbedder(), "read").probe("boiler", limit=3)


def test_many_sentences_become_durable_without_a_flush(tmp_path: Path) -> None:
    index = Index.recreate(tmp_path, None)
    for step in range(FLUSH_SENTENCES + 1):
        index.add([Entry(step, 0, f"Sentence number {step}.")])
        index.commit(step)
    reader = Index.open(tmp_path, None, "read")
    assert reader.high_water is not None
    assert FLUSH_SENTENCES - 1 <= reader.high_water <= FLUSH_SENTENCES
    index.close()


_WITHOUT_SPACE = """
import resource, sys
from pathlib import Path
from livingkv.errors import StoreFull
from livingkv.index import Entry, Index
from tests.index.word_embedder import WordEmbedder

embedder = WordEmbedder() if sys.argv[2] == "dense" else None
index = Index.recreate(Path(sys.argv[1]), embedder)
index.add([Entry(row, 0, f"note {row} of the first part") for row in range(20)])
index.commit(19)
index.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, resource.RLIM_INFINITY))
index.add([Entry(20 + row, 0, f"note {row} " + " ".join(f"w{row}x{k}" for k in range(20))) for row in range(300)])
index.commit(319)
for _ in range(2):
    try:
        index.flush()
    except StoreFull as error:
        print(error)
assert index.probe("w7x3", limit=1)[0].sentence_id == 27
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
reader = Index.open(Path(sys.argv[1]), embedder, "read")
assert (reader.n_sentences, reader.high_water, reader.check()) == (20, 19, [])
index.close()
reader = Index.open(Path(sys.argv[1]), embedder, "read")
assert (reader.n_sentences, reader.high_water, reader.check()) == (320, 319, [])
"""


@pytest.mark.slow
@pytest.mark.parametrize("channel", ["lexical", "dense"])
def test_a_file_that_cannot_grow_harms_nothing(tmp_path: Path, channel: str) -> None:
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[1] == resource.RLIM_INFINITY
    command = [sys.executable, "-c", _WITHOUT_SPACE, str(tmp_path / "index"), channel]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("no disk space") == 2


def test_a_failed_commit_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    index = made(tmp_path, WordEmbedder())
    index.flush()
    index.add([Entry(5, 0, "A zebra crossed.")])
    index.commit(5)

    def full(*_: object, **__: object) -> None:
        raise StoreFull("no disk space for the index; free some, the last commit stands")

    with monkeypatch.context() as patch:
        patch.setattr("livingkv.index.lexical.LexicalIndex.write", full)
        for call in (index.flush, lambda: index.remove(session_ids=[1])):
            with pytest.raises(StoreFull):
                call()
        assert ids(index.probe("zebra", limit=1)) == [5]
    index.flush()
    index.close()
    with Index.open(tmp_path, WordEmbedder(), "read") as again:
        assert (again.n_sentences, again.check()) == (6, [])
        assert ids(again.probe("zebra", limit=1)) == [5]
