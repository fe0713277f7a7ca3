"""Another embedder for an index that is in use: swapped in at once, the old one stands until then."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from livingkv.errors import IndexDamaged
from livingkv.index import Entry, Index
from tests.index.word_embedder import WordEmbedder

TEXTS = ("The roof leaks.", "The cat sleeps.", "Rent is due on Monday.")
ENTRIES = [Entry(number, 0, text) for number, text in enumerate(TEXTS)]


def filled(path: Path, embedder: WordEmbedder) -> Index:
    index = Index.recreate(path, embedder)
    index.add(ENTRIES)
    index.commit(len(ENTRIES) - 1)
    index.flush()
    return index


def test_the_new_vectors_are_found_by(tmp_path: Path) -> None:
    old, new = WordEmbedder("old", 32), WordEmbedder("new", 64)
    with filled(tmp_path, old) as index:
        index.reembed(new, [ENTRIES[:2], ENTRIES[2:]])
        assert index.embedder_id == "new"
        assert index.probe("cat", limit=1)[0].semantic_rank == 1
        index.add([Entry(3, 0, "The dog barks.")])
        index.commit(3)
        assert index.check() == []
    with Index.open(tmp_path, new, "read") as index:
        assert index.probe("dog", limit=1)[0].sentence_id == 3
        assert index.check() == []
    assert len(list(tmp_path.glob("vectors-*.lkv"))) == 1


def test_a_reader_goes_on_by_words_and_then_with_the_new_embedder(tmp_path: Path) -> None:
    old, new = WordEmbedder("old", 32), WordEmbedder("new", 64)
    with filled(tmp_path, old) as writer, Index.open(tmp_path, old, "read") as reader:
        assert reader.probe("cat", limit=1)[0].semantic_rank == 1
        writer.reembed(new, [ENTRIES])
        hit = reader.probe("cat", limit=1)[0]
        assert (hit.sentence_id, hit.semantic_rank, reader.has_embedder) == (1, None, False)
        reader.use_embedder(new)
        assert reader.probe("cat", limit=1)[0].semantic_rank == 1


@pytest.mark.parametrize("given", [ENTRIES[:2], []])
def test_sentences_that_are_missing_leave_the_old_vectors(tmp_path: Path, given: list[Entry]) -> None:
    old = WordEmbedder("old", 32)
    with filled(tmp_path, old) as index:
        with pytest.raises(IndexDamaged, match="repair"):
            index.reembed(WordEmbedder("new", 64), [given])
        assert index.embedder_id == "old"
        assert index.probe("cat", limit=1)[0].semantic_rank == 1
    with Index.open(tmp_path, old, "write") as index:
        assert index.check() == []


def test_an_embedder_that_fails_leaves_the_old_vectors(tmp_path: Path) -> None:
    class Failing(WordEmbedder):
        def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
            raise RuntimeError("no")

    old = WordEmbedder("old", 32)
    with filled(tmp_path, old) as index:
        with pytest.raises(RuntimeError):
            index.reembed(Failing("new", 64), [ENTRIES])
        index.add([Entry(3, 0, "The dog barks.")])
        index.commit(3)
        index.flush()
        assert index.probe("dog", limit=1)[0].semantic_rank == 1
    with Index.open(tmp_path, old, "read") as index:
        assert index.check() == []
