"""Plans of a fork (FORMAT.md, section 10) and of a new name. Knows which rows a copy needs; copies no record."""

from __future__ import annotations

from itertools import groupby

from xxhash import xxh3_64_intdigest

from livingkv.store.appending import require_new_name
from livingkv.store.events import Forked, Renamed
from livingkv.store.items import PageItem, SessionFlags, SessionItem
from livingkv.store.plan import Plan
from livingkv.store.snapshot import Snapshot


def plan_fork(
    plan: Plan, snapshot: Snapshot, origin_id: int, origin: SessionItem, name: str, tail: bytes | None, now_ms: int
) -> None:
    """A new session like `origin`; its id is the only one in `plan.sessions`. `tail`: None if it is not stored."""
    require_new_name(snapshot, name)
    state = plan.state
    fork_id, sentence = state.next_session, state.next_sentence
    chunks = []
    for number, chunk in snapshot.chunks(origin_id):
        plan.chunk_rows[fork_id, number] = chunk._replace(first_sentence=sentence)
        chunks.append((chunk.owner, chunk.sequence, sentence))
        sentence += chunk.n_sentences
    rows = dict(snapshot.pages_of(origin_id))
    plan.page_rows |= {(fork_id, page): row for page, row in rows.items()}
    plan.sources |= {(fork_id, number): source for number, source in snapshot.sources(origin_id)}
    plan.tails[fork_id] = tail or b""
    plan.new_names[name] = fork_id
    plan.state = state._replace(next_session=fork_id + 1, next_sentence=sentence)
    flags = origin.flags & ~(SessionFlags.NEEDS_TAIL | SessionFlags.PINNED)
    fork = origin._replace(
        created_ms=now_ms,
        updated_ms=now_ms,
        n_events=0,
        event_bytes=0,
        tail_bytes=len(tail or b""),
        tail_checksum=xxh3_64_intdigest(tail or b""),
        name=name,
        flags=flags | (SessionFlags.NEEDS_TAIL if tail is None else SessionFlags.NONE),
        family=origin.family or origin_id,
    )
    is_text_only = bool(origin.flags & SessionFlags.TEXT_ONLY)
    event = Forked(name, now_ms, is_text_only, origin_id, tuple(chunks), _runs(rows))
    plan.add_event(fork_id, fork, event)


def _runs(rows: dict[int, PageItem]) -> tuple[tuple[int, int, int, int], ...]:
    """Runs of pages of the same owner and state: from, to, owner, state."""
    found = []
    for (owner, state), run in groupby(rows.items(), key=lambda row: (row[1].owner, row[1].state)):
        pages = [page for page, _ in run]
        found.append((pages[0], pages[-1] + 1, owner, int(state)))
    return tuple(found)


def plan_rename(plan: Plan, snapshot: Snapshot, session_id: int, session: SessionItem, name: str) -> None:
    """Another name for a session. Raises InputError or SessionExists."""
    if name == session.name:
        return
    require_new_name(snapshot, name)
    plan.old_names.append(session.name)
    plan.new_names[name] = session_id
    plan.add_event(session_id, session._replace(name=name), Renamed(name))
