"""The verbs that forget: sentences, a source, sessions, everything. Each returns a receipt once the bytes are gone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable

from livingkv.errors import InputError, StoreError
from livingkv.store.archive import Archive, unsealed
from livingkv.store.forgetting import Loss, plan_forget_sentences, plan_forget_sessions
from livingkv.store.items import FORGOTTEN_SOURCE
from livingkv.store.key_files import key_file
from livingkv.store.life import StoreLife
from livingkv.store.making import SEGMENTS
from livingkv.store.plan import Plan
from livingkv.store.records import record_bytes
from livingkv.store.rows import ArchivedSentence, ForgetReceipt
from livingkv.store.snapshot import Snapshot
from livingkv.store.stats import folder_bytes


class StoreForgetting(StoreLife):
    """Base of `Store`: forgetting. StoreError if bytes remain: the commit stands, open again to erase.

    dry_run: nothing is changed, and a reader may ask: the receipt counts what would go, and no bytes of files.
    """

    def forget_sentences(
        self, sentence_ids: Iterable[int], *, deep: bool = False, dry_run: bool = False
    ) -> ForgetReceipt:
        """Forget sentences: text, ids and the KV of the pages that hold them are overwritten. One commit.

        Offsets do not move: their bytes read as spaces, their token ids as 0; `gaps` tells where. Ids that were
        forgotten before are skipped. A fork keeps its own copy under its own ids.
        deep: give up the KV of all later tokens of the session too, computed while they attended the forgotten ones.
        Raises InputError for an unknown id; nothing is changed then.
        """
        wanted = set(sentence_ids)
        return self._forget_sentences(wanted, lambda each: each.sentence_id in wanted, deep=deep, dry_run=dry_run)

    def _forget_sentences(
        self,
        sentence_ids: Iterable[int],
        leaves: Callable[[ArchivedSentence], bool] | None,
        *,
        deep: bool = False,
        dry_run: bool = False,
    ) -> ForgetReceipt:
        """`leaves`: what is to leave the archive too."""
        loss = Loss()

        def make(plan: Plan, snapshot: Snapshot) -> None:
            wanted: dict[int, dict[int, set[int] | None]] = defaultdict(dict)
            for sentence_id in set(sentence_ids):
                place = snapshot.sentence_place(sentence_id) if sentence_id >= 0 else None
                row = None if place is None else snapshot.chunk(place.session_id, place.chunk)
                if place is None or row is None or sentence_id >= row.first_sentence + row.n_sentences:
                    raise InputError("sentence id", sentence_id, "ids of stored sentences are allowed")
                numbers = wanted[place.session_id].setdefault(place.chunk, set())
                assert numbers is not None
                numbers.add(sentence_id - row.first_sentence)
            for session_id, chunks in wanted.items():
                options = (self._reading.read_chunk, self.fingerprint.page_tokens, loss)
                plan_forget_sentences(plan, snapshot, session_id, chunks, *options, deep=deep)

        return self._forget(make, loss, leaves, dry_run=dry_run)

    def forget_source(self, session_id: int, name: str, *, deep: bool = False, dry_run: bool = False) -> ForgetReceipt:
        """Forget all that a session holds of the sources of that name, and the name. As `forget_sentences`.

        Raises SessionNotFound, or InputError if the session has no such source.
        """
        loss = Loss()

        def make(plan: Plan, snapshot: Snapshot) -> None:
            session = self._reading.require_session(snapshot, session_id)
            self._reading.require_key(session_id, session)
            sources = {number: item for number, item in snapshot.sources(session_id) if item.name == name}
            if not sources or not name:
                raise InputError("source", repr(name), f"sources of session {session.name!r} are allowed")
            for number, item in sources.items():
                chunks = dict.fromkeys(snapshot.source_chunks(session_id, number, 0))
                options = (self._reading.read_chunk, self.fingerprint.page_tokens, loss)
                plan_forget_sentences(plan, snapshot, session_id, chunks, *options, deep=deep, source=number)
                plan.old_sources.append((session_id, item))
                plan.sources[session_id, number] = item._replace(name="", digest=f"{FORGOTTEN_SOURCE}{number}")

        def leaves(each: ArchivedSentence) -> bool:
            return each.session_id == session_id and self._unsealed(each).source == name

        return self._forget(make, loss, leaves, dry_run=dry_run)

    def forget_session(self, session_id: int, *, dry_run: bool = False) -> ForgetReceipt:
        """As `forget_sessions`, one."""
        return self.forget_sessions([session_id], dry_run=dry_run)

    def forget_sessions(self, session_ids: Iterable[int], *, dry_run: bool = False) -> ForgetReceipt:
        """Forget sessions in one commit. Forks of them, and those they came from, stay whole. Raises SessionNotFound.

        The key of an encrypted one, if it is there, is destroyed with the last session that has it; if not, the receipt
        names its file.
        """
        loss, gone = Loss(), set(session_ids)

        def make(plan: Plan, snapshot: Snapshot) -> None:
            for session_id in gone:
                self._reading.require_session(snapshot, session_id)
            plan_forget_sessions(plan, snapshot, gone, self._reading.read_chunk, loss)

        return self._forget(make, loss, lambda each: each.session_id in gone, dry_run=dry_run)

    def forget_everything(self, *, dry_run: bool = False) -> ForgetReceipt:
        """Forget all sessions in one commit; the store stays, empty."""
        loss = Loss()

        def make(plan: Plan, snapshot: Snapshot) -> None:
            gone = [session_id for session_id, _ in snapshot.sessions()]
            plan_forget_sessions(plan, snapshot, gone, self._reading.read_chunk, loss)

        return self._forget(make, loss, lambda each: True, dry_run=dry_run)

    def _unsealed(self, archived: ArchivedSentence) -> ArchivedSentence:
        """An archived sentence with its source and text, where they are sealed and the key is there."""
        return unsealed(self._vault, self._reading.key_id(archived.session_id), archived)

    def gaps(self, session_id: int) -> list[tuple[int, int, int, int]]:
        """Forgotten spans of a session in order: from and to byte, from and to token, half-open."""
        with self._catalog.read() as snapshot:
            session = self._reading.require_session(snapshot, session_id)
            chunks = list(snapshot.chunks(session_id)) if session.n_forgotten else []
        found = []
        for number, row in chunks:
            chunk = self._reading.read_chunk(session_id, number, row)
            found += [tuple(chunk.sentence(each)) for each in sorted(chunk.forgotten)]
        return [(span[0], span[1], span[2], span[3]) for span in found]

    def _forget(
        self,
        make: Callable[[Plan, Snapshot], None],
        loss: Loss,
        leaves: Callable[[ArchivedSentence], bool] | None,
        *,
        dry_run: bool = False,
    ) -> ForgetReceipt:
        def make_whole(plan: Plan, snapshot: Snapshot) -> None:
            make(plan, snapshot)
            plan.scrubs = True
            if leaves is not None:
                plan.leaving_archive = Archive(self._disk, self.path).leaving(leaves)
            places = [(key_id, self._vault.files.place(key_id)) for key_id in loss.key_ids]
            plan.dropped_keys = [(key_id, place) for key_id, place in places if place is not None]
            if plan.log:
                plan.end_commit()

        if dry_run:
            return _receipt(loss, self._made(make_whole))
        with self._append_lock:
            before = folder_bytes(self.path / SEGMENTS)
            plan = self._committed(make_whole)
            try:
                self._writing().erase()
            except StoreError as error:
                message = f"forgotten, but bytes of it are still in {self.path} ({error}): open it for writing again"
                raise StoreError(message) from error
            written = sum(sum(map(len, entry.record)) for entry in plan.log)
            freed = max(0, before + written - folder_bytes(self.path / SEGMENTS))
        erased = sum(record_bytes(item.location.length) for item in plan.erasures)
        return _receipt(loss, plan, erased, freed)


def _receipt(loss: Loss, plan: Plan, erased: int = 0, freed: int = 0) -> ForgetReceipt:
    counts = (loss.n_tokens, loss.n_pages, loss.n_later_pages, loss.n_bytes)
    dropped = {key_id for key_id, _ in plan.dropped_keys}
    left = tuple(key_file(key_id) for key_id in loss.key_ids if key_id not in dropped)
    awaiting = max(0, erased - freed)
    return ForgetReceipt(
        tuple(sorted(loss.sentence_ids)), *counts, erased, freed, awaiting, len(dropped), keys_left=left
    )
