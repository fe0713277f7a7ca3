"""Plans that take the KV of pages away or bring it back, while the text stays.

Knows page rows and the events that make them rebuildable; refuses to know why a page goes or who computed its bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from xxhash import xxh3_64_intdigest

from livingkv.errors import InputError
from livingkv.store.events import Dropped, Pinned, Restored, ranges
from livingkv.store.families import erasures, unshared_pages
from livingkv.store.items import NOWHERE, PageItem, PageState, SessionFlags, SessionItem
from livingkv.store.plan import Plan, PlannedPage
from livingkv.store.records import RecordFlags, RecordType, pack_record
from livingkv.store.snapshot import Snapshot


def plan_drop(
    plan: Plan,
    snapshot: Snapshot,
    session_id: int,
    session: SessionItem,
    pages: Iterable[int],
    state: PageState,
    page_tokens: int,
    *,
    overwrite: bool = False,
    ends_commit: bool = True,
) -> SessionItem:
    """Give up pages that are there; others are left alone. The session's counters then. Raises InputError."""
    rows = {page: _row(snapshot, session_id, session, page, page_tokens) for page in sorted(set(pages))}
    present = {page: row for page, row in rows.items() if row.state is PageState.PRESENT}
    if state is PageState.FORGOTTEN:  # also what was dropped before may not be rebuilt as it was
        changed = [page for page, row in rows.items() if row.state is not state]
    else:
        changed = list(present)
    if not changed:
        return session
    for page in changed:
        plan.page_rows[session_id, page] = PageItem(NOWHERE, session_id, state)
    places = unshared_pages(snapshot, session_id, session, present.items())
    plan.erasures += erasures(places, overwrite=overwrite)
    return plan.add_event(session_id, session, Dropped(ranges(changed), state), ends_commit=ends_commit)


def plan_replace(
    plan: Plan,
    snapshot: Snapshot,
    session_id: int,
    session: SessionItem,
    pages: Mapping[int, bytes],
    tail: bytes | None,
    page_tokens: int,
) -> None:
    """Put pages, and the tail, in the place of those that are there or not. Raises InputError."""
    rows = {page: _row(snapshot, session_id, session, page, page_tokens) for page in sorted(pages)}
    if rows:
        sequence = plan.state.next_sequence
        for page in rows:
            record = pack_record(RecordType.PAGE, RecordFlags.NONE, session_id, page, sequence, pages[page])
            plan.pages.append(PlannedPage(session_id, page, record))
        plan.erasures += erasures(unshared_pages(snapshot, session_id, session, rows.items()), overwrite=False)
        session = plan.add_event(session_id, session, Restored(ranges(list(rows))))
    if tail is not None:
        plan.tails[session_id] = tail
        plan.sessions[session_id] = session._replace(
            tail_bytes=len(tail),
            tail_checksum=xxh3_64_intdigest(tail),
            flags=session.flags & ~SessionFlags.NEEDS_TAIL,
        )


def plan_pin(plan: Plan, session_id: int, session: SessionItem, *, pinned: bool) -> None:
    """Say whether a quota may take the session's pages."""
    if bool(session.flags & SessionFlags.PINNED) != pinned:
        flags = session.flags & ~SessionFlags.PINNED | (SessionFlags.PINNED if pinned else SessionFlags.NONE)
        plan.add_event(session_id, session._replace(flags=flags), Pinned(pinned))


def _row(snapshot: Snapshot, session_id: int, session: SessionItem, page: int, page_tokens: int) -> PageItem:
    n_pages = session.n_sealed_tokens // page_tokens
    row = snapshot.page(session_id, page) if 0 <= page < n_pages else None
    if row is None:
        raise InputError("page", page, f"session {session_id} has {n_pages} pages, counted from 0")
    return row
