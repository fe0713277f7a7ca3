"""A new index filled at once is the one that is fed sentence by sentence, and takes over the vectors that there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from livingkv.index import Entry, Index, filling
from tests.index.word_embedder import WordEmbedder

PLACES = ("tower", "harbour", "mill", "quarry", "ferry", "chapel", "orchard")
QUESTIONS = ("Which code opens the tower?", "Who keeps the ferry?", "mill 31")


class Counted(WordEmbedder):
    """Counts the texts that it was asked for."""

    n_texts = 0

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See Embedder."""
        self.n_texts += len(texts)
        return super().embed(texts)


def entries(*, without: int | None = None) -> list[Entry]:
    made = [Entry(3 * n, n % 4, f"Code {n} opens the {PLACES[n % 7]}.") for n in range(60)]
    return [entry for entry in made if entry.sentence_id != without]


def fed(path: Path, embedder: WordEmbedder | None, given: list[Entry]) -> Index:
    index = Index.recreate(path, embedder)
    index.add(given)
    index.commit(given[-1].sentence_id)
    index.flush()
    return index


def found(index: Index, question: str) -> list[tuple[int, int, float | None]]:
    """BM25 scores depend a little on how many commits there were, as each has a document of its own."""
    return [(hit.sentence_id, hit.session_id, hit.semantic) for hit in index.probe(question, limit=9)]


@pytest.mark.parametrize("embedder", [None, Counted()])
def test_filled_or_fed_it_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, embedder: Counted | None
) -> None:
    monkeypatch.setattr(filling, "FILL_SENTENCES", 16)
    with fed(tmp_path / "old", embedder, entries()) as old:
        known = old.held_vectors()
    kept, n_before = entries(without=30), embedder.n_texts if embedder is not None else 0
    with Index.recreate(tmp_path / "new", embedder) as new:
        with new.filling(known) as work:
            for lo in range(0, len(kept), 7):
                work.add(kept[lo : lo + 7], kept[min(lo + 6, len(kept) - 1)].sentence_id)
        assert embedder is None or embedder.n_texts == n_before  # all of them were known
        assert (new.n_sentences, new.high_water, new.check()) == (59, kept[-1].sentence_id, [])
        with fed(tmp_path / "fed", embedder, kept) as other:
            for question in QUESTIONS:
                assert found(new, question) == found(other, question)
        new.add([Entry(1000, 0, "A zebra crossed the road.")])
        new.commit(1000)
        assert new.probe("zebra", limit=1)[0].sentence_id == 1000


def test_vectors_that_are_not_known_are_made(tmp_path: Path) -> None:
    embedder = Counted()
    with fed(tmp_path / "old", embedder, entries(without=30)) as old:
        known = old.held_vectors()
    n_before = embedder.n_texts
    with Index.recreate(tmp_path / "new", embedder) as new:
        with new.filling(known) as work:
            work.add(entries(), 177)
        assert embedder.n_texts == n_before + 1
        with fed(tmp_path / "fed", embedder, entries()) as other:
            assert found(new, QUESTIONS[0]) == found(other, QUESTIONS[0])


def test_broken_off_it_goes_on_from_what_was_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filling, "FILL_SENTENCES", 16)
    new, all_of_them = Index.recreate(tmp_path / "new", None), entries()
    with pytest.raises(KeyboardInterrupt), new.filling(None) as work:
        work.add(all_of_them[:20], all_of_them[19].sentence_id)
        work.add(all_of_them[20:25], all_of_them[24].sentence_id)
        raise KeyboardInterrupt
    assert (new.n_sentences, new.high_water) == (20, all_of_them[19].sentence_id)
    new.add(all_of_them[20:])
    new.commit(all_of_them[-1].sentence_id)
    assert new.n_sentences == 60
    new.close()
