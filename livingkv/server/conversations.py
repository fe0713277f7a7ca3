"""Which stored session a list of messages continues: by its name, or by its longest stored beginning.

Knows sessions of one store as segments and digests of their beginnings; knows no model. Digests say where to look, then
texts and token ids are compared. Made again from the store, in steps, before a tenant's first turn.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from time import perf_counter

from livingkv.conversation_mark import is_conversation
from livingkv.errors import RecordDamaged, SessionNotFound, StoreError
from livingkv.server.segments import Common, Segment, chain, common_part, joined
from livingkv.store import SessionRow, Store

_CANDIDATES = 4
_PAUSE_S = 0.02
"""So long others wait for a step of reading."""


@dataclass(frozen=True, slots=True, eq=False)
class Match:
    """A stored conversation and how far it is the one that was asked about."""

    session: SessionRow
    stored: list[Segment]
    common: Common

    @property
    def is_whole(self) -> bool:
        """All of the stored session is the beginning of what was asked about."""
        return self.common.n_tokens == self.session.n_tokens


class Conversations:
    """The conversations of one store, known once `fill` is through. Not thread-safe."""

    def __init__(self, store: Store | None) -> None:
        self._salt = secrets.token_bytes(16)
        self._at: dict[bytes, dict[int, None]] = {}  # digest of a beginning: sessions that begin so, newest last
        self._chains: dict[int, list[bytes]] = {}
        self._seen: dict[int, tuple[str, int, int]] = {}
        rows = store.sessions() if store is not None else ()
        self._unread = dict.fromkeys(row.session_id for row in rows)  # oldest first

    def fill(self, store: Store) -> Iterator[None]:
        """Read what was stored before, pausing often; at its end all of it is known, whoever read it."""
        paused = perf_counter()
        while self._unread:
            session_id = next(iter(self._unread))
            self._unread.pop(session_id)
            with suppress(SessionNotFound):  # forgotten since
                row = store.session(session_id)
                if is_conversation(store, session_id):
                    self.note(store, row)
            if perf_counter() - paused > _PAUSE_S:
                yield
                paused = perf_counter()

    def __len__(self) -> int:
        return len(self._chains)

    def note(self, store: Store, row: SessionRow) -> None:
        """A session was made or went on."""
        self.drop(row.session_id)
        try:
            digests = self._chain(scope_of(row.name), stored_segments(store, row))
        except StoreError:  # damaged or sealed: it cannot be continued, and is told by whoever asks for it by name
            return
        self._seen[row.session_id] = _seen(row)
        self._chains[row.session_id] = digests
        for digest in digests:
            self._at.setdefault(digest, {})[row.session_id] = None

    def renew(self, store: Store) -> None:
        """Agree with a store that was changed at large: sessions are gone, new, of another name, or hold less."""
        rows = {row.session_id: row for row in store.sessions()}
        for session_id in self._seen.keys() - rows.keys():
            self.drop(session_id)
        for session_id, row in rows.items():
            if session_id in self._unread or self._seen.get(session_id) == _seen(row):
                continue
            if is_conversation(store, session_id):
                self.note(store, row)
            else:
                self.drop(session_id)

    def drop(self, session_id: int) -> None:
        """A session is no more."""
        self._seen.pop(session_id, None)
        self._unread.pop(session_id, None)
        for digest in self._chains.pop(session_id, ()):
            found = self._at.get(digest, {})
            found.pop(session_id, None)
            if not found:
                self._at.pop(digest, None)

    def longest(self, store: Store, scope: str, asked: Sequence[Segment]) -> Match | None:
        """The session of a scope with the longest beginning in common; a whole one before one that goes on
        otherwise."""
        for digest in reversed(self._chain(scope, asked)):
            found = list(self._matches(store, asked, islice(reversed(self._at.get(digest, {})), _CANDIDATES)))
            best = max(found, key=lambda match: (match.common.n_tokens, match.is_whole), default=None)
            if best is not None:
                return best if best.common.n_tokens else None
        return None

    def with_beginning(self, scope: str, asked: Sequence[Segment]) -> frozenset[int]:
        """The sessions of a scope that begin with all of this."""
        return frozenset(self._at.get(self._chain(scope, asked)[-1], ()))

    def named(self, store: Store, row: SessionRow, asked: Sequence[Segment]) -> Match:
        """How far this session is the one that was asked about. Raises RecordDamaged or KeyMissing."""
        stored = stored_segments(store, row)
        return Match(row, stored, common_part(asked, stored))

    def _matches(self, store: Store, asked: Sequence[Segment], session_ids: Iterator[int]) -> Iterator[Match]:
        for session_id in session_ids:
            try:
                yield self.named(store, store.session(session_id), asked)
            except (RecordDamaged, SessionNotFound):
                continue

    def _chain(self, scope: str, segments: Sequence[Segment]) -> list[bytes]:
        return chain(segments, self._salt + scope.encode())


def _seen(row: SessionRow) -> tuple[str, int, int]:
    """What is another once a session goes on, is called otherwise, or has something of it forgotten."""
    return row.name, row.n_tokens, row.n_sentences


def scope_of(session: str) -> str:
    """Whose a session is: the part of its name before the last slash."""
    return session.rpartition("/")[0]


def stored_segments(store: Store, row: SessionRow) -> list[Segment]:
    """A stored conversation as it is compared. Raises RecordDamaged or KeyMissing."""
    ids = store.token_ids(row.session_id, 0, row.n_tokens)
    text = store.text(row.session_id)
    chunks = [chunk for chunk in store.chunks(row.session_id) if chunk.token_hi <= row.n_tokens]
    return joined(
        Segment(
            chunk.role,
            ids[chunk.token_lo : chunk.token_hi],
            text[chunk.byte_lo : chunk.byte_hi].decode("utf-8", "surrogateescape"),
        )
        for chunk in chunks
    )
