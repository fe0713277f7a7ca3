"""Making room under a disk budget: the KV of the coldest pages goes first, text and pinned sessions stay.

Knows which pages are cold and what dropping them frees; refuses to know when that is needed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

from livingkv.errors import KeyMissing, RecordDamaged
from livingkv.store.events import Dropped, ranges
from livingkv.store.families import erasures
from livingkv.store.items import NOWHERE, PageItem, PageState, SessionFlags
from livingkv.store.plan import Plan
from livingkv.store.reading import Reading
from livingkv.store.records import Location, record_bytes
from livingkv.store.snapshot import Snapshot
from livingkv.store.weights import HALF_LIFE_S, all_weights

_HOLE_BYTES = 4096
"""Up to two blocks of a dropped record stay, since only whole blocks are given back."""


class _Cold(NamedTuple):
    """A page record by coldness: its warmth, when its session was last written, its page number."""

    warmth: float
    updated_ms: int
    page: int
    place: Location


def plan_room(plan: Plan, snapshot: Snapshot, reading: Reading, n_bytes: int, page_tokens: int, now_ms: int) -> bool:
    """Drop the coldest pages until `n_bytes` are free. False if there are not so many; the plan is empty then."""
    rows: dict[Location, list[tuple[int, int]]] = defaultdict(list)
    for session_id, page, item in snapshot.pages():
        if item.state is PageState.PRESENT:
            rows[item.location].append((session_id, page))
    dropped: dict[int, list[int]] = defaultdict(list)
    places = []
    for cold in sorted(_candidates(snapshot, reading, rows, page_tokens, now_ms)):
        if n_bytes <= 0:
            break
        places.append(cold.place)
        n_bytes -= max(0, record_bytes(cold.place.length) - 2 * _HOLE_BYTES)
        for session_id, page in rows[cold.place]:
            dropped[session_id].append(page)
    if n_bytes > 0:
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
) -> Iterator[_Cold]:
    sessions = dict(snapshot.sessions())
    warmth = _warmth(snapshot, reading, page_tokens, now_ms)
    for place, users in rows.items():
        if not any(sessions[session_id].flags & SessionFlags.PINNED for session_id, _ in users):
            warm = max(warmth.get(user, 0.0) for user in users)
            yield _Cold(warm, max(sessions[session_id].updated_ms for session_id, _ in users), users[0][1], place)


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
