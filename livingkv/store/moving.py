"""Export and import of one session: from rows to a portable file and back (FORMAT.md, section 13)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from xxhash import xxh3_64_intdigest

from livingkv.errors import FingerprintMismatch
from livingkv.store.appending import require_new_name
from livingkv.store.catalog import Changes
from livingkv.store.chunk_payload import renumbered
from livingkv.store.events import Created, Dropped, ranges
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.items import NOWHERE, PageItem, PageState, SessionFlags
from livingkv.store.plan import Plan, PlannedLog
from livingkv.store.portable import PortableFile
from livingkv.store.portable_rules import PortableHeader
from livingkv.store.reading import Reading
from livingkv.store.records import Location, Record, RecordFlags, RecordType, pack_record
from livingkv.store.replayed_session import Replayed, logged_chunk
from livingkv.store.snapshot import Snapshot

_PAGES_AT_ONCE = 16


def export_records(
    reading: Reading, snapshot: Snapshot, session_id: int, fingerprint: Fingerprint, *, kv: bool
) -> tuple[PortableHeader, Iterator[Record]]:
    """A session as a portable file's header and records. With `kv`, all pages and the tail that are kept."""
    session = reading.require_session(snapshot, session_id)
    chunks = list(snapshot.chunks(session_id))
    pages = [page for page, item in snapshot.pages_of(session_id) if item.state is PageState.PRESENT] if kv else []
    has_tail = kv and not session.flags & SessionFlags.NEEDS_TAIL
    tail = reading.tail_of(snapshot, session_id, session) if has_tail else b""
    if session.n_tokens == session.n_sealed_tokens:
        tail = b""  # what some writers keep of no tokens at all means nothing
    is_text_only = bool(session.flags & SessionFlags.TEXT_ONLY) or not kv
    header = PortableHeader(
        fingerprint, session.name, session.created_ms, is_text_only, session.n_tokens, len(chunks), len(pages), has_tail
    )

    def records() -> Iterator[Record]:
        for number, row in chunks:
            yield _record(RecordType.CHUNK, number, reading.read_chunk(session_id, number, row).payload)
        for first in range(0, len(pages), _PAGES_AT_ONCE):
            batch = pages[first : first + _PAGES_AT_ONCE]
            for page, payload in zip(batch, reading.read_pages(session_id, batch), strict=True):
                yield _record(RecordType.PAGE, page, payload)
        if has_tail:
            yield _record(RecordType.TAIL, 0, tail)

    return header, records()


def _record(record_type: RecordType, number: int, payload: bytes) -> Record:
    return pack_record(record_type, RecordFlags.NONE, 0, number, 0, payload)


def require_importable(header: PortableHeader, own: Fingerprint, path: Path, *, kv: bool) -> None:
    """Raise FingerprintMismatch unless what is to be imported means the same in this store."""
    different = header.fingerprint.differences(own)
    if kv and different:
        raise FingerprintMismatch(
            f"{path} was written with another model ({'; '.join(different)}): import its text only, or use that model"
        )
    if header.fingerprint.tokenizer != own.tokenizer:
        raise FingerprintMismatch(f"{path} was written with another tokenizer: ingest its text again instead")


class Importing:
    """One import on its way: a plan whose pages are streamed from the file."""

    def __init__(
        self, plan: Plan, snapshot: Snapshot, file: PortableFile, name: str, page_tokens: int, now_ms: int, *, kv: bool
    ) -> None:
        require_new_name(snapshot, name)
        self.plan = plan
        self.session_id = plan.state.next_session
        self._file = file
        self._page_tokens = page_tokens
        self._kv = kv
        text_only = file.header.text_only or not kv
        self._session = Replayed(self.session_id, name, file.header.created_ms, text_only, self.session_id)
        plan.state = plan.state._replace(next_session=self.session_id + 1)
        self._first_sequence = plan.state.next_sequence
        self.pages: list[int] = []
        self.page_bytes = 0
        self._plan(Created(name, file.header.created_ms, text_only))

    def _plan(self, event: Created) -> None:
        plan, session_id = self.plan, self.session_id
        base = self._session.session_item(self._page_tokens)
        counted = plan.add_event(session_id, base._replace(n_events=0, event_bytes=0), event, ends_commit=False)
        tail: bytes | None = None
        for each in self._file.records():
            if each.record_type == RecordType.CHUNK:
                self._chunk(each.number, each.payload)
            elif each.record_type == RecordType.PAGE and self._kv:
                self.pages.append(each.number)
                self.page_bytes += len(each.payload)
            elif each.record_type == RecordType.TAIL and self._kv:
                tail = each.payload
        self._session.finish()  # the file's rules leave no chunk out
        for entry, chunk in zip(plan.log[1:], self._session.chunks, strict=True):
            plan.log[entry.number + 1] = entry._replace(chunk=chunk.item)
        row = self._session.session_item(self._page_tokens)
        missing = set(range(row.n_sealed_tokens // self._page_tokens)).difference(self.pages)
        if missing:
            lost = Dropped(ranges(sorted(missing)), PageState.DROPPED)
            counted = plan.add_event(session_id, counted, lost, ends_commit=False)
        flags = row.flags if tail is None else row.flags & ~SessionFlags.NEEDS_TAIL
        plan.sessions[session_id] = row._replace(
            n_events=counted.n_events,
            event_bytes=counted.event_bytes,
            tail_bytes=len(tail or b""),
            tail_checksum=xxh3_64_intdigest(tail or b""),
            flags=flags,
        )
        plan.tails[session_id] = tail or b""
        plan.new_names[row.name] = session_id
        plan.sources |= {(session_id, number): item for number, item in enumerate(self._session.source_items())}
        plan.page_rows |= {(session_id, page): PageItem(NOWHERE, session_id, PageState.DROPPED) for page in missing}
        plan.end_commit()

    def _chunk(self, number: int, payload: bytes) -> None:
        state = self.plan.state
        payload = renumbered(payload, state.next_sentence)
        sequence = state.next_sequence
        chunk = logged_chunk(self.session_id, sequence, NOWHERE, payload)
        self._session.logged[number] = chunk
        record = pack_record(RecordType.CHUNK, RecordFlags.NONE, self.session_id, number, sequence, payload)
        self.plan.log.append(PlannedLog(self.session_id, number, record, chunk.item))
        self.plan.state = state._replace(
            next_sequence=sequence + 1, next_sentence=state.next_sentence + chunk.item.n_sentences
        )

    def page_records(self) -> Iterator[Record]:
        """The pages, read from the file as they are written."""
        for each in self._file.records():
            if each.record_type == RecordType.PAGE and self._kv:
                place = (self.session_id, each.number, self._first_sequence)
                yield pack_record(RecordType.PAGE, RecordFlags.NONE, *place, each.payload)

    def put(self, changes: Changes, page_places: Sequence[Location], log_places: Sequence[Location]) -> None:
        """Put all rows."""
        self.plan.put(changes, (), log_places)
        for page, place in zip(self.pages, page_places, strict=True):
            changes.put_page(self.session_id, page, PageItem(place, self.session_id))
