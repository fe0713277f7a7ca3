"""Moving what lives in a segment to newer ones (FORMAT.md, section 11), one segment and one commit at a time.

Knows which rows lead into a segment; refuses to know what the records mean: they are copied byte for byte, except that
a session record gets its session's present name in the place of an older one.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from livingkv.errors import LivingKVError, RecordDamaged
from livingkv.store.catalog import Changes
from livingkv.store.disk import Disk
from livingkv.store.events import name_in, with_name
from livingkv.store.items import ChunkItem, PageItem, PageState
from livingkv.store.records import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Location,
    Record,
    RecordFlags,
    RecordType,
    pack_record,
    record_bytes,
    unpack_record_header,
    verified_payload,
)
from livingkv.store.segment_reader import SegmentReader, Wanted
from livingkv.store.segment_writer import segment_path
from livingkv.store.snapshot import Snapshot

Row = tuple[int, int, ChunkItem | PageItem | None]
"""Session, number, and the chunk's or page's row; None for a session record."""


class Living:
    """Rows by the record that they lead to."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.state = snapshot.state()
        self.segments = snapshot.segments()
        self.names = {session_id: item.name for session_id, item in snapshot.sessions()}
        self.rows: dict[int, dict[Location, list[Row]]] = defaultdict(lambda: defaultdict(list))
        for session_id, _ in snapshot.sessions():
            for number, place in snapshot.events(session_id):
                self.rows[place.segment][place].append((session_id, number, None))
            for number, chunk in snapshot.chunks(session_id):
                self.rows[chunk.location.segment][chunk.location].append((session_id, number, chunk))
        for session_id, page, item in snapshot.pages():
            if item.state is PageState.PRESENT:
                self.rows[item.location.segment][item.location].append((session_id, page, item))

    def dead_share(self, number: int, total: int) -> float:
        """The share of `total` bytes of a segment that are not of records which a row leads to."""
        living = sum(record_bytes(place.length) for place in self.rows[number])
        return (total - living) / total if total > 0 else 0.0

    def victims(
        self, least_dead: float, held: Mapping[int, int] | None = None, old_names: OldNames | None = None
    ) -> list[int]:
        """Segments worth moving, those with the largest share of dead bytes first.

        old_names: given if one that holds an old name is worth it, too.
        held: what each segment takes on disk now, if holes are not to count; what is never dead is the rest of a
        file's last block.
        """
        totals = {number: item.committed - SEGMENT_HEADER_BYTES for number, item in self.segments.items()}
        if held is not None:
            totals = {number: min(total, held.get(number, 0)) for number, total in totals.items()}
        shares = {number: self.dead_share(number, total) for number, total in totals.items()}
        worth = {number for number, share in shares.items() if share > 0 and share >= least_dead}
        if old_names is not None:
            worth |= old_names.segments(self)
        return sorted(worth, key=lambda number: -shares[number])


class OldNames:
    """Finds session records with a name that their session does not bear any more. Reads each record once."""

    def __init__(self, reader: SegmentReader) -> None:
        self._reader = reader
        self._known: dict[Location, str | None] = {}

    def segments(self, living: Living) -> set[int]:
        """Segments that hold such a record."""
        return {
            number
            for number, rows in living.rows.items()
            for place, [(session_id, event, item), *_] in rows.items()
            if item is None and self._name(place, session_id, event) not in (None, living.names[session_id])
        }

    def _name(self, place: Location, session_id: int, event: int) -> str | None:
        if place not in self._known:
            self._known[place] = None
            with contextlib.suppress(RecordDamaged):
                self._known[place] = name_in(self._reader.read(Wanted(place, RecordType.SESSION, session_id, event)))
        return self._known[place]


class Move:
    """One segment's records on their way."""

    def __init__(
        self, disk: Disk, folder: Path, number: int, rows: dict[Location, list[Row]], names: Mapping[int, str]
    ) -> None:
        self._disk = disk
        self._path = segment_path(folder, number)
        self._number = number
        self.places = sorted(rows)
        self._rows = rows
        self._names = names
        self.renames = False

    def require_whole(self) -> None:
        """Raise RecordDamaged if a record cannot be copied: the segment stays then, for what else is in it."""
        for _ in self.records():
            pass

    def records(self) -> Iterator[Record]:
        """The records as they are, but for old names. Raises RecordDamaged."""
        if not self.places:  # then the file may be gone, too
            return
        try:
            descriptor = self._disk.open_existing(self._path, writable=False)
        except OSError as error:
            raise RecordDamaged(f"segment {self._number}: cannot be read ({error.strerror or error})") from error
        try:
            for place in self.places:
                data = self._disk.read(descriptor, record_bytes(place.length), place.offset)
                header = unpack_record_header(data, self._number, place.offset)
                payload = verified_payload(data, header, self._number, place.offset)
                if header.record_type == RecordType.SESSION:
                    old, now = name_in(payload), self._names[header.session_id]
                    if old not in (None, now):
                        self.renames = True
                        place_in_log = (header.session_id, header.number, header.sequence)
                        flags = RecordFlags(header.flags)
                        yield pack_record(RecordType.SESSION, flags, *place_in_log, with_name(payload, now))
                        continue
                end = RECORD_HEADER_BYTES + len(payload)
                yield data[:RECORD_HEADER_BYTES], payload, bytes(record_bytes(len(payload)) - end)
        except OSError as error:
            raise RecordDamaged(f"segment {self._number}: cannot be read ({error.strerror or error})") from error
        finally:
            self._disk.close(descriptor)

    def put(self, changes: Changes, page_places: Sequence[Location], log_places: Sequence[Location]) -> None:
        """Lead the rows to where the records are now."""
        if self.renames:  # free pages of the catalog may hold the old names too
            changes.put_scrub()
        for old, new in zip(self.places, page_places or log_places, strict=True):
            for session_id, number, item in self._rows[old]:
                if item is None:
                    changes.put_event(session_id, number, new)
                    if new.length != old.length:
                        self._resize(changes, session_id, record_bytes(new.length) - record_bytes(old.length))
                elif isinstance(item, ChunkItem):
                    changes.put_chunk(session_id, number, item._replace(location=new))
                else:
                    changes.put_page(session_id, number, item._replace(location=new))

    def _resize(self, changes: Changes, session_id: int, n_bytes: int) -> None:
        session = changes.session(session_id)
        assert session is not None
        changes.put_session(session_id, session._replace(event_bytes=session.event_bytes + n_bytes))


def movable(disk: Disk, folder: Path, number: int, living: Living) -> Move | str:
    """A segment ready to be moved, or why it is not."""
    move = Move(disk, folder, number, living.rows[number], living.names)
    try:
        move.require_whole()
    except LivingKVError as error:
        return f"segment {number} is not moved: {error}"
    return move
