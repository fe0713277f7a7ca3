"""The index of an open memory: opened, fed from the store, and made anew where it cannot be trusted.

Knows that everything in an index can be had again from the store; knows no question and no ranking.
"""

from __future__ import annotations

import contextlib
import tempfile
from pathlib import Path

from livingkv.errors import (
    EmbedderMismatch,
    IndexDamaged,
    IndexFault,
    InputError,
    KeyMissing,
    RecordDamaged,
    SentenceForgotten,
    StoreFull,
    StoreLocked,
)
from livingkv.index import Entry, Index
from livingkv.store_and_model import StoreAndModel

_BATCH = 1000


class HomeIndex:
    """The index beside one store, open from its first use on. Not thread-safe."""

    def __init__(self, base: StoreAndModel) -> None:
        self._base = base
        self._index: Index | None = None
        self._in_memory: dict[int, int] = {}  # encrypted session: the last sentence that the index was given
        self._closing = contextlib.ExitStack()

    @property
    def _folder(self) -> Path:
        return self._base.store().path / "index"

    def current(self) -> Index:
        """The index, with every sentence of the store in it; a writer makes it anew where it is missing, damaged
        or of another embedder, a reader makes one of its own for as long as it is open. It probes by meaning once
        the model is loaded.

        Raises StoreFull, StoreLocked or IndexFault.
        """
        if self._index is not None and self._base.loaded_engine is not None and not self._index.has_embedder:
            self._let_go()  # what it was fed without the model has no vectors
        if self._index is None:
            self._index = self._opened_index()
            self.feed()
        elif self._base.read_only:
            self.feed()
        return self._index

    def _opened_index(self) -> Index:
        self._in_memory.clear()
        folder, engine = self._folder, self._base.loaded_engine
        embedder = engine.embedder() if engine is not None else None
        try:
            index = Index.open(folder, embedder, mode="read" if self._base.read_only else "write")
            index.load()
            if self._knows_too_much(index):
                index.abandon()
                raise IndexDamaged(f"{folder} is of a later state than the store")
            return index
        except (IndexDamaged, EmbedderMismatch):
            if not self._base.read_only:
                return Index.recreate(folder, self._base.engine().embedder())
        except IndexFault:  # a file system that cannot even be locked
            if not self._base.read_only:
                raise
        own = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="livingkv-index-"))
        return Index.recreate(Path(own), embedder)

    def _knows_too_much(self, index: Index) -> bool:
        """True for an index of another moment than the store, as in a copy made while a writer was at work."""
        if index.high_water is None:
            return False
        try:
            self._base.store().sentence(index.high_water)
        except (SentenceForgotten, RecordDamaged, KeyMissing):
            return False
        except InputError:
            return True
        return False

    def _let_go(self) -> None:
        """Flush and close. What cannot be flushed is fed again at the next use, so it is no reason to fail."""
        index, self._index = self._index, None
        if index is not None:
            with contextlib.suppress(IndexFault, StoreFull, StoreLocked):
                index.close()

    def feed(self) -> None:
        """Let the index know the store's newest sentences. They can be found at once; durable at the latest at
        `close`."""
        store = self._base.store()
        if self._index is None:
            self._index = self._opened_index()
        while batch := store.sentences_after(self._index.high_water, _BATCH):
            if not self._base.read_only and not self._index.has_embedder:
                self._index.use_embedder(self._base.engine().embedder())
            self._index.add([Entry(s.sentence_id, s.session_id, s.text) for s in batch if not s.encrypted])
            self._index.commit(batch[-1].sentence_id)
        self._feed_encrypted(self._index)

    def _feed_encrypted(self, index: Index) -> None:
        """Let the index know what it does not have of encrypted sessions; it keeps that in memory alone."""
        store = self._base.store()
        for session_id in store.encrypted_sessions():
            if store.has_key(session_id):
                for batch in store.sentences_of(session_id, self._in_memory.get(session_id)):
                    index.add_private([Entry(s.sentence_id, s.session_id, s.text) for s in batch])
                    self._in_memory[session_id] = batch[-1].sentence_id

    def feed_if_possible(self) -> None:
        """The same after a commit that stands whatever becomes of the index: what it misses now it is fed at the next
        use."""
        with contextlib.suppress(IndexFault, StoreFull, StoreLocked):
            self.feed()

    def mend(self) -> None:
        """Make the index anew if a check finds anything wrong with it."""
        if self.current().check():
            self.remake()

    def remake(self) -> None:
        """A new index of what the store holds now; of the old one nothing is left on disk."""
        self._let_go()
        self._in_memory.clear()
        self._index = Index.recreate(self._folder, self._base.engine().embedder())
        self.feed()
        self._index.flush()

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the index on disk, in words. Never raises for damage."""
        try:
            with Index.open(self._folder, None, "read") as index:
                return tuple(index.check())
        except IndexFault as error:
            return (f"index: {error}; it is made anew at the next use",)

    def close(self) -> None:
        """Close it. A second call does nothing."""
        self._let_go()
        self._closing.close()
