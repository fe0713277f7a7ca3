"""The BM25 formula, as tantivy computes it, in plain Python.

Scores the few sentences that are not yet in tantivy, on the same scale, and is the reference that tantivy is tested
against. Source: Robertson and Zaragoza, The Probabilistic Relevance Framework (2009); the idf is Lucene's, never
negative.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from livingkv.index.hits import Found, best

K1 = 1.2
B = 0.75


def idf(n_documents: int, n_with_term: int) -> float:
    """How much a term tells that `n_with_term` of `n_documents` have."""
    return math.log(1 + (n_documents - n_with_term + 0.5) / (n_with_term + 0.5))


class TermTable:
    """Sentences as counted terms, in memory. Adding and removing take time linear in the sentence."""

    def __init__(self) -> None:
        self.n_terms = 0
        self._documents: dict[int, tuple[int, Counter[str]]] = {}
        self._postings: defaultdict[str, dict[int, int]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._documents)

    def __contains__(self, sentence_id: int) -> bool:
        return sentence_id in self._documents

    def add(self, sentence_id: int, session_id: int, terms: Iterable[str]) -> None:
        """Add a sentence, or replace it."""
        self.remove(sentence_id)
        counts = Counter(terms)
        self._documents[sentence_id] = (session_id, counts)
        self.n_terms += counts.total()
        for term, count in counts.items():
            self._postings[term][sentence_id] = count

    def remove(self, sentence_id: int) -> None:
        """Forget a sentence; nothing happens when it is not there."""
        _, counts = self._documents.pop(sentence_id, (0, Counter[str]()))
        self.n_terms -= counts.total()
        for term in counts:
            self._postings[term].pop(sentence_id)
            if not self._postings[term]:
                del self._postings[term]

    def n_with_term(self, term: str) -> int:
        """In how many sentences the term stands."""
        return len(self._postings.get(term, ()))

    def search(
        self,
        weights: Mapping[str, float],
        *,
        mean_terms: float,
        term_idf: Callable[[str], float],
        limit: int,
        session_ids: frozenset[int] | None,
    ) -> list[Found]:
        """The best `limit` sentences that have any of the terms, scored against `mean_terms` terms a sentence."""
        scores: defaultdict[int, float] = defaultdict(float)
        for term, weight in weights.items():
            postings = self._postings.get(term, {})
            factor = weight * term_idf(term) * (1 + K1) if postings else 0.0
            for sentence_id, count in postings.items():
                session_id, counts = self._documents[sentence_id]
                if session_ids is None or session_id in session_ids:
                    length = counts.total() / mean_terms
                    scores[sentence_id] += factor * count / (count + K1 * (1 - B + B * length))
        found = [Found(sentence_id, self._documents[sentence_id][0], score) for sentence_id, score in scores.items()]
        return best(found, limit)
