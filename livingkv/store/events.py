"""Session records (FORMAT.md, section 5): what happened to a session besides appends, as typed events and JSON.

Knows each event's fields; refuses to know what follows from them.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from reprlib import repr as short

from livingkv.errors import FormatUnsupported, RecordDamaged
from livingkv.json_fields import LARGEST, FieldError, Fields
from livingkv.store.items import PageState

_NUMBER = (1 << 32) - 1
_STATE = int(max(PageState))
_CHUNK_ROW = (_NUMBER, LARGEST, LARGEST)
_RUN = (_NUMBER, _NUMBER, _NUMBER, _STATE)

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
        given = Fields.read(payload)
        name = given.text("event")
        if name not in _KINDS:
            raise FormatUnsupported(f"session record: event {short(name)}: update livingkv to read it")
        return _event(_KINDS[name], given)
    except FieldError as error:
        raise RecordDamaged(f"session record: not an event ({error})") from error


def _event(kind: type[Event], given: Fields) -> Event:
    """An event of its kind; fields that it does not know are left out. Raises FieldError."""
    if kind is Created or kind is Forked:
        begun = (given.text("name"), given.integer("created_ms"))
        text_only = "text_only" in given.names and given.flag("text_only")
        if kind is Created:
            return Created(*begun, text_only)
        chunks, pages = given.rows("chunks", _CHUNK_ROW), given.rows("pages", _RUN)
        return Forked(
            *begun,
            text_only,
            given.integer("of", hi=_NUMBER),
            tuple((owner, sequence, first) for owner, sequence, first in chunks),
            tuple((lo, hi, owner, state) for lo, hi, owner, state in pages),
        )
    if kind is Renamed:
        return Renamed(given.text("name"))
    if kind is Pinned:
        return Pinned(given.flag("pinned"))
    if kind is Forgotten:
        return Forgotten()
    ranges_given = tuple((lo, hi) for lo, hi in given.rows("pages", (_NUMBER, _NUMBER)))
    return Restored(ranges_given) if kind is Restored else Dropped(ranges_given, given.integer("state", hi=_STATE))


def name_in(payload: bytes) -> str | None:
    """The session's name in the payload of a session record; None where there is none, or it cannot be read."""
    try:
        return Fields.read(payload).text("name")
    except FieldError:
        return None


def with_name(payload: bytes, name: str) -> bytes:
    """The payload of a session record that has a name, with another one; every other field as it is."""
    return json.dumps(json.loads(payload) | {"name": name}, ensure_ascii=False).encode()


def ranges(pages: list[int]) -> Ranges:
    """Sorted page numbers as half-open ranges."""
    found: list[list[int]] = []
    for page in pages:
        if found and found[-1][1] == page:
            found[-1][1] += 1
        else:
            found.append([page, page + 1])
    return tuple((lo, hi) for lo, hi in found)
