"""Sentences that are searchable already but not yet durable, and private ones, which never will be.

A durable commit of the lexical channel costs many syncs, so sentences wait here and go down in groups. Knows terms and
vectors; knows nothing of files. What is lost here by a crash is fed again from the store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from livingkv.index.analysis import terms
from livingkv.index.background import Spread
from livingkv.index.bm25 import TermTable
from livingkv.index.hits import Entry, Found, best
from livingkv.index.lexical import Document
from livingkv.index.mixing import Floats


class PendingSentences:
    """Sentences in memory, found by terms and by vectors."""

    def __init__(self) -> None:
        self.table = TermTable()
        self.documents: dict[int, Document] = {}
        self._private: set[int] = set()
        self._vectors: dict[int, Floats] = {}
        self._matrix: Floats | None = None  # of all vectors, until one changes

    def __len__(self) -> int:
        return len(self.documents)

    @property
    def n_public(self) -> int:
        """How many wait to become durable."""
        return len(self.documents) - len(self._private)

    def add(self, entries: Sequence[Entry], vectors: Floats | None, *, private: bool = False) -> None:
        """Take sentences, with their unit vectors [n, dim] where there is a dense channel. Replaces same ids.

        private: they are found, and never among `public`.
        """
        self._matrix = None
        for row, entry in enumerate(entries):
            document = Document(entry.sentence_id, entry.session_id, terms(entry.text))
            self.documents[entry.sentence_id] = document
            self.table.add(*document)
            if vectors is not None:
                self._vectors[entry.sentence_id] = vectors[row]
            if private:
                self._private.add(entry.sentence_id)

    def remove(self, sentence_ids: Sequence[int], session_ids: Sequence[int]) -> None:
        """Drop the sentences with one of these ids, and those of these sessions."""
        sentences, sessions = frozenset(sentence_ids), frozenset(session_ids)
        for document in list(self.documents.values()):
            if document.sentence_id in sentences or document.session_id in sessions:
                del self.documents[document.sentence_id]
                self.table.remove(document.sentence_id)
                self._vectors.pop(document.sentence_id, None)
                self._private.discard(document.sentence_id)
                self._matrix = None

    def public(self) -> list[Document]:
        """The sentences that wait to become durable."""
        return [document for document in self.documents.values() if document.sentence_id not in self._private]

    def drop_vectors(self) -> None:
        """Find by terms alone what is here now."""
        self._vectors.clear()
        self._matrix = None

    def public_vectors(self) -> Floats:
        """The vectors [n, dim] in the order of `public`."""
        return np.stack([self._vectors[document.sentence_id] for document in self.public()])

    def search_vectors(self, vector: Floats, *, limit: int, session_ids: frozenset[int] | None) -> list[Found]:
        """The best `limit` sentences by cosine with a unit vector [dim], of these sessions only."""
        if not self._vectors or not vector.any():
            return []
        cosines = self._cosines(vector)  # [n]
        documents = [self.documents[sentence_id] for sentence_id in self._vectors]
        found = [
            Found(document.sentence_id, document.session_id, float(cosine))
            for document, cosine in zip(documents, cosines, strict=True)
            if session_ids is None or document.session_id in session_ids
        ]
        return best(found, limit)

    def spread(self, vector: Floats) -> Spread:
        """Of the cosines of a unit vector [dim] with all sentences here."""
        return Spread.of(self._cosines(vector), len(self._vectors)) if self._vectors else Spread(0, 0.0, 0.0)

    def _cosines(self, vector: Floats) -> Floats:
        if self._matrix is None:
            self._matrix = np.stack(list(self._vectors.values()))  # [n, dim]
        return self._matrix @ vector
