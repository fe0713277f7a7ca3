"""Sessions as rows for those who ask; a row that has not changed is not made anew.

Knows the catalog's rows of sessions and sources; knows no records. Every question to a memory asks for the rows of all
sessions it searches, so what a row costs counts as often as there are sessions.
"""

from __future__ import annotations

from livingkv.store.item_bytes import unpack_session
from livingkv.store.items import FORGOTTEN_SOURCE, SessionFlags, SessionItem, SourceItem
from livingkv.store.rows import SessionRow
from livingkv.store.sealing import SEALED_NAME
from livingkv.store.snapshot import Snapshot


class SessionRows:
    """The rows of one store. Threads may share it: a row is replaced, never changed."""

    def __init__(self) -> None:
        self._rows: dict[int, tuple[bytes, SessionRow]] = {}  # session: bytes of its row in the catalog, and the row
        self._source_names: dict[int, tuple[int, int, dict[str, None]]] = {}  # session: sources read, forgotten, names

    def all(self, snapshot: Snapshot, folder: str | None) -> list[SessionRow]:
        """All sessions, or those of one folder, by id."""
        if len(self._rows) > snapshot.n_sessions:
            self._rows = {}  # some of them are no more
        return [self._kept(snapshot, *found) for found in snapshot.session_bodies(folder)]

    def _kept(self, snapshot: Snapshot, session_id: int, body: bytes) -> SessionRow:
        known = self._rows.get(session_id)
        if known is None or known[0] != body:
            known = self._rows[session_id] = body, self.of(snapshot, session_id, unpack_session(body))
        return known[1]

    def of(self, snapshot: Snapshot, session_id: int, item: SessionItem) -> SessionRow:
        """The row of a session with these counters."""
        n_read, n_forgotten, names = self._source_names.get(session_id, (0, 0, {}))
        if n_forgotten != item.n_forgotten:  # names may be gone
            n_read, names = 0, {}
        if n_read < item.n_sources:
            sources = snapshot.sources(session_id, n_read)
            new = {source.name: None for _, source in sources if not is_forgotten(source)}
            names = names | new  # a new dict: other threads may be reading the old one
            self._source_names[session_id] = (item.n_sources, item.n_forgotten, names)
        return SessionRow(
            session_id=session_id,
            name=item.name,
            n_tokens=item.n_tokens,
            n_sealed_tokens=item.n_sealed_tokens,
            n_bytes=item.n_bytes,
            n_sentences=item.n_sentences - item.n_forgotten,
            n_turns=item.n_turns,
            created_s=item.created_ms / 1000,
            updated_s=item.updated_ms / 1000,
            sources=tuple(names),
            text_only=bool(item.flags & SessionFlags.TEXT_ONLY),
            needs_tail=bool(item.flags & SessionFlags.NEEDS_TAIL),
            pinned=bool(item.flags & SessionFlags.PINNED),
            encrypted=bool(item.key_id),
        )


def is_forgotten(item: SourceItem) -> bool:
    """True for what is left of a source that was forgotten."""
    return not item.name and item.digest.startswith((FORGOTTEN_SOURCE, SEALED_NAME))
