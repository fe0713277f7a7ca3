"""Sentences that are searchable already but not yet durable.

A durable commit of the lexical channel costs many syncs, so sentences wait here and go down in groups. Knows terms and
vectors; knows nothing of files. What is lost here by a crash is fed again from the store.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from livingkv.index.analysis import terms
from livingkv.index.bm25 import TermTable
from livingkv.index.hits import Entry, Found, best
from livingkv.index.lexical import Document
from livingkv.index.mixing import Floats


class PendingSentences:
    """Sentences in memory, found by terms and by vectors."""

    def __init__(self) -> None:
        self.table = TermTable()
        self.documents: dict[int, Document] = {}
        self._vectors: dict[int, Floats] = {}

    def __len__(self) -> int:
        return len(self.documents)

    def add(self, entries: Sequence[Entry], vectors: Floats | None) -> None:
        """Take sentences, with their unit vectors [n, dim] where there is a dense channel. Replaces same ids."""
        for row, entry in enumerate(entries):
            document = Document(entry.sentence_id, entry.session_id, terms(entry.text))
            self.documents[entry.sentence_id] = document
            self.table.add(*document)
            if vectors is not None:
                self._vectors[entry.sentence_id] = vectors[row]

    def remove(self, sentence_ids: Sequence[int], session_ids: Sequence[int]) -> None:
        """Drop the sentences with one of these ids, and those of these sessions."""
        sentences, sessions = frozenset(sentence_ids), frozenset(session_ids)
        for document in list(self.documents.values()):
            if document.sentence_id in sentences or document.session_id in sessions:
                del self.documents[document.sentence_id]
                self.table.remove(document.sentence_id)
                self._vectors.pop(document.sentence_id, None)

    def vectors(self) -> Floats:
        """The vectors [n, dim] in the order of `documents`."""
        return np.stack([self._vectors[sentence_id] for sentence_id in self.documents])

    def search_vectors(self, vector: Floats, *, limit: int, session_ids: frozenset[int] | None) -> list[Found]:
        """The best `limit` sentences by cosine with a unit vector [dim], of these sessions only."""
        if not self._vectors or not vector.any():
            return []
        cosines = self.vectors() @ vector  # [n]
        found = [
            Found(document.sentence_id, document.session_id, float(cosine))
            for document, cosine in zip(self.documents.values(), cosines, strict=True)
            if session_ids is None or document.session_id in session_ids
        ]
        return best(found, limit)
