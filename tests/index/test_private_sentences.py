"""Private sentences are found like any others, and are never in a file of the index."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.index import Entry, Index
from livingkv.index.sentence_index import FLUSH_SENTENCES
from tests.index.word_embedder import WordEmbedder

SECRET = Entry(7007, 2, "The heron nests behind the mill.")


def found(index: Index, question: str) -> list[int]:
    """Ids of the hits."""
    return [hit.sentence_id for hit in index.probe(question, limit=5)]


@pytest.mark.parametrize("has_vectors", [False, True])
def test_they_are_found_and_never_written(tmp_path: Path, has_vectors: bool) -> None:
    embedder = WordEmbedder() if has_vectors else None
    with Index.recreate(tmp_path, embedder) as index:
        index.add([Entry(number, 1, f"The number of house {number}.") for number in range(FLUSH_SENTENCES + 5)])
        index.add_private([SECRET, Entry(7008, 2, "Another herons' place.")])
        index.commit(FLUSH_SENTENCES + 4)
        assert 7007 in found(index, "nests behind the mill")
        index.add([Entry(FLUSH_SENTENCES + 9, 1, "The heron is a bird.")])
        index.commit(FLUSH_SENTENCES + 9)
        index.flush()
        assert 7007 in found(index, "nests behind the mill")
        index.remove(sentence_ids=[7007])
        assert 7007 not in found(index, "nests behind the mill")
        index.add_private([SECRET])
    with Index.open(tmp_path, embedder, "read") as index:
        assert index.n_sentences == FLUSH_SENTENCES + 6  # the others, and what the vectors' check counts
        assert index._durable.lexical.n_with_term("mill") == 0 and index._durable.lexical.n_with_term("heron") == 1
        assert 7007 not in found(index, "nests behind the mill")
        assert index.check() == []
        index.add_private([SECRET])
        assert 7007 in found(index, "nests behind the mill")


def test_a_reader_keeps_them_when_a_writer_goes_past(tmp_path: Path) -> None:
    Index.recreate(tmp_path, None).close()
    with Index.open(tmp_path, None, "write") as writer, Index.open(tmp_path, None, "read") as reader:
        reader.add_private([SECRET])
        writer.add([Entry(9, 1, "A house.")])
        writer.commit(9)
        writer.flush()
        assert found(reader, "house") == [9] and found(reader, "mill") == [7007]
