"""Which sessions share records: a fork and those it came from, or that came from it. Knows rows only."""

from __future__ import annotations

from collections.abc import Iterable

from livingkv.store.items import Erasure, PageItem, PageState, SessionItem
from livingkv.store.records import Location
from livingkv.store.snapshot import Snapshot


def relatives(snapshot: Snapshot, session_id: int, session: SessionItem) -> list[int]:
    """Other sessions that may share records with this one."""
    family = session.family or session_id
    return [other for other, item in snapshot.sessions() if other != session_id and (item.family or other) == family]


def unshared_pages(
    snapshot: Snapshot, session_id: int, session: SessionItem, pages: Iterable[tuple[int, PageItem]]
) -> list[Location]:
    """Where those of a session's pages stand that no relative needs."""
    others = relatives(snapshot, session_id, session)
    found = []
    for page, item in pages:
        if item.state is PageState.PRESENT:
            shared = (snapshot.page(other, page) for other in others)
            if all(each is None or each.location != item.location for each in shared):
                found.append(item.location)
    return found


def erasures(places: Iterable[Location], *, overwrite: bool) -> list[Erasure]:
    """Erase what stands at these places."""
    return [Erasure(place, overwrite) for place in places]
