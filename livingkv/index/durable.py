"""The durable part of the index: a folder with the lexical channel, the vectors and the state that joins them.

Knows in which order files are written, so that every commit is whole or absent; knows no text, no question and no
embedder beyond its id.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from livingkv.errors import IndexDamaged, IndexFault
from livingkv.index.dense import Codes, DenseIndex, vector_codes
from livingkv.index.device_parts import fits
from livingkv.index.lexical import Document, LexicalIndex
from livingkv.index.mixing import Floats
from livingkv.index.state import IndexState
from livingkv.index.vector_file import Batch

_LEXICAL_FOLDER = "lexical"
_ATTEMPTS = 5


class DurableIndex:
    """What a crash leaves. One thread at a time; one writing process, any number of reading ones."""

    def __init__(self, path: Path, lexical: LexicalIndex) -> None:
        self.path = path
        self.lexical = lexical
        self._dense: DenseIndex | None = None
        self._device: str | None = None

    @classmethod
    def open(cls, path: Path) -> DurableIndex:
        """The index at the path. Raises IndexDamaged."""
        return cls(path, LexicalIndex.open(path / _LEXICAL_FOLDER))

    @classmethod
    def recreate(cls, path: Path, embedder_id: str | None, dimension: int | None) -> DurableIndex:
        """An empty index at the path; what an older one left there is deleted first. Durable on return."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(path / _LEXICAL_FOLDER, ignore_errors=True)
            for old in path.glob("vectors-*.lkv"):
                old.unlink()
        except OSError as error:
            raise IndexFault(f"the index at {path} may not be written ({error.strerror}); change that") from error
        state = IndexState(embedder_id=embedder_id, dimension=dimension)
        if embedder_id is not None and dimension is not None:
            dense = DenseIndex(path, embedder_id, dimension)
            dense.create_file()
            state = replace(state, vector_file=dense.file_name, vector_bytes=dense.size_bytes)
        return cls(path, LexicalIndex.create(path / _LEXICAL_FOLDER, state))

    @property
    def state(self) -> IndexState:
        """What the last commit that this object has seen says."""
        return self.lexical.state

    def use_device(self, device: str) -> None:
        """Search the vectors in a CUDA device's memory from now on, if they fit there."""
        size_bytes = self.state.n_sentences * (self.state.dimension or 0)
        if self._device is None and fits(device, size_bytes):
            self._device, self._dense = device, None

    def dense(self) -> DenseIndex | None:
        """The vectors of the state, read when they are first asked for; None without a dense channel.

        Raises IndexDamaged.
        """
        for attempt in range(_ATTEMPTS):
            state = self.state
            if state.embedder_id is None or state.dimension is None or state.vector_file is None:
                return None
            if self._dense is None or self._dense.embedder_id != state.embedder_id:
                self._dense = DenseIndex(self.path, state.embedder_id, state.dimension, self._device)
            try:
                self._dense.load(state.vector_file, state.vector_bytes)
            except IndexDamaged:
                if attempt + 1 == _ATTEMPTS or not self.lexical.reload():
                    raise  # else a writer has replaced the file since the state was read
            else:
                break
        return self._dense

    def write(
        self,
        documents: Sequence[Document],
        codes: Codes | None,
        high_water: int | None,
        *,
        removed_sentences: Sequence[int] = (),
        removed_sessions: Sequence[int] = (),
    ) -> None:
        """Remove, then add, in one step that is durable on return; codes [n, dim] of `vector_codes` exactly with a
        dense channel.

        No document may be there already, unless it is removed in the same step. When it fails (StoreFull, StoreLocked,
        IndexFault) the last commit stands, and the call may be repeated.
        """
        self.lexical.acquire()
        old = self.state
        n_left = old.n_sentences - self.lexical.n_of(removed_sentences, removed_sessions)
        state = replace(
            old,
            high_water=high_water,
            last_id=max((document.sentence_id for document in documents), default=old.last_id),
            n_sentences=n_left + len(documents),
            n_terms=old.n_terms * n_left // max(1, old.n_sentences) + sum(len(one.terms) for one in documents),
        )
        if old.last_id is not None and state.last_id is not None:
            state = replace(state, last_id=max(old.last_id, state.last_id))
        dense = self.dense()
        if dense is not None:
            if removed_sentences or removed_sessions:
                dense.remove(removed_sentences, removed_sessions)
            if codes is not None:
                dense.append([one.sentence_id for one in documents], [one.session_id for one in documents], codes)
            state = replace(state, vector_file=dense.file_name, vector_bytes=dense.size_bytes)
        self.lexical.write(documents, state, removed_sentences=removed_sentences, removed_sessions=removed_sessions)
        if dense is not None:
            dense.remove_other_files()

    def held_vectors(self) -> Batch | None:
        """All vectors, of which nothing changes when this index is gone; None without a dense channel. Raises
        IndexDamaged."""
        dense = self.dense()
        return None if dense is None else dense.batch()

    def replace_vectors(
        self, embedder_id: str, dimension: int, batches: Iterable[tuple[Sequence[Document], Floats]]
    ) -> None:
        """Give every sentence a vector of another embedder, in one step that is durable on return.

        `batches` bring all sentences of the index with their new vectors [n, dimension]. Broken off, or when sentences
        are missing (IndexDamaged), the old vectors stand.
        """
        self.lexical.acquire()
        dense = DenseIndex(self.path, embedder_id, dimension, self._device)
        dense.create_file(after=self.state.vector_file or "")
        for documents, vectors in batches:
            ids, sessions = [one.sentence_id for one in documents], [one.session_id for one in documents]
            if ids:
                dense.append(ids, sessions, vector_codes(vectors))
        if len(dense) != self.state.n_sentences:
            counts = f"{len(dense)} sentences, not {self.state.n_sentences}"
            raise IndexDamaged(f"the index at {self.path} was given {counts}; repair it first")
        file, size = dense.file_name, dense.size_bytes
        state = replace(self.state, embedder_id=embedder_id, dimension=dimension, vector_file=file, vector_bytes=size)
        self.lexical.write((), state)
        self._dense = dense
        dense.remove_other_files()

    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file())

    def close(self) -> None:
        """Let the writer's lock go."""
        self.lexical.close()
