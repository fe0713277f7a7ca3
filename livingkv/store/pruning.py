"""The verbs that prune: cold sentences leave the store for the archive, which can be read and erased."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from livingkv.errors import InputError, RecordDamaged
from livingkv.store.archive import Archive, sealed
from livingkv.store.items import SessionFlags
from livingkv.store.rows import ArchivedSentence, ForgetReceipt, Sentence
from livingkv.store.sentences import Sentences
from livingkv.store.transfer import StoreTransfer
from livingkv.store.weights import HALF_LIFE_S, all_weights

_SENTENCES_AT_ONCE = 1000


class StorePruning(StoreTransfer):
    """Base of `Store`: pruning."""

    _sentences: Sentences

    def prune(
        self,
        session_id: int | Collection[int] | None = None,
        *,
        keep: int | None = None,
        below: float | None = None,
        half_life_s: float = HALF_LIFE_S,
    ) -> ForgetReceipt:
        """Forget cold sentences of one session or several, or of all that are not pinned; their text goes to the
        archive first.

        keep: how many stay, the warmest; of equally warm ones the newest. below: those with less weight than this go.
        Exactly one of them is given. Raises InputError, SessionNotFound, StoreFull or StoreError; broken off, a
        sentence may be in the archive and still in the store.
        """
        if (keep is None) == (below is None) or (keep is not None and keep < 0):
            raise InputError("prune", f"keep {keep}, below {below}", "one of them is allowed, keep from 0 on")
        cold = self._cold(self._prunable(session_id), keep, below, half_life_s)
        archived = [
            ArchivedSentence(
                each.sentence_id,
                each.session_id,
                each.session,
                each.source,
                each.role,
                each.raw.decode("utf-8", "surrogateescape"),
            )
            for each in cold
        ]
        self._writing()
        if archived:
            kept = [sealed(self._vault, self._reading.key_id(each.session_id), each) for each in archived]
            with self._append_lock:
                Archive(self._disk, self.path).add(kept)
        return self._forget_sentences([each.sentence_id for each in cold], None)

    def _prunable(self, session_id: int | Collection[int] | None) -> list[Sentence]:
        named = [session_id] if isinstance(session_id, int) else session_id
        with self._catalog.read() as snapshot:
            for each in named or ():
                self._reading.require_key(each, self._reading.require_session(snapshot, each))
            pinned = {number for number, item in snapshot.sessions() if item.flags & SessionFlags.PINNED}
        wanted = None if named is None else frozenset(named)
        found: list[Sentence] = []
        last: int | None = None
        while batch := self._sentences.after(last, _SENTENCES_AT_ONCE):
            last = batch[-1].sentence_id
            found += (
                each
                for each in batch
                if (each.session_id not in pinned if wanted is None else each.session_id in wanted)
            )
        return found

    def _cold(
        self, sentences: list[Sentence], keep: int | None, below: float | None, half_life_s: float
    ) -> list[Sentence]:
        with self._catalog.read() as snapshot:
            weighed = all_weights(snapshot, int(time.time() * 1000), half_life_s)
            weights = {each.sentence_id: each.weight for each in weighed}
        if below is not None:
            return [each for each in sentences if weights.get(each.sentence_id, 0.0) < below]
        assert keep is not None
        ranked = sorted(sentences, key=lambda each: (-weights.get(each.sentence_id, 0.0), -each.sentence_id))
        return sorted(ranked[keep:], key=lambda each: each.sentence_id)

    def archived(self) -> list[ArchivedSentence]:
        """What was pruned and not erased since, oldest first; of encrypted sessions opened where the key is there.

        Raises RecordDamaged.
        """
        return [self._unsealed(each) for each in Archive(self._disk, self.path).read()]

    def adopt_archived(self, sentences: Sequence[ArchivedSentence]) -> None:
        """Add what another store had archived, in the clear, under new ids; `session_id` is of this store, 0 for a
        session that is no more. Durable on return. Broken off, call it on a new store again.

        Raises KeyMissing, StoreFull or StoreError.
        """
        if not sentences:
            return
        self._writing()
        with self._append_lock:
            with self._catalog.read() as snapshot:
                state = snapshot.state()
            first = state.next_sentence
            taken = state._replace(next_sentence=first + len(sentences))
            self._catalog.commit(lambda changes: changes.put_state(taken), before_commit=lambda: None)
            new = [replace(each, sentence_id=number) for number, each in enumerate(sentences, first)]
            kept = [sealed(self._vault, self._reading.key_id(each.session_id), each) for each in new]
            Archive(self._disk, self.path).add(kept)

    def erase_archive(self, sentence_ids: Iterable[int] | None = None) -> list[ArchivedSentence]:
        """Erase sentences from the archive: overwritten on return. Gives those that there were.

        None: all of it, also where it is damaged; only what could be read is given then. Raises RecordDamaged where
        some of a damaged archive are asked for, or StoreError.
        """
        self._writing()
        archive = Archive(self._disk, self.path)
        with self._append_lock:
            if sentence_ids is not None:
                wanted = set(sentence_ids)
                return archive.remove(lambda each: each.sentence_id in wanted)
            found: list[ArchivedSentence] = []
            with contextlib.suppress(RecordDamaged):
                found = archive.read()
            archive.clear()
            return found
