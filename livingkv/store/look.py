"""The verbs of a store that only look: sessions, sources, pages, text, sentences, counts and damage.

Knows which verbs must read again after a commit moved a record under them; how to read is `Reading`'s.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from livingkv.results import CheckReport
from livingkv.store.catalog import Catalog
from livingkv.store.check import check_store
from livingkv.store.disk import Disk, errors_named
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.manifest import ENCRYPTION, Manifest
from livingkv.store.reading import Reading
from livingkv.store.rows import ChunkRow, Role, Sentence, SentenceWeight, SessionRow, SourceRow, StoreStats, TokenIds
from livingkv.store.same_source import find_source
from livingkv.store.sealing import SEAL_BYTES, Kind, Place, Vault
from livingkv.store.segment_reader import SegmentReader, Wanted
from livingkv.store.sentences import Only, Sentences, require_sentence
from livingkv.store.stats import folder_bytes, measure_store
from livingkv.store.weights import HALF_LIFE_S, weights_of


class StoreLook:
    """Base of `Store`: the verbs that change nothing."""

    path: Path
    fingerprint: Fingerprint
    _catalog: Catalog
    _reading: Reading
    _sentences: Sentences
    _segments: SegmentReader
    _disk: Disk
    _vault: Vault
    _manifest: Manifest

    def session(self, name_or_id: str | int) -> SessionRow:
        """A session by its name or id. Raises SessionNotFound."""
        return self._reading.session(name_or_id)

    def sessions(self, folder: str | None = None) -> list[SessionRow]:
        """All sessions, or those of one folder, oldest first. The folder of a name is what stands before its last
        slash: "anna/diary" is in "anna", "diary" in "".
        """
        return self._reading.sessions(folder)

    def session_ids(self, folder: str) -> frozenset[int]:
        """Ids of the sessions of one folder."""
        with self._catalog.read() as snapshot:
            return frozenset(snapshot.session_ids_in(folder))

    @property
    def n_sessions(self) -> int:
        """How many sessions there are; cheap."""
        with self._catalog.read() as snapshot:
            return snapshot.n_sessions

    def sources(self, session_id: int) -> list[SourceRow]:
        """What a session holds of each of its sources, oldest first. Raises SessionNotFound."""
        return self._reading.sources(session_id)

    def source(self, session_id: int, name: str, digest: str) -> SourceRow | None:
        """What a session holds of one source, or None if nothing. Raises SessionNotFound."""
        return self._reading.source(session_id, name, digest)

    def find_source(self, session_id: int, name: str, digest: str, text: bytes) -> tuple[str, SourceRow | None]:
        """Under which digest the session holds this text, or may get it, and what it holds of it; None if nothing.

        Stored bytes are compared: where another text has the digest, or the stored one is damaged, a number is put
        behind it. Raises SessionNotFound.
        """
        return find_source(self._catalog, self._reading, session_id, name, digest, text)

    def read_pages(self, session_id: int, pages: Sequence[int]) -> list[bytes]:
        """Page bytes in the order asked for, checksums verified; pages that lie side by side are read at once.

        Raises PageDamaged (the first damaged page, naming session, page, segment and offset), PageDropped for one whose
        KV is not kept (rebuild it from the text), InputError for a page that the session does not have,
        SessionNotFound or FormatUnsupported.
        """
        return self._catalog.settled(lambda: self._reading.read_pages(session_id, pages))

    def locate_pages(self, session_id: int, pages: Sequence[int]) -> list[Wanted]:
        """Where pages stand now and what their records must say, in the order asked for. Raises as `read_pages`.

        For readers with memory of their own (livingkv.tiers), who read and verify with `segments`.
        """
        return self._reading.locate_pages(session_id, pages)

    def open_page(self, session_id: int, wanted: Wanted, payload: memoryview) -> memoryview:
        """The bytes of a page from its record's verified payload: a copy where the session is encrypted.

        Raises PageDamaged for one that was sealed for another place, or KeyMissing.
        """
        return memoryview(self._reading.opened_page(session_id, wanted, payload))

    @property
    def seal_bytes(self) -> int:
        """By how much a page's payload may be longer than the page."""
        return SEAL_BYTES if ENCRYPTION in self._manifest.features else 0

    def encrypted_sessions(self) -> list[int]:
        """Ids of the sessions that are encrypted; costs a row for each of them and for each that is new."""
        return self._reading.encrypted_sessions()

    def require_key(self, session_id: int) -> None:
        """Raise KeyMissing, naming the session, unless its content can be read. Raises SessionNotFound."""
        with self._catalog.read() as snapshot:
            self._reading.require_key(session_id, self._reading.require_session(snapshot, session_id))

    def has_key(self, session_id: int) -> bool:
        """True for a session in the clear, and for an encrypted one whose key is there."""
        return self._vault.can_open(self._reading.key_id(session_id))

    @property
    def segments(self) -> SegmentReader:
        """The store's open segments, closed with the store."""
        return self._segments

    @property
    def disk(self) -> Disk:
        """The file layer that the store was opened with."""
        return self._disk

    def read_tail(self, session_id: int) -> tuple[int, bytes]:
        """The first token of a session's tail, and its bytes, verified. Raises PageDamaged or SessionNotFound."""
        return self._reading.read_tail(session_id)

    def role_at(self, session_id: int, token: int) -> Role:
        """What the append that holds a token was: a document, or who spoke. Raises InputError past the end."""
        return self._reading.role_at(session_id, token)

    def chunks(self, session_id: int) -> list[ChunkRow]:
        """The appends of a session, oldest first. Raises SessionNotFound or RecordDamaged."""
        return self._reading.chunks(session_id)

    def token_ids(self, session_id: int, token_lo: int, token_hi: int) -> TokenIds:
        """Token ids [token_lo, token_hi) of a session, int32. Raises InputError, RecordDamaged or SessionNotFound."""
        return self._catalog.settled(lambda: self._reading.token_ids(session_id, token_lo, token_hi))

    def text(self, session_id: int, byte_lo: int = 0, byte_hi: int | None = None) -> bytes:
        """Text bytes [byte_lo, byte_hi) of a session, to its end by default, exactly as they were appended.

        Raises InputError, RecordDamaged or SessionNotFound.
        """
        return self._catalog.settled(lambda: self._reading.text(session_id, byte_lo, byte_hi))

    def sentence(self, sentence_id: int) -> Sentence:
        """One sentence. Raises InputError for an id that the store does not have, or RecordDamaged."""
        return self._catalog.settled(lambda: self._sentences.sentence(sentence_id))

    def session_of(self, sentence_id: int) -> SessionRow:
        """The session of a sentence, also where its text cannot be read. Raises InputError for an unknown id."""
        with self._catalog.read() as snapshot:
            session_id = require_sentence(snapshot, sentence_id)
        return self._reading.session(session_id)

    @property
    def next_sentence_id(self) -> int:
        """The id that the next stored sentence gets."""
        with self._catalog.read() as snapshot:
            return snapshot.state().next_sentence

    def weights_of(self, sentence_ids: Iterable[int], *, half_life_s: float = HALF_LIFE_S) -> dict[int, SentenceWeight]:
        """How warm sentences are now; those that were never recalled are left out."""
        now_ms = int(time.time() * 1000)
        with self._catalog.read() as snapshot:
            return {each.sentence_id: each for each in weights_of(snapshot, sentence_ids, now_ms, half_life_s)}

    def sentences_after(
        self,
        sentence_id: int | None,
        limit: int,
        *,
        session_ids: frozenset[int] | None = None,
        source: str | None = None,
        role: Role | None = None,
    ) -> list[Sentence]:
        """Up to `limit` sentences with ids above `sentence_id` (None: from the first), by id; of these sessions, this
        source and this role only, where they are given. Costs a row for each chunk that is passed over.

        Those of a damaged chunk (`check` names it), and of encrypted sessions whose key is not there, are left out; a
        damaged catalog raises RecordDamaged.
        """
        return self._catalog.settled(lambda: self._sentences.after(sentence_id, limit, Only(session_ids, source, role)))

    def sentences_of(self, session_id: int, sentence_id: int | None = None) -> Iterator[list[Sentence]]:
        """A session's sentences with ids above `sentence_id` (None: all), some at a time, by id.

        Those of a damaged chunk are left out. Raises KeyMissing.
        """
        return self._sentences.of_session(session_id, sentence_id)

    def neighbours(self, sentence_id: int, before: int, after: int) -> list[Sentence]:
        """The sentence with up to `before` sentences before and `after` behind it, of the same session and source.

        In order, the sentence itself included; they end where a chunk is damaged. Raises as `sentence`.
        """
        return self._catalog.settled(lambda: self._sentences.neighbours(sentence_id, before, after))

    def seal_aside(self, session_id: int, data: bytes) -> bytes:
        """Bytes to be kept outside of the store until they become an encrypted session's, sealed with its key; whatever
        was sealed so opens in that session alone. Raises KeyMissing or SessionNotFound."""
        self.session(session_id)
        return self._vault.seal(self._reading.key_id(session_id), Place(Kind.ASIDE, session_id, 0), data)

    def open_aside(self, session_id: int, sealed: bytes) -> bytes:
        """The bytes of `seal_aside`. Raises KeyMissing, SessionNotFound or RecordDamaged."""
        self.session(session_id)
        return self._vault.open(self._reading.key_id(session_id), Place(Kind.ASIDE, session_id, 0), sealed)

    @property
    def size_bytes(self) -> int:
        """What the store's files take, as `stats` says; costs a look at each file and at no row."""
        with errors_named(self.path):
            return folder_bytes(self.path)

    def stats(self) -> StoreStats:
        """Counts, and bytes by part from the real sizes of the files."""
        return measure_store(self.path, self._catalog)

    def require_catalog(self) -> None:
        """Raise RecordDamaged if the catalog's file cannot be read to its end. Rows that are damaged do not count."""
        with self._catalog.read() as snapshot:
            for _ in snapshot.damaged_entries():
                pass

    def check(self) -> CheckReport:
        """Verify every record, the catalog and that they agree. Reads the whole store; never raises for damage."""
        return check_store(self.path, self._disk, self._catalog, self._reading, self._segments, self.fingerprint)
