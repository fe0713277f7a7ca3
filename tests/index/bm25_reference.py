"""BM25 as a dict and two loops: the slow second implementation that the index is tested against."""

from __future__ import annotations

import math
from collections import Counter

from livingkv.index.analysis import question_terms, terms


class SlowIndex:
    """Sentences by id. `extra` empty sentences are counted as tantivy counts the document with the state."""

    def __init__(self, *, extra: int = 1) -> None:
        self.texts: dict[int, tuple[int, str]] = {}
        self.extra = extra

    def scores(self, question: str, session_ids: frozenset[int] | None = None) -> dict[int, float]:
        """The score of every sentence that shares a term with the question."""
        documents = {key: Counter(terms(text)) for key, (_, text) in self.texts.items()}
        n = len(documents) + self.extra
        mean = sum(document.total() for document in documents.values()) / n
        n_with = Counter(term for document in documents.values() for term in document)
        scores: dict[int, float] = {}
        for key, document in documents.items():
            if session_ids is not None and self.texts[key][0] not in session_ids:
                continue
            for term, weight in question_terms(question).items():
                count = document[term]
                if count:
                    rarity = math.log(1 + (n - n_with[term] + 0.5) / (n_with[term] + 0.5))
                    norm = 1.2 * (1 - 0.75 + 0.75 * document.total() / mean)
                    scores[key] = scores.get(key, 0.0) + weight * rarity * count * 2.2 / (count + norm)
        return scores
