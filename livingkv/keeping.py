"""The life of a memory's sessions: repair, fork, rename, forget, export, import, defragment, pin, the hottest
sentences.

Knows which parts of a memory each of them touches: store, index, hot windows. Every change is durable on return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from time import perf_counter

from livingkv.describing import hottest_sentences, session_info
from livingkv.errors import InputError
from livingkv.home import Home
from livingkv.repairing import repair_session
from livingkv.restoring import archived_in, described, erase_archived, restore_sentences
from livingkv.results import Archived, ArchiveErased, Forgotten, Hot, Ingested, Reembedded, Repaired, SessionInfo
from livingkv.scope import Scope
from livingkv.store import DefragReport, ForgetReceipt, IdempotencyKey, check_session_name


class Keeping:
    """Base of `Memory`. All verbs but `hottest` and `export` need a memory that was opened for writing."""

    _home: Home

    def repair(
        self, *, session: str | None = None, progress: Callable[[int, int], None] | None = None
    ) -> list[Repaired]:
        """Rebuild damaged, dropped and missing KV of one session or of all, from the kept token ids; nothing else
        is read.

        A text-only session is given KV when it is named. Encrypted sessions whose key is not there are left alone. One
        entry for each session that needed it; what cannot be rebuilt, as its token ids are damaged too, stands in its
        `problem` and stops no other. Damaged segment files are replaced where nothing in them is lost; `check` names
        what remains. The index is checked as well, and made anew where it is damaged. `progress` gets
        pages done and in all, session by session.
        """
        store, engine = self._home.writable_store(), self._home.engine()
        rows = [store.session(session)] if session is not None else store.sessions()
        self._home.let_go()
        store.mend_segments()  # what can be read is not to be made anew
        settings, n_sinks = self._home.settings, self._home.n_sinks
        wanted = [row for row in rows if session is not None or (not row.text_only and store.has_key(row.session_id))]
        done = [repair_session(store, engine, settings, row, n_sinks, progress) for row in wanted]
        store.mend_segments()  # whose pages have been made anew elsewhere
        self._home.index.mend()
        return [one for one in done if one.pages or one.tail or one.problem]

    def fork(self, session: str, name: str, *, once: IdempotencyKey | None = None) -> SessionInfo:
        """A new session that begins as this one; pages are shared, neither affects the other. once: stored with it,
        for `Store.request` to find. Raises SessionExists."""
        store = self._home.writable_store()
        row = store.fork(store.session(session).session_id, name, once)
        self._home.index.feed()
        return session_info(row)

    def rename(self, session: str, name: str) -> SessionInfo:
        """Give a session another name. Raises SessionExists or SessionNotFound."""
        store = self._home.writable_store()
        return session_info(store.rename(store.session(session).session_id, name))

    def pin(self, session: str, *, pinned: bool = True) -> None:
        """Keep the disk budget from taking a session's KV, or let it again."""
        store = self._home.writable_store()
        store.pin(store.session(session).session_id, pinned=pinned)

    def limit_disk(self, n_bytes: int | None) -> None:
        """Let the store take at most `n_bytes` of the disk from now on, for later writers too; None lifts that.

        Where it takes more now, the KV of the coldest pages goes at once. Raises StoreFull if text and pinned sessions
        alone are more, and nothing is changed then.
        """
        self._home.writable_store().limit_disk(n_bytes)

    def forget(
        self,
        *,
        session: str | Scope | None = None,
        source: str | None = None,
        sentence_ids: Iterable[int] = (),
        everything: bool = False,
        deep: bool = False,
        dry_run: bool = False,
    ) -> Forgotten:
        """Forget a session or those of a `Scope`, one source of a session, sentences, or everything: text, ids, KV and
        index entries are gone from the files when the receipt is returned. Forks keep their own copy.

        deep: also the KV of all later tokens of the session, which was computed while they attended what is forgotten.
        dry_run: nothing is changed, and the receipt counts what would go.
        Raises InputError when nothing or more than one thing is named, SessionNotFound or StoreError.
        """
        ids = tuple(sentence_ids)
        if sum((session is not None, bool(ids), everything)) != 1 or (source is not None and session is None):
            raise InputError(
                "forget", "nothing or several things", "name a session, its source, sentences, or everything"
            )
        store = self._home.store() if dry_run else self._home.writable_store()
        rows = () if session is None else Scope.of(session).rows(store)
        if source is not None and len(rows) != 1:
            raise InputError("session", f"{len(rows)} sessions", "one is needed for a source")
        if not dry_run:
            self._home.let_go()
        if everything:
            receipt = store.forget_everything(dry_run=dry_run)
        elif ids:
            receipt = store.forget_sentences(ids, deep=deep, dry_run=dry_run)
        elif source is None:
            receipt = store.forget_sessions([row.session_id for row in rows], dry_run=dry_run)
        else:
            receipt = store.forget_source(rows[0].session_id, source, deep=deep, dry_run=dry_run)
        if dry_run:
            return _forgotten(receipt, deep=deep)
        self._home.let_go()
        self._home.index.remake()
        return _forgotten(receipt, deep=deep)

    def prune(
        self, *, session: str | Iterable[str] | None = None, keep: int | None = None, below: float | None = None
    ) -> Forgotten:
        """Forget the coldest sentences of one session or several, or of all that are not pinned; their text goes to the
        store's archive first. The receipt is that of `forget`: store and index are done when it is returned.

        keep: how many sentences stay, the most and latest recalled. below: those of less weight than this go.
        Raises InputError unless exactly one of them is given, SessionNotFound, StoreFull or StoreError.
        """
        store = self._home.writable_store()
        named = [session] if isinstance(session, str) else session
        session_ids = None if named is None else [store.session(name).session_id for name in named]
        self._home.let_go()
        receipt = store.prune(session_ids, keep=keep, below=below)
        self._home.let_go()
        self._home.index.remake()
        return _forgotten(receipt, deep=False)

    def reembed(self, embedder: str, *, progress: Callable[[int, int], None] | None = None) -> Reembedded:
        """Make the vectors of all sentences anew with another embedder, from the kept text, and swap them in.

        embedder: as `Settings.embedder`. Durable on return; broken off, the old vectors stand. Readers go on meanwhile.
        `progress` gets sentences done and in all. Raises ModelNotFound or ModelDamaged before anything is changed.
        """
        started = perf_counter()
        store = self._home.writable_store()
        made = self._home.index.reembed(embedder, progress)
        n = sum(row.n_sentences for row in store.sessions())
        return Reembedded(embedder, made.id, made.dimension, n, perf_counter() - started)

    def archived(self, *, session: str | None = None) -> list[Archived]:
        """What was pruned of one session or of all and not erased since, oldest first. Needs no model.

        Raises SessionNotFound, or RecordDamaged for a damaged archive.
        """
        return [described(each) for each in archived_in(self._home.store(), session)]

    def restore(
        self, sentence_ids: Iterable[int] | None = None, *, of: str | None = None, session: str | None = None
    ) -> list[Ingested]:
        """Read pruned sentences again, at the end of `session` or of the session that each was in; then they leave the
        archive. They are new sentences with new ids, under the name of their source. One entry for each session and
        source; durable on return. Called again after it broke off, it goes on.

        sentence_ids: these; of: those of one session; neither: all. Raises InputError for an id that is not in the
        archive, SessionNotFound, RecordDamaged, ModelError or StoreError.
        """
        store = self._home.writable_store()
        if session is not None:
            check_session_name(session)
        return restore_sentences(self._home, archived_in(store, of, sentence_ids), session)

    def erase_archive(self, sentence_ids: Iterable[int] | None = None, *, session: str | None = None) -> ArchiveErased:
        """Erase pruned sentences from the archive, all of them by default, for good: their bytes are overwritten on
        return. Needs no model. Raises InputError for an id that is not in it, SessionNotFound or StoreError.
        """
        return erase_archived(self._home.store(), session, sentence_ids)

    def export(self, session: str, path: str | Path, *, kv: bool = True, decrypt: bool = False) -> int:
        """Write a session to one portable file, with or without KV; its size in bytes. Raises PageDamaged: repair
        first. The file is in the clear, so an encrypted session is refused (InputError) unless `decrypt` is said."""
        store = self._home.store()
        return store.export_session(store.session(session).session_id, path, kv=kv, decrypt=decrypt)

    def import_file(
        self, path: str | Path, *, name: str | None = None, kv: bool = True, encrypt: bool = False
    ) -> SessionInfo:
        """Make a session from an exported file. kv=False leaves its KV out; `repair` rebuilds it from the token ids.
        encrypt: as for `ingest`.

        Raises FingerprintMismatch for a file of another model, RecordDamaged, SessionExists; nothing is changed then.
        """
        row = self._home.writable_store().import_session(path, name=name, kv=kv, encrypt=encrypt)
        if encrypt:
            self._home.let_go()
        self._home.index.feed()
        return session_info(row)

    def defrag(self) -> DefragReport:
        """Give the space of dead records back. Reads go on meanwhile; broken off, nothing is lost."""
        return self._home.writable_store().defrag()

    def hottest(self, limit: int = 10) -> list[Hot]:
        """The sentences that were recalled most and latest, warmest first."""
        return hottest_sentences(self._home.store(), limit)


def _forgotten(receipt: ForgetReceipt, *, deep: bool) -> Forgotten:
    return Forgotten(
        n_sentences=len(receipt.sentence_ids),
        n_tokens=receipt.n_tokens,
        n_pages=receipt.n_pages + (receipt.n_later_pages if deep else 0),
        n_bytes=receipt.n_bytes,
        bytes_erased=receipt.bytes_erased,
        bytes_freed=receipt.bytes_freed,
        bytes_awaiting=receipt.bytes_awaiting,
        n_keys=receipt.n_keys,
        keys_left=receipt.keys_left,
    )
