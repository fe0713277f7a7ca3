"""Session records (FORMAT.md, section 5): what happened to a session besides appends, as typed events and JSON.

Knows each event's fields; refuses to know what follows from them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from typing import Any

from livingkv.errors import FormatUnsupported, RecordDamaged

Ranges = tuple[tuple[int, int], ...]
"""Half-open ranges of page numbers."""


@dataclass(frozen=True, slots=True)
class Created:
    """A new session. `text_only`: appends may come without KV."""

    name: str
    created_ms: int
    text_only: bool = False


@dataclass(frozen=True, slots=True)
class Renamed:
    """The session's name from now on."""

    name: str


@dataclass(frozen=True, slots=True)
class Pinned:
    """Whether a quota may take the session's pages."""

    pinned: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """Pages whose KV is given up; `state` is the number of a PageState."""

    pages: Ranges
    state: int


@dataclass(frozen=True, slots=True)
class Restored:
    """Pages that were written anew: their records carry this event's sequence."""

    pages: Ranges


@dataclass(frozen=True, slots=True)
class Forked:
    """A new session that begins as a copy of session `of`, sharing its records.

    chunks: owner and sequence of each chunk's record, and the id of its first sentence in the fork.
    pages: from, to (half-open), owner and state of each run.
    """

    name: str
    created_ms: int
    text_only: bool
    of: int
    chunks: tuple[tuple[int, int, int], ...]
    pages: tuple[tuple[int, int, int, int], ...]


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The session is gone; what its relatives share with it stays."""


Event = Created | Renamed | Pinned | Dropped | Restored | Forked | Forgotten
_KINDS: dict[str, type[Event]] = {
    "create": Created,
    "rename": Renamed,
    "pin": Pinned,
    "drop": Dropped,
    "restore": Restored,
    "fork": Forked,
    "forget": Forgotten,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def pack_event(event: Event) -> bytes:
    """The payload of a session record."""
    return json.dumps({"event": _NAMES[type(event)], **asdict(event)}, ensure_ascii=False).encode()


def unpack_event(payload: bytes) -> Event:
    """The event of `pack_event`. Raises RecordDamaged, or FormatUnsupported for an event of a later version."""
    try:
        values = json.loads(payload)
        name = values.pop("event")
        kind = _KINDS.get(name)
        if kind is None:
            raise FormatUnsupported(f"session record: event {name!r}: update livingkv to read it")
        known = {each.name for each in fields(kind)}
        return kind(**{key: _frozen(value) for key, value in values.items() if key in known})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RecordDamaged(f"session record: not an event ({error})") from error


def name_in(payload: bytes) -> str | None:
    """The session's name in the payload of a session record; None where there is none, or it cannot be read."""
    try:
        name = json.loads(payload).get("name")
    except (ValueError, AttributeError):
        return None
    return name if isinstance(name, str) else None


def with_name(payload: bytes, name: str) -> bytes:
    """The payload of a session record that has a name, with another one; every other field as it is."""
    return json.dumps(json.loads(payload) | {"name": name}, ensure_ascii=False).encode()


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def ranges(pages: list[int]) -> Ranges:
    """Sorted page numbers as half-open ranges."""
    found: list[list[int]] = []
    for page in pages:
        if found and found[-1][1] == page:
            found[-1][1] += 1
        else:
            found.append([page, page + 1])
    return tuple((lo, hi) for lo, hi in found)
