"""The lexical channel: BM25 over the terms of `analysis`, kept by tantivy in a folder of its own.

Knows tantivy, its commits and its errors; sees no text and no vectors. Each commit carries the state of the whole index
with it, so that documents and state appear together or not at all. Readers in other processes work on the last commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import tantivy

from livingkv.errors import IndexDamaged, IndexFault, StoreFull, StoreLocked
from livingkv.index.footers import damaged_files
from livingkv.index.hits import Found
from livingkv.index.state import IndexState
from livingkv.regular_files import require_regular

_HEAP_BYTES = 15_000_000  # the least that tantivy accepts for one thread
_STATE_KEY = "state"


class Document(NamedTuple):
    """One sentence, analysed."""

    sentence_id: int
    session_id: int
    terms: Sequence[str]


class LexicalIndex:
    """Sentences by their terms. One thread at a time. `search` and the counts see what the last `write` committed."""

    def __init__(self, folder: Path, index: tantivy.Index) -> None:
        self._folder = folder
        self._index = index
        self._writer: tantivy.IndexWriter | None = None
        self._stamp: tuple[int, int] | None = None
        self._index.config_reader(reload_policy="manual", num_warmers=0)
        self.state = IndexState()
        self.reload()

    @classmethod
    def create(cls, folder: Path, state: IndexState) -> LexicalIndex:
        """A new, empty index in an empty or missing folder; durable on return."""
        with _faults(folder):
            folder.mkdir(parents=True, exist_ok=True)
            index = tantivy.Index(_schema(), str(folder), reuse=False)
            writer = index.writer(_HEAP_BYTES, 1)
            writer.add_document(_state_document(state))
            writer.commit()
            writer.wait_merging_threads()
        return cls(folder, index)

    @classmethod
    def open(cls, folder: Path) -> LexicalIndex:
        """The index in the folder. Checks every file's checksum. Raises IndexDamaged when it is missing or broken."""
        if not (folder / "meta.json").is_file():
            raise IndexDamaged(f"there is no index at {folder}; rebuild it from the store")
        with _faults(folder):
            for path in folder.iterdir():
                require_regular(path)  # tantivy would wait at a pipe
            if damaged := damaged_files(folder):
                raise IndexDamaged(f"the index file {damaged[0]} failed its checksum; rebuild it from the store")
            return cls(folder, tantivy.Index.open(str(folder)))

    def reload(self) -> bool:
        """See the newest commit; True when there was one. Costs one `stat` otherwise."""
        with _faults(self._folder):
            status = (self._folder / "meta.json").stat()
            stamp = (status.st_mtime_ns, status.st_ino)
            if stamp == self._stamp:
                return False
            self._index.reload()
            self._searcher = self._index.searcher()
            query = tantivy.Query.term_query(self._index.schema, "key", _STATE_KEY, "basic")
            hits = self._searcher.search(query, limit=2, count=False).hits
            if len(hits) != 1:
                raise IndexDamaged(f"the index at {self._folder} holds {len(hits)} states; rebuild it from the store")
            self.state = IndexState.from_json(self._searcher.doc(hits[0][1])["state"][0])
            if self.n_sentences != self.state.n_sentences:
                counts = f"{self.n_sentences} sentences instead of {self.state.n_sentences}"
                raise IndexDamaged(f"the index at {self._folder} holds {counts}; rebuild it from the store")
            self._stamp = stamp
        return True

    @property
    def n_sentences(self) -> int:
        """Sentences in the last commit."""
        return int(self._searcher.num_docs) - 1

    def n_with_term(self, term: str) -> int:
        """In how many sentences the term stands, deleted ones included until tantivy merges them away."""
        return int(self._searcher.doc_freq("terms", term))

    def n_of(self, sentence_ids: Sequence[int], session_ids: Sequence[int]) -> int:
        """How many sentences have one of these ids or are of one of these sessions."""
        parts = [(tantivy.Occur.Should, query) for query in self._selections(sentence_ids, session_ids)]
        if not parts:
            return 0
        return int(self._searcher.search(tantivy.Query.boolean_query(parts), limit=1, count=True).count)

    def acquire(self) -> None:
        """Take the writer's lock and keep it until `close`. Raises StoreLocked when another process has it."""
        if self._writer is None:
            with _faults(self._folder):
                self._writer = self._index.writer(_HEAP_BYTES, 1)

    def _end_merges(self) -> None:
        """Wait for merges that an earlier commit began: a deletion committed while one runs can be undone by it."""
        writer, self._writer = self._writer, None
        if writer is not None:
            with _faults(self._folder):
                writer.wait_merging_threads()

    def write(
        self,
        documents: Iterable[Document],
        state: IndexState,
        *,
        removed_sentences: Sequence[int] = (),
        removed_sessions: Sequence[int] = (),
    ) -> None:
        """Remove, then add, and replace the state, in one commit that is durable on return.

        The caller adds no sentence that is there already and counts them in the state. When it fails (StoreFull,
        StoreLocked, IndexFault) the last commit stands, and the call may be repeated.
        """
        self._end_merges()
        self.acquire()
        writer, self._writer = self._writer, None
        assert writer is not None
        with _faults(self._folder):
            try:
                for query in self._selections(removed_sentences, removed_sessions):
                    writer.delete_documents_by_query(query)
                writer.delete_documents_by_term("key", _STATE_KEY)
                for document in documents:
                    writer.add_document(_sentence_document(document))
                writer.add_document(_state_document(state))
                writer.commit()
            except (ValueError, OSError):
                del writer  # one that failed takes no more work; its lock goes with it, at once
                raise
        self._writer = writer
        self.reload()

    def search(self, weights: Mapping[str, float], *, limit: int, session_ids: frozenset[int] | None) -> list[Found]:
        """The best `limit` sentences by the weighted sum of their terms' BM25 scores, of these sessions only."""
        schema = self._index.schema
        parts = [
            (tantivy.Occur.Should, tantivy.Query.boost_query(_term_query(schema, term), weight))
            for term, weight in weights.items()
        ]
        if not parts or (session_ids is not None and not session_ids):
            return []
        query = tantivy.Query.boolean_query(parts)
        if session_ids is not None:
            chosen = tantivy.Query.term_set_query(schema, "session", sorted(session_ids))
            chosen = tantivy.Query.const_score_query(chosen, 0.0)
            query = tantivy.Query.boolean_query([(tantivy.Occur.Must, query), (tantivy.Occur.Must, chosen)])
        with _faults(self._folder):
            hits = self._searcher.search(query, limit=limit, count=False).hits
            addresses = [address for _, address in hits]
            sentences = self._searcher.fast_field_values("sentence", addresses)
            sessions = self._searcher.fast_field_values("session", addresses)
        return [Found(*row) for row in zip(sentences, sessions, (score for score, _ in hits), strict=True)]

    def close(self) -> None:
        """Wait for merges to end and let the writer's lock go. Nothing durable depends on it."""
        self._end_merges()

    def _selections(self, sentence_ids: Sequence[int], session_ids: Sequence[int]) -> list[tantivy.Query]:
        fields = (("sentence", sentence_ids), ("session", session_ids))
        return [tantivy.Query.term_set_query(self._index.schema, field, list(ids)) for field, ids in fields if ids]


