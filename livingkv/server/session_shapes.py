"""Sessions as clients see them: a session, its sources, and its timeline.

Knows rows of the store and the names of the API; changes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from livingkv.conversation_mark import is_conversation
from livingkv.errors import InputError
from livingkv.home import Home
from livingkv.server.owners import session_of, user_of
from livingkv.store import SessionRow, Store

Shape = dict[str, Any]
MOST_ENTRIES = 1000
"""Of a timeline: the newest ones."""
_LONGEST_CURSOR = 10


def session_json(home: Home, row: SessionRow) -> Shape:
    """A session."""
    return {
        "name": session_of(row.name),
        "user": user_of(row.name) or None,
        "kind": "conversation" if is_conversation(home.store(), row.session_id) else "document",
        "tokens": row.n_tokens,
        "bytes": row.n_bytes,
        "sentences": row.n_sentences,
        "turns": row.n_turns,
        "created_s": row.created_s,
        "updated_s": row.updated_s,
        "encrypted": row.encrypted,
        "text_only": row.text_only,
        "pinned": row.pinned,
        "state": "stored" if home.holds(row) is None else "device",
    }


def session_page(home: Home, user: str | None, cursor: str | None, limit: int) -> Shape:
    """Up to `limit` sessions of a user (None: of everybody), newest first. The cursor is the id of the last one
    that was told. Raises InputError for what is none."""
    if cursor is not None and not (cursor.isascii() and cursor.isdecimal() and len(cursor) <= _LONGEST_CURSOR):
        raise InputError("cursor", repr(cursor[:64]), "the next_cursor of the answer before is allowed")
    below = None if cursor is None else int(cursor)
    rows = home.store().sessions(user) if home.has_store else []
    rows = [row for row in reversed(rows) if below is None or row.session_id < below]
    more = str(rows[limit - 1].session_id) if len(rows) > limit else None
    return {"sessions": [session_json(home, row) for row in rows[:limit]], "next_cursor": more}


def session_details(home: Home, row: SessionRow) -> Shape:
    """A session with what it was made of."""
    store = home.store()
    sources = store.sources(row.session_id)
    shown = [
        {
            "name": each.name,
            "tokens": each.n_tokens,
            "bytes": each.n_bytes,
            "sentences": each.n_sentences,
            "complete": each.complete,
        }
        for each in sources
        if each.name
    ]
    return session_json(home, row) | {"sources": shown, "timeline": _timeline(store, row)}


def _timeline(store: Store, row: SessionRow) -> list[Shape]:
    """What stands in the session from its beginning on; what follows one another of one source and role is one
    entry."""
    entries: list[Shape] = []
    forgotten = sorted(lo for _, _, lo, _ in store.gaps(row.session_id))
    for chunk in store.chunks(row.session_id):
        last = entries[-1] if entries else None
        n_forgotten = bisect_left(forgotten, chunk.token_hi) - bisect_left(forgotten, chunk.token_lo)
        n_sentences, n_bytes = chunk.n_sentences - n_forgotten, chunk.byte_hi - chunk.byte_lo
        if (
            last is not None
            and chunk.role == "document"
            and (last["source"], last["role"]) == (chunk.source, chunk.role)
        ):
            last["tokens"][1] = chunk.token_hi
            last["bytes"] += n_bytes
            last["sentences"] += n_sentences
            continue
        entries.append(
            {
                "source": chunk.source,
                "role": chunk.role,
                "tokens": [chunk.token_lo, chunk.token_hi],
                "bytes": n_bytes,
                "sentences": n_sentences,
            }
        )
    return entries[-MOST_ENTRIES:]
