"""The verbs of a memory that only look: search, sentences and their neighbours, sessions, counts, damage.

Knows the store and its index; none of them needs the model or changes anything.
"""

from __future__ import annotations

from time import perf_counter

from livingkv.asking import check_ask
from livingkv.describing import hit_of, session_info, store_stats, stored_sentences
from livingkv.errors import InputError
from livingkv.home import Home
from livingkv.passages import Judged
from livingkv.recall import probe
from livingkv.results import CheckReport, Hit, SessionInfo, Stats, StoredSentence
from livingkv.scope import Scope
from livingkv.store import Role

MOST_FOUND = 1024
"""So many hits of the index are looked through for those of one source or role."""


class Looking:
    """Base of `Memory`."""

    _home: Home

    def search(
        self,
        question: str,
        *,
        session: str | Scope | None = None,
        limit: int = 10,
        source: str | None = None,
        role: Role | None = None,
    ) -> list[Hit]:
        """The best `limit` sentences for a question, best first, of one session, those of a `Scope` or all; of one
        source and role where they are given, as far as they are among the best MOST_FOUND. By words alone until a model
        is loaded.

        Raises QuestionError, InputError, SessionNotFound, KeyMissing or StoreError.
        """
        check_ask(question, "extract", 1)
        if not 1 <= limit <= MOST_FOUND:
            raise InputError("limit", limit, f"1 to {MOST_FOUND} is allowed")
        scope, depth = Scope.of(session), limit
        while True:
            started = perf_counter()
            found = probe(self._home.store(), self._home.index.current(), question, scope, depth).hits
            self._home.watch.probed(perf_counter() - started)
            fitting = [hit for hit in found if _is_of(hit, source, role)]
            if len(fitting) >= limit or depth >= MOST_FOUND or (source is None and role is None):
                return [hit_of(hit) for hit in fitting[:limit]]
            depth = min(4 * depth, MOST_FOUND)

    def sentences(
        self,
        *,
        session: str | Scope | None = None,
        source: str | None = None,
        role: Role | None = None,
        after: int | None = None,
        limit: int = 50,
    ) -> list[StoredSentence]:
        """Up to `limit` sentences with ids above `after` (None: from the first), oldest first, of one session, those of
        a `Scope` or all, of one source and role where they are given.

        What is damaged, and what is sealed by a key that is not there, is left out. Raises SessionNotFound, and
        KeyMissing where that is the only session.
        """
        store = self._home.store()
        ids = Scope.of(session).ids(store)
        found = store.sentences_after(after, limit, session_ids=ids, source=source, role=role)
        return stored_sentences(store, found)

    def around(self, sentence_id: int, n_before: int = 1, n_after: int = 1) -> list[StoredSentence]:
        """A sentence with its neighbours of the same session and source, in order, itself included.

        Raises InputError for an unknown id, SentenceForgotten, RecordDamaged or KeyMissing.
        """
        store = self._home.store()
        store.sentence(sentence_id)
        return stored_sentences(store, store.neighbours(sentence_id, n_before, n_after))

    def session(self, name: str) -> SessionInfo:
        """One session. Raises SessionNotFound or StoreNotFound."""
        return session_info(self._home.store().session(name))

    def sessions(self) -> list[SessionInfo]:
        """All sessions, oldest first."""
        return [session_info(row) for row in self._home.store().sessions()]

    def text(self, session: str) -> bytes:
        """All text of a session, byte for byte as it was given. Raises SessionNotFound."""
        store = self._home.store()
        return store.text(store.session(session).session_id)

    def stats(self) -> Stats:
        """Counts and bytes, everything that takes disk space named, and what this memory's tiers did so far."""
        return store_stats(self._home.store(), self._home.tier_stats())

    def check(self) -> CheckReport:
        """Verify everything that is stored, the index included. Never raises for damage, it reports it."""
        return self._home.check()


def _is_of(hit: Judged, source: str | None, role: Role | None) -> bool:
    return source in (None, hit.sentence.source) and role in (None, hit.sentence.role)
