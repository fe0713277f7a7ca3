"""The verbs that carry sessions between stores: export to one portable file, import from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from livingkv.store.budget import StoreBudget
from livingkv.store.chunk_payload import Chunk
from livingkv.store.moving import Importing, export_records, require_importable
from livingkv.store.plan import Plan
from livingkv.store.portable import PortableFile, write_portable
from livingkv.store.records import RecordType
from livingkv.store.rows import PortableChunk, SessionRow


class StoreTransfer(StoreBudget):
    """Base of `Store`: export and import."""

    def export_session(self, session_id: int, path: str | Path, *, kv: bool = True) -> int:
        """Write a session to one file: text, ids, sentences, sources, and with `kv` its pages and tail. Its size.

        The file is whole and durable on return, or not there. Weights and the index stay behind.
        Raises SessionNotFound, RecordDamaged, PageDamaged (repair first, or leave KV out), StoreFull, StoreUnwritable.
        """
        with self._catalog.read() as snapshot:
            header, records = export_records(self._reading, snapshot, session_id, self.fingerprint, kv=kv)
        return write_portable(self._disk, Path(path), header, records)

    def import_session(self, path: str | Path, *, name: str | None = None, kv: bool = True) -> SessionRow:
        """Make a session from an exported file, under its own name or `name`, in one commit; durable on return.

        kv: False leaves pages and tail out, which needs the same tokenizer only; they can be rebuilt.
        Raises FingerprintMismatch (see `portable_text` for files of other tokenizers), RecordDamaged (cut short or
        changed), SessionExists, FormatUnsupported, StoreFull or StoreError. Nothing is changed then.
        """
        with PortableFile(Path(path)) as file, self._append_lock:
            require_importable(file.header, self.fingerprint, Path(path), kv=kv)
            importing = self._importing(file, name, kv=kv)
            if self._make_room(importing.plan, importing.page_bytes):
                importing = self._importing(file, name, kv=kv)
            plan = importing.plan
            log = [entry.record for entry in plan.log]
            self._writing().commit(plan.state, importing.page_records(), log, importing.put)
        return self.session(importing.session_id)

    def _importing(self, file: PortableFile, name: str | None, *, kv: bool) -> Importing:
        with self._catalog.read() as snapshot:
            plan = Plan(snapshot.state())
            options = (self.fingerprint.page_tokens, int(time.time() * 1000))
            return Importing(plan, snapshot, file, name or file.header.name, *options, kv=kv)


def portable_text(path: str | Path) -> Iterator[PortableChunk]:
    """The appends of an exported session, to be ingested again. Raises RecordDamaged or StoreError."""
    with PortableFile(Path(path)) as file:
        for each in file.records():
            if each.record_type == RecordType.CHUNK:
                chunk = Chunk(each.payload)
                yield PortableChunk(
                    text=chunk.text(),
                    source=chunk.source,
                    source_digest=chunk.source_digest,
                    role=chunk.role,
                    end_of_source=chunk.end_of_source,
                    ends_turn=chunk.ends_turn,
                )


def require_portable(path: str | Path) -> None:
    """Raise unless a file is a whole exported session: RecordDamaged, FormatUnsupported or StoreError."""
    with PortableFile(Path(path)):
        return
