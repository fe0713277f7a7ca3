"""The verbs that carry sessions between stores: export to one portable file, import from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from livingkv.errors import InputError
from livingkv.store.budget import StoreBudget
from livingkv.store.chunk_payload import Chunk
from livingkv.store.moving import Importing, export_records, require_importable
from livingkv.store.plan import Plan
from livingkv.store.portable import PortableFile, write_portable
from livingkv.store.records import RecordType
from livingkv.store.rows import IdempotencyKey, PortableChunk, SessionRow


class StoreTransfer(StoreBudget):
    """Base of `Store`: export and import."""

    def export_session(self, session_id: int, path: str | Path, *, kv: bool = True, decrypt: bool = False) -> int:
        """Write a session to one file: text, ids, sentences, sources, and with `kv` its pages and tail. Its size.

        The file is whole and durable on return, or not there. Weights and the index stay behind. It is in the clear:
        an encrypted session is refused (InputError) unless `decrypt` says that this is meant.
        Raises KeyMissing, SessionNotFound, RecordDamaged, PageDamaged (repair first, or leave KV out), StoreFull or
        StoreUnwritable.
        """
        with self._catalog.read() as snapshot:
            session = self._reading.require_session(snapshot, session_id)
            if session.key_id and not decrypt:
                allowed = "it is encrypted and the file would not be: pass --decrypt (decrypt=True) if that is meant"
                raise InputError("export", f"session {session.name!r}", allowed)
            self._reading.require_key(session_id, session)
            header, records = export_records(self._reading, snapshot, session_id, self.fingerprint, kv=kv)
        return write_portable(self._disk, Path(path), header, records)

    def portable_chunks(self, session_id: int) -> Iterator[PortableChunk]:
        """The appends of a session, to be ingested elsewhere, as `portable_text` gives those of a file.

        Raises RecordDamaged, KeyMissing or SessionNotFound.
        """
        with self._catalog.read() as snapshot:
            self._reading.require_session(snapshot, session_id)
            chunks = list(snapshot.chunks(session_id))
        for number, row in chunks:
            yield _portable(self._reading.read_chunk(session_id, number, row))

    def import_session(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        kv: bool = True,
        encrypt: bool = False,
        once: IdempotencyKey | None = None,
    ) -> SessionRow:
        """Make a session from an exported file, under its own name or `name`, in one commit; durable on return.

        kv: False leaves pages and tail out, which needs the same tokenizer only; they can be rebuilt.
        encrypt, once: as for `create_session`.
        Raises FingerprintMismatch (see `portable_text` for files of other tokenizers), RecordDamaged (cut short or
        changed), SessionExists, FormatUnsupported, StoreFull or StoreError. Nothing is changed then.
        """
        with PortableFile(Path(path)) as file, self._append_lock:
            require_importable(file.header, self.fingerprint, Path(path), kv=kv)
            importing = self._importing(file, name, kv=kv)
            if self._make_room(importing.plan, importing.page_bytes):
                importing = self._importing(file, name, kv=kv)
            plan = importing.plan
            if encrypt:
                self._encrypt(plan)
            if once is not None:
                plan.note_request(once)
            log = [entry.record for entry in plan.log]
            self._writing().commit(plan.state, importing.page_records(), log, importing.put, plan.key_ids())
        return self.session(importing.session_id)

    def _importing(self, file: PortableFile, name: str | None, *, kv: bool) -> Importing:
        with self._catalog.read() as snapshot:
            plan = Plan(snapshot.state())
            options = (self.fingerprint.page_tokens, int(time.time() * 1000))
            return Importing(plan, snapshot, file, name or file.header.name, *options, kv=kv)


def portable_text(path: str | Path) -> Iterator[PortableChunk]:
    """The appends of an exported session, to be ingested again.

    Raises RecordDamaged, FormatUnsupported or StoreError before the first one.
    """
    with PortableFile(Path(path)) as file:
        file.require_whole()
        for each in file.records():
            if each.record_type == RecordType.CHUNK:
                yield _portable(Chunk(each.payload))


def _portable(chunk: Chunk) -> PortableChunk:
    return PortableChunk(
        text=chunk.text(),
        source=chunk.source,
        source_digest=chunk.source_digest,
        role=chunk.role,
        end_of_source=chunk.end_of_source,
        ends_turn=chunk.ends_turn,
    )


def require_portable(path: str | Path) -> str:
    """The name of the session in a file. Raises unless it is a whole exported session: RecordDamaged, FormatUnsupported
    or StoreError."""
    with PortableFile(Path(path)) as file:
        file.require_whole()
        return file.header.name
