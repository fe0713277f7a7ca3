"""The index of sentences: add, commit, remove, probe.

Knows how the two channels and the sentences that are not yet durable act together; knows no store. Whatever happens to
its folder, `Index.recreate` and feeding it again from the store bring it back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal

from livingkv.errors import EmbedderMismatch, IndexDamaged, IndexFault
from livingkv.index.background import Spread
from livingkv.index.dense import vector_codes
from livingkv.index.durable import DurableIndex
from livingkv.index.embedders import Embedder
from livingkv.index.filling import Filling
from livingkv.index.fusion import fuse
from livingkv.index.hits import Entry, Found, Hit, best
from livingkv.index.lexical import Document
from livingkv.index.mixing import Floats
from livingkv.index.pending import PendingSentences
from livingkv.index.vector_file import Batch
from livingkv.index.word_search import WordSearch

FLUSH_SENTENCES = 512
"""About so many sentences wait in memory before a commit makes them durable."""

_LEAST_DEPTH = 64  # candidates of each channel; fusion needs more of them than the caller asks for


class Index:
    """Sentences by words and by meaning. One thread at a time; one writing process, any number of reading ones.

    A writer finds what it committed at once. A reader finds what the writer made durable, newly at each probe, and may
    add the rest for itself: in mode "read" nothing that is added is ever written.
    """

    def __init__(self, durable: DurableIndex, embedder: Embedder | None, mode: Literal["read", "write"]) -> None:
        self.mode = mode
        self._durable = durable
        self._embedder: Embedder | None = None
        self._staged: dict[int, Entry] = {}
        self._pending = PendingSentences()
        self._high_water = durable.state.high_water
        if embedder is not None:
            self.use_embedder(embedder)

    @classmethod
    def open(cls, path: Path, embedder: Embedder | None, mode: Literal["read", "write"]) -> Index:
        """The index at `path`, its checksums checked. Without an embedder it probes by words alone.

        Raises IndexDamaged when there is none or it cannot be read, and EmbedderMismatch when it was made with another
        embedder or without one: then `recreate` it and feed it again.
        """
        return cls(DurableIndex.open(path), embedder, mode)

    @classmethod
    def recreate(cls, path: Path, embedder: Embedder | None) -> Index:
        """A new, empty index at `path`, open for writing; an older one there is deleted. Durable on return.

        Raises StoreFull, StoreLocked or IndexFault.
        """
        embedder_id, dimension = (embedder.id, embedder.dimension) if embedder is not None else (None, None)
        return cls(DurableIndex.recreate(path, embedder_id, dimension), embedder, "write")

    def use_embedder(self, embedder: Embedder) -> None:
        """Give an index that was opened without an embedder its own. Raises EmbedderMismatch when it is another."""
        state = self._durable.state
        if (state.embedder_id, state.dimension) != (embedder.id, embedder.dimension):
            held = f"vectors of {state.embedder_id} ({state.dimension} numbers each)" if state.embedder_id else "none"
            given = f"{embedder.id} ({embedder.dimension} numbers each)"
            where = self._durable.path
            raise EmbedderMismatch(f"the vectors of {where} are {held}, asked for {given}; use the same or rebuild it")
        self._embedder = embedder

    def use_device(self, device: str) -> None:
        """Search the durable vectors in a CUDA device's memory, if they take no more than a quarter of what is free
        there. The hits are the same."""
        self._durable.use_device(device)

    def reembed(self, embedder: Embedder, entries: Iterable[Sequence[Entry]]) -> None:
        """Give every sentence a vector of this embedder, in one step that is durable on return; from then on it is the
        index's own. Words, and readers in other processes, are not disturbed: they find by words until they open anew.

        `entries` bring every sentence of the index, in batches; private ones, which are found by words until they are
        added again, are not among them. Raises IndexDamaged when some are missing, StoreFull,
        StoreLocked or IndexFault: then the old vectors stand.
        """
        self._require_writer()
        self.flush()
        self._durable.replace_vectors(embedder.id, embedder.dimension, _embedded(embedder, entries))
        self._embedder = embedder
        self._pending.drop_vectors()

    @property
    def has_embedder(self) -> bool:
        """True when texts can be embedded: sentences added, questions probed by meaning."""
        return self._embedder is not None

    @property
    def high_water(self) -> int | None:
        """The mark of the newest commit that this object finds. After a crash it is that of the newest durable one.

        Feed the index what the store has past it.
        """
        return self._high_water

    @property
    def n_sentences(self) -> int:
        """Sentences that a probe can find."""
        return self._durable.state.n_sentences + len(self._pending)

    @property
    def size_bytes(self) -> int:
        """Bytes of all files of the index."""
        return self._durable.size_bytes()

    @property
    def embedder_id(self) -> str | None:
        """Of the vectors in the index; None when it has no dense channel."""
        return self._durable.state.embedder_id

    def add(self, entries: Iterable[Entry]) -> None:
        """Stage sentences for the next commit; one that is there already is replaced then.

        A reader may add without an embedder: what it adds is then found by words alone. Raises EmbedderMismatch when a
        writer's index has vectors and no embedder was given.
        """
        wanted = self._durable.state.embedder_id
        if wanted is not None and self._embedder is None and self.mode == "write":
            raise EmbedderMismatch(f"{self._durable.path} needs vectors of {wanted}; open it with that embedder")
        self._staged.update((entry.sentence_id, entry) for entry in entries)

    def commit(self, high_water: int) -> None:
        """Make what was staged findable, and durable once enough has gathered; `flush` and `close` do so at once.

        Costs the embedding of the staged texts and, every FLUSH_SENTENCES sentences, a flush. After StoreFull,
        StoreLocked or IndexFault everything is still findable, and the next commit tries again.
        """
        self._replace_durable(list(self._staged))
        staged = list(self._staged.values())
        vectors = self._embedder.embed([entry.text for entry in staged]) if self._embedder and staged else None
        self._pending.add(staged, vectors)
        self._staged.clear()
        self._high_water = high_water
        if self._pending.n_public >= FLUSH_SENTENCES and self.mode == "write":
            self.flush()

    def add_private(self, entries: Sequence[Entry]) -> None:
        """Make sentences findable at once that must never be written: they are gone with this object.

        `high_water` stays: whoever keeps secrets feeds them anew after each opening. Costs their embedding.
        """
        vectors = self._embedder.embed([entry.text for entry in entries]) if self._embedder and entries else None
        self._pending.add(entries, vectors, private=True)

    @contextmanager
    def filling(self, known: Batch | None) -> Iterator[Filling]:
        """Fill an index that is empty, in few large commits; durable when the block ends. Broken off, what was
        committed by then stands, and the index is fed the rest.

        known: `held_vectors` of an index by the same embedder; they are not made again. Raises as `commit`.
        """
        self._require_writer()
        assert not self.n_sentences, "it is empty"
        filling = Filling(self._durable, self._embedder, known)
        try:
            yield filling
            filling.flush()
        finally:
            self._high_water = self._durable.state.high_water

    def held_vectors(self) -> Batch | None:
        """The durable vectors, in a copy; None without a dense channel. Raises IndexDamaged."""
        return self._durable.held_vectors()

    def flush(self) -> None:
        """Make all that is committed durable; nothing happens when it is already. Raises as `commit`."""
        if self._pending.n_public or self._high_water != self._durable.state.high_water:
            self._write()

    def remove(self, *, sentence_ids: Sequence[int] = (), session_ids: Sequence[int] = ()) -> int:
        """Remove sentences, durable on return, and say how many there were. Raises as `commit`.

        The terms of removed sentences stay in tantivy's files until it merges them; `recreate` leaves nothing.
        """
        self._require_writer()
        for entry in list(self._staged.values()):
            if entry.sentence_id in sentence_ids or entry.session_id in session_ids:
                del self._staged[entry.sentence_id]
        before = self.n_sentences
        self._pending.remove(sentence_ids, session_ids)
        self._write(sentence_ids, session_ids)
        return before - self.n_sentences

    def probe(self, question: str, *, limit: int, session_ids: frozenset[int] | None = None) -> list[Hit]:
        """The best `limit` sentences for a question, of these sessions only (None: of all), best first.

        Returns nothing when no term is shared and there is no dense channel. Raises IndexDamaged.
        """
        if self.mode == "read":
            self._follow_writer()
        depth = max(limit, _LEAST_DEPTH)
        lexical, share = self._word_search().search(question, limit=depth, session_ids=session_ids)
        semantic, spread = self._search_vectors(question, depth, session_ids)
        return fuse(lexical, semantic, lexical_share=share, spread=spread, limit=limit)

    def find_words(self, words: str, *, limit: int, session_ids: frozenset[int] | None = None) -> list[Found]:
        """The `limit` sentences that BM25 ranks first for these words alone, of these sessions only (None: of all).

        Vectors have no say, so what holds all of the words comes before what is only about them. Raises IndexDamaged.
        """
        if self.mode == "read":
            self._follow_writer()
        return self._word_search().search(words, limit=limit, session_ids=session_ids)[0]

    def coverage(self, question: str, texts: Sequence[str]) -> list[float]:
        """For each text the share of the question's terms that it holds, 0..1, rare terms counting by their idf."""
        return self._word_search().coverage(question, texts)

    def check(self) -> list[str]:
        """What is wrong with the files, in words; empty when all are whole and the channels agree. Reads every byte."""
        try:
            durable = DurableIndex.open(self._durable.path)
            dense = durable.dense()
        except IndexDamaged as error:
            return [str(error)]
        if dense is not None and len(dense) != durable.state.n_sentences:
            return [f"the index has {len(dense)} vectors for {durable.state.n_sentences} sentences; rebuild it"]
        return []

    def load(self) -> None:
        """Read now what a first probe would read. Raises IndexDamaged."""
        if self._embedder is not None:
            self._durable.dense()

    def abandon(self) -> None:
        """Close without flushing: what was not durable is fed again."""
        self._durable.close()

    def close(self) -> None:
        """Flush in mode "write", and let the lock go. The object is of no use afterwards."""
        if self.mode == "write":
            self.flush()
        self._durable.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._durable.close()  # what was not durable is fed again

    def _word_search(self) -> WordSearch:
        return WordSearch(self._durable.lexical, self._pending.table)

    def _search_vectors(
        self, question: str, depth: int, session_ids: frozenset[int] | None
    ) -> tuple[list[Found], Spread]:
        dense = self._durable.dense() if self._embedder is not None else None
        if self._embedder is None or dense is None:
            return [], Spread(0, 0.0, 0.0)
        vector = self._embedder.embed([question])[0]
        found = dense.search(vector, limit=depth, session_ids=session_ids)
        found += self._pending.search_vectors(vector, limit=depth, session_ids=session_ids)
        return best(found, depth), dense.spread(vector).joined(self._pending.spread(vector))

    def _replace_durable(self, sentence_ids: list[int]) -> None:
        """Make way for sentences that are added again under their ids."""
        last = self._durable.state.last_id
        again = [sentence_id for sentence_id in sentence_ids if last is not None and sentence_id <= last]
        if again and self._durable.lexical.n_of(again, ()):
            self._write(again)

    def _write(self, removed_sentences: Sequence[int] = (), removed_sessions: Sequence[int] = ()) -> None:
        self._require_writer()
        has_vectors = self._embedder is not None and self._pending.n_public
        codes = vector_codes(self._pending.public_vectors()) if has_vectors else None
        written = self._pending.public()
        self._durable.write(
            written,
            codes,
            self._high_water,
            removed_sentences=removed_sentences,
            removed_sessions=removed_sessions,
        )
        self._pending.remove([document.sentence_id for document in written], ())

    def _require_writer(self) -> None:
        if self.mode != "write":
            raise IndexFault(f"the index at {self._durable.path} was opened for reading; open it for writing")

    def _follow_writer(self) -> None:
        """See what the writer has made durable; it need not be kept here any longer."""
        if not self._durable.lexical.reload():
            return
        state = self._durable.state
        if self._embedder is not None and state.embedder_id != self._embedder.id:
            self._embedder = None  # the writer has chosen another: by words alone until it is given
            self._pending.drop_vectors()
        if state.last_id is not None:
            durable = [one.sentence_id for one in self._pending.public() if one.sentence_id <= state.last_id]
            self._pending.remove(durable, ())
        if state.high_water is not None:
            self._high_water = max(state.high_water, self._high_water or state.high_water)


def _embedded(embedder: Embedder, entries: Iterable[Sequence[Entry]]) -> Iterator[tuple[list[Document], Floats]]:
    for batch in entries:
        documents = [Document(entry.sentence_id, entry.session_id, ()) for entry in batch]
        yield documents, embedder.embed([entry.text for entry in batch])
