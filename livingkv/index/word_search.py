"""One BM25 search over the durable and the pending sentences, as if they were one collection.

Knows how the two are counted together; knows no files and no vectors.
"""

from __future__ import annotations

from collections.abc import Sequence

from livingkv.index.analysis import question_terms, terms
from livingkv.index.bm25 import TermTable, idf
from livingkv.index.hits import Found, best
from livingkv.index.lexical import LexicalIndex

MOST_TERMS = 48
"""Of a longer question the most telling terms are looked for: a term costs as much as there are sentences that have it,
and the rarest tell most and cost least."""


class WordSearch:
    """A search at one moment: made anew for each question."""

    def __init__(self, lexical: LexicalIndex, pending: TermTable) -> None:
        self._lexical = lexical
        self._pending = pending
        self._n_durable = lexical.state.n_sentences + 1  # tantivy counts the document with the state
        self._n_all = self._n_durable + len(pending)

    def search(self, question: str, *, limit: int, session_ids: frozenset[int] | None) -> tuple[list[Found], float]:
        """The best `limit` sentences of these sessions, and the share, 0..1, of the question that the first holds.

        A term has one idf, that in all sentences; tantivy's own for the durable ones is corrected by a boost. The share
        is the first score over the idf of all the terms looked for, at most MOST_TERMS.
        """
        weights = question_terms(question)
        idfs = {term: self._idf(term) for term in weights}
        if len(weights) > MOST_TERMS:
            kept = sorted(weights, key=lambda term: (-weights[term] * idfs[term], term))[:MOST_TERMS]
            weights = {term: weights[term] for term in kept}
        boosts = {
            term: weights[term] * idfs[term] / idf(self._n_durable, n_with)
            for term in weights
            if (n_with := self._n_durable_with(term))
        }
        n_terms = max(1, self._lexical.state.n_terms + self._pending.n_terms)
        found = self._lexical.search(boosts, limit=limit, session_ids=session_ids)
        found += self._pending.search(
            weights,
            mean_terms=n_terms / self._n_all,
            term_idf=idfs.__getitem__,
            limit=limit,
            session_ids=session_ids,
        )
        found = best(found, limit)
        wanted = sum(weight * idfs[term] for term, weight in weights.items())
        return found, min(1.0, found[0].score / wanted) if found else 0.0

    def coverage(self, question: str, texts: Sequence[str]) -> list[float]:
        """For each text the share of the question's terms that it holds, 0..1, rare terms counting by their idf."""
        values = {term: weight * self._idf(term) for term, weight in question_terms(question).items()}
        total = sum(values.values())
        return [
            sum(values[term] for term in values.keys() & set(terms(text))) / total if total else 0.0 for text in texts
        ]

    def _idf(self, term: str) -> float:
        return idf(self._n_all, self._n_durable_with(term) + self._pending.n_with_term(term))

    def _n_durable_with(self, term: str) -> int:
        return min(self._lexical.n_with_term(term), self._n_durable)  # tantivy still counts removed sentences
