"""Making room under a disk budget: the KV of the coldest pages goes first, text and pinned sessions stay.

Knows which pages are cold and what dropping them frees; refuses to know when that is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from livingkv.errors import KeyMissing, RecordDamaged
from livingkv.store.disk import whole_blocks
from livingkv.store.events import Dropped, ranges
from livingkv.store.families import erasures
from livingkv.store.items import NOWHERE, PageItem, PageState, SessionFlags
from livingkv.store.plan import Plan
from livingkv.store.reading import Reading
from livingkv.store.records import RECORD_HEADER_BYTES, Location, record_bytes
from livingkv.store.snapshot import Snapshot
from livingkv.store.weights import HALF_LIFE_S, all_weights


class _Cold(NamedTuple):
    """A page record by coldness: first pages last, then its warmth, when its session was last written, its number."""

    is_first: bool
    warmth: float
    updated_ms: int
    page: int
    place: Location


def hole_bytes(place: Location) -> int:
    """What the file system gets back when a record is erased where it stands: the blocks wholly in its payload."""
    lo, hi = whole_blocks(place.offset + RECORD_HEADER_BYTES, record_bytes(place.length) - RECORD_HEADER_BYTES)
    return hi - lo


def moved_bytes(place: Location) -> int:
    """What the file system gets back when the records around an erased one are moved elsewhere: all of it."""
    return record_bytes(place.length)


def plan_room(
    plan: Plan,
    snapshot: Snapshot,
    reading: Reading,
    n_bytes: int,
    spare_bytes: int,
    page_tokens: int,
    now_ms: int,
    *,
    written: Collection[int],
    frees: Callable[[Location], int],
) -> bool:
    """Drop the coldest pages until they free `n_bytes`, and `spare_bytes` more if there are so many. False if there
    are not even `n_bytes`; the plan is empty then.

    written: sessions that are about to be written. frees: what dropping a record gives back.
    """
    rows: dict[Location, list[tuple[int, int]]] = defaultdict(list)
    for session_id, page, item in snapshot.pages():
        if item.state is PageState.PRESENT:
            rows[item.location].append((session_id, page))
    dropped: dict[int, list[int]] = defaultdict(list)
    places: list[Location] = []
    freed = 0
    for cold in sorted(_candidates(snapshot, reading, rows, page_tokens, now_ms, written)):
        if freed >= n_bytes + spare_bytes:
            break
        places.append(cold.place)
        freed += frees(cold.place)
        for session_id, page in rows[cold.place]:
            dropped[session_id].append(page)
    if freed < n_bytes:
        return False
    for session_id, pages in dropped.items():
        plan.page_rows |= {(session_id, page): PageItem(NOWHERE, session_id, PageState.DROPPED) for page in pages}
        session = snapshot.session(session_id)
        assert session is not None
        plan.add_event(session_id, session, Dropped(ranges(sorted(pages)), PageState.DROPPED), ends_commit=False)
    plan.erasures += erasures(places, overwrite=False)
    return True


def _candidates(
    snapshot: Snapshot,
    reading: Reading,
    rows: dict[Location, list[tuple[int, int]]],
    page_tokens: int,
    now_ms: int,
    written: Collection[int],
) -> Iterator[_Cold]:
    """Pages of sessions that are not pinned. A session's first page goes last: whatever is restored or rebuilt of the
    session begins with it."""
    sessions = dict(snapshot.sessions())
    warmth = _warmth(snapshot, reading, page_tokens, now_ms)
    updated = {each: now_ms if each in written else item.updated_ms for each, item in sessions.items()}
    for place, users in rows.items():
        if not any(sessions[session_id].flags & SessionFlags.PINNED for session_id, _ in users):
            warm = max(warmth.get(user, 0.0) for user in users)
            latest = max(updated[session_id] for session_id, _ in users)
            yield _Cold(users[0][1] == 0, warm, latest, users[0][1], place)


def _warmth(snapshot: Snapshot, reading: Reading, page_tokens: int, now_ms: int) -> dict[tuple[int, int], float]:
    """The highest weight of a sentence on each page that holds a recalled one."""
    found: dict[tuple[int, int], float] = {}
    for each in all_weights(snapshot, now_ms, HALF_LIFE_S):
        place = snapshot.sentence_place(each.sentence_id)
        if place is None:
            continue
        row = snapshot.chunk(place.session_id, place.chunk)
        try:
            chunk = reading.read_chunk(place.session_id, place.chunk, row)
        except (RecordDamaged, KeyMissing):
            continue
        span = chunk.sentence(each.sentence_id - row.first_sentence)
        for page in range(span.token_lo // page_tokens, -(-span.token_hi // page_tokens)):
            key = (place.session_id, page)
            found[key] = max(found.get(key, 0.0), each.weight)
    return found