def _schema() -> tantivy.Schema:
    builder = tantivy.SchemaBuilder()
    builder.add_text_field("terms", tokenizer_name="whitespace", index_option="freq")
    builder.add_unsigned_field("sentence", indexed=True, fast=True)
    builder.add_unsigned_field("session", indexed=True, fast=True)
    builder.add_text_field("key", tokenizer_name="raw", index_option="basic")
    builder.add_text_field("state", stored=True, tokenizer_name="raw", index_option="basic")
    return builder.build()


def _sentence_document(document: Document) -> tantivy.Document:
    made = tantivy.Document()
    made.add_unsigned("sentence", document.sentence_id)
    made.add_unsigned("session", document.session_id)
    made.add_text("terms", " ".join(document.terms))
    return made


def _state_document(state: IndexState) -> tantivy.Document:
    made = tantivy.Document()
    made.add_text("key", _STATE_KEY)
    made.add_text("state", state.to_json())
    return made


def _term_query(schema: tantivy.Schema, term: str) -> tantivy.Query:
    return tantivy.Query.term_query(schema, "terms", term, "freq")


@contextlib.contextmanager
def _faults(folder: Path) -> Iterator[None]:
    """Tantivy tells all its troubles as ValueError with a text; turn them into ours."""
    try:
        yield
    except (ValueError, OSError) as error:
        text = " ".join(str(error).split())
        if "LockBusy" in text:
            raise StoreLocked(f"another process writes to the index at {folder}; close it first") from error
        if any(sign in text for sign in ("No space left", "quota exceeded", "File too large")):
            raise StoreFull(f"no disk space for the index at {folder}; free some, the last commit stands") from error
        if "Permission denied" in text or "Read-only file system" in text:
            raise IndexFault(f"the index at {folder} may not be written; change its permissions") from error
        raise IndexDamaged(f"the index at {folder} cannot be used ({text[:200]}); rebuild it from the store") from error
