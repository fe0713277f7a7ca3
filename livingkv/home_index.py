"""The index of an open memory: opened, fed from the store, and made anew where it cannot be trusted.

Knows that everything in an index can be had again from the store; knows no question and no ranking.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from livingkv.embedder_choice import DEFAULT_EMBEDDER, make_embedder, name_of
from livingkv.errors import (
    EmbedderMismatch,
    IndexDamaged,
    IndexFault,
    InputError,
    KeyMissing,
    RecordDamaged,
    SentenceForgotten,
    SettingError,
    StoreFull,
    StoreLocked,
)
from livingkv.index import Batch, Embedder, Entry, Index
from livingkv.store import Sentence
from livingkv.store_and_model import StoreAndModel

_BATCH = 1000
_SMALL_BATCH = 100
"""Where others wait meanwhile: some 50 ms on a slow core."""


class HomeIndex:
    """The index beside one store, open from its first use on. Not thread-safe."""

    def __init__(self, base: StoreAndModel) -> None:
        self._base = base
        self._index: Index | None = None
        self._name: str | None = None  # of the embedder that the index's vectors are made with
        self._made: tuple[str, Embedder] | None = None
        self._in_memory: dict[int, int] = {}  # encrypted session: the last sentence that the index was given
        self._closing = contextlib.ExitStack()

    @property
    def _folder(self) -> Path:
        return self._base.store().path / "index"

    @property
    def n_sentences(self) -> int:
        """In the index as it is open now; 0 before its first use."""
        return 0 if self._index is None else self._index.n_sentences

    def current(self) -> Index:
        """The index, with every sentence of the store in it; a writer makes it anew where it is missing, damaged
        or of another embedder, a reader makes one of its own for as long as it is open. It probes by meaning once
        the model is loaded.

        Raises StoreFull, StoreLocked or IndexFault.
        """
        with self._whole():
            return self._current()

    def _current(self) -> Index:
        if self._index is not None and self._base.loaded_engine is not None and not self._index.has_embedder:
            self._let_go()  # what it was fed without the model has no vectors
        if self._index is None:
            self._index = self._opened_index()
            engine = self._base.loaded_engine
            if engine is not None and engine.model.device.type == "cuda":
                self._index.use_device(str(engine.model.device))
            self.feed()
        elif self._base.read_only:
            self.feed()
        return self._index

    def _opened_index(self) -> Index:
        self._in_memory.clear()
        folder = self._folder
        try:
            index = Index.open(folder, None, mode="read" if self._base.read_only else "write")
            self._name = self._chosen_name(index.embedder_id)
            if self._base.loaded_engine is not None:
                index.use_embedder(self._embedder())
            index.load()
            if self._knows_too_much(index):
                index.abandon()
                raise IndexDamaged(f"{folder} is of a later state than the store")
            return index
        except (IndexDamaged, EmbedderMismatch):
            if not self._base.read_only:
                return Index.recreate(folder, self._embedder())
        except IndexFault:  # a file system that cannot even be locked
            if not self._base.read_only:
                raise
        own = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="livingkv-index-"))
        return Index.recreate(Path(own), self._embedder() if self._base.loaded_engine is not None else None)

    def _chosen_name(self, embedder_id: str | None) -> str | None:
        """Of the embedder that made an index's vectors. Raises SettingError when the settings ask for another."""
        name, asked = name_of(embedder_id) if embedder_id is not None else None, self._base.settings.embedder
        if name is not None and asked is not None and asked != name:
            allowed = f"the index of {self._base.path} is made with {name!r}; livingkv reembed changes that"
            raise SettingError("settings.embedder", repr(asked), allowed)
        return name

    def _embedder(self) -> Embedder:
        """The index's own; for one that is new or lost, that of the settings. Made once, and again for another name.

        Raises ModelNotFound or ModelDamaged.
        """
        name = self._name or self._base.settings.embedder or DEFAULT_EMBEDDER
        if self._made is None or self._made[0] != name:
            self._made = name, make_embedder(self._base.engine(), name)
        return self._made[1]

    def reembed(self, name: str, progress: Callable[[int, int], None] | None = None) -> Embedder:
        """Vectors of another embedder for every sentence, swapped in at once; the old ones stand until then.

        Raises ModelNotFound or ModelDamaged before anything is changed, StoreFull, StoreLocked or IndexFault.
        """
        embedder = make_embedder(self._base.engine(), name)
        index = self.current()
        index.reembed(embedder, self._all_entries(index.n_sentences, progress))
        self._name, self._made = name, (name, embedder)
        self._in_memory.clear()
        self._feed_encrypted(index)
        return embedder

    def _all_entries(self, n: int, progress: Callable[[int, int], None] | None) -> Iterator[list[Entry]]:
        store, done, last = self._base.store(), 0, None
        while batch := store.sentences_after(last, _BATCH):
            yield _entries(batch)
            done, last = done + len(batch), batch[-1].sentence_id
            if progress is not None:
                progress(done, max(n, done))

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
        with self._whole():
            self._feed()

    def _whole(self) -> contextlib.AbstractContextManager[None]:
        """Nobody else comes between two batches that an embedder runs through the model."""
        engine = self._base.loaded_engine
        return contextlib.nullcontext() if engine is None else engine.runner.uninterrupted()

    def _feed(self) -> None:
        if self._index is None:
            self._index = self._opened_index()
        while self._feed_batch(self._index, _BATCH):
            pass
        self._feed_encrypted(self._index)

    def _feed_batch(self, index: Index, limit: int) -> bool:
        """Let the index know the next sentences; False where there are none."""
        batch = self._base.store().sentences_after(index.high_water, limit)
        if batch:
            if not self._base.read_only and not index.has_embedder:
                index.use_embedder(self._embedder())
            index.add(_entries(batch))
            index.commit(batch[-1].sentence_id)
        return bool(batch)

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
            self.remake(trust_vectors=False)

    def remake(self, *, trust_vectors: bool = True) -> None:
        """A new index of what the store holds now; of the old one nothing is left on disk. Its vectors are taken over,
        unless they are not trusted: a vector is made of its sentence's text alone.

        Others may run passes between two batches, so nobody else may use this memory meanwhile. Broken off, the rest
        is fed at the next use.
        """
        self.embedder_name()
        embedder = self._embedder()
        self._let_go()
        known = self._held_vectors(embedder.id) if trust_vectors else None
        self._in_memory.clear()
        self._index = index = Index.recreate(self._folder, embedder)
        with contextlib.ExitStack() as undo:
            undo.callback(self._let_go)
            with index.filling(known) as filling:
                store, runner = self._base.store(), self._base.engine().runner
                while batch := store.sentences_after(filling.high_water, _SMALL_BATCH):
                    runner.let_others()
                    with self._whole():
                        filling.add(_entries(batch), batch[-1].sentence_id)
            self.feed()
            index.flush()
            undo.pop_all()

    def _held_vectors(self, embedder_id: str) -> Batch | None:
        """Of the index on disk, where they are by this embedder and whole."""
        with contextlib.suppress(IndexFault), Index.open(self._folder, None, "read") as index:
            return index.held_vectors() if index.embedder_id == embedder_id else None
        return None

    def embedder_name(self) -> str | None:
        """Of the embedder that the index's vectors are made with; None where that cannot be told. Raises SettingError
        when the settings ask for another."""
        if self._index is None:
            with contextlib.suppress(IndexFault), Index.open(self._folder, None, "read") as index:
                self._name = self._chosen_name(index.embedder_id)
        return self._name

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


def _entries(batch: Sequence[Sentence]) -> list[Entry]:
    """What the index may know on disk."""
    return [Entry(s.sentence_id, s.session_id, s.text) for s in batch if not s.encrypted]
