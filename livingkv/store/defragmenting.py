"""Moving what lives in a segment to newer ones (FORMAT.md, section 11), one segment and one commit at a time.

Knows which rows lead into a segment; refuses to know what the records mean: they are copied byte for byte.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from livingkv.errors import LivingKVError, RecordDamaged
from livingkv.store.catalog import Changes
from livingkv.store.disk import Disk
from livingkv.store.items import ChunkItem, PageItem, PageState
from livingkv.store.records import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    Location,
    Record,
    record_bytes,
    unpack_record_header,
    verified_payload,
)
from livingkv.store.segment_writer import segment_path
from livingkv.store.snapshot import Snapshot

Row = tuple[int, int, ChunkItem | PageItem | None]
"""Session, number, and the chunk's or page's row; None for a session record."""


class Living:
    """Rows by the record that they lead to."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.state = snapshot.state()
        self.segments = snapshot.segments()
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

    def victims(self, least_dead: float, held: Mapping[int, int] | None = None) -> list[int]:
        """Segments worth moving, those with the largest share of dead bytes first.

        held: what each segment takes on disk now, if holes are not to count; what is never dead is the rest of a
        file's last block.
        """
        totals = {number: item.committed - SEGMENT_HEADER_BYTES for number, item in self.segments.items()}
        if held is not None:
            totals = {number: min(total, held.get(number, 0)) for number, total in totals.items()}
        shares = {number: self.dead_share(number, total) for number, total in totals.items()}
        worth = [number for number, share in shares.items() if share > 0 and share >= least_dead]
        return sorted(worth, key=lambda number: -shares[number])


class Move:
    """One segment's records on their way."""

    def __init__(self, disk: Disk, folder: Path, number: int, rows: dict[Location, list[Row]]) -> None:
        self._disk = disk
        self._path = segment_path(folder, number)
        self._number = number
        self.places = sorted(rows)
        self._rows = rows

    def require_whole(self) -> None:
        """Raise RecordDamaged if a record cannot be copied: the segment stays then, for what else is in it."""
        for _ in self.records():
            pass

    def records(self) -> Iterator[Record]:
        """The records as they are. Raises RecordDamaged."""
        try:
            descriptor = self._disk.open_existing(self._path, writable=False)
        except OSError as error:
            raise RecordDamaged(f"segment {self._number}: cannot be read ({error.strerror or error})") from error
        try:
            for place in self.places:
                data = self._disk.read(descriptor, record_bytes(place.length), place.offset)
                header = unpack_record_header(data, self._number, place.offset)
                payload = verified_payload(data, header, self._number, place.offset)
                end = RECORD_HEADER_BYTES + len(payload)
                yield data[:RECORD_HEADER_BYTES], payload, bytes(record_bytes(len(payload)) - end)
        except OSError as error:
            raise RecordDamaged(f"segment {self._number}: cannot be read ({error.strerror or error})") from error
        finally:
            self._disk.close(descriptor)

    def put(self, changes: Changes, page_places: Sequence[Location], log_places: Sequence[Location]) -> None:
        """Lead the rows to where the records are now."""
        for old, new in zip(self.places, page_places or log_places, strict=True):
            for session_id, number, item in self._rows[old]:
                if item is None:
                    changes.put_event(session_id, number, new)
                elif isinstance(item, ChunkItem):
                    changes.put_chunk(session_id, number, item._replace(location=new))
                else:
                    changes.put_page(session_id, number, item._replace(location=new))


def movable(disk: Disk, folder: Path, number: int, living: Living) -> Move | str:
    """A segment ready to be moved, or why it is not."""
    move = Move(disk, folder, number, living.rows[number])
    try:
        move.require_whole()
    except LivingKVError as error:
        return f"segment {number} is not moved: {error}"
    return move
