"""A plain baseline: BM25 of tantivy with the texts stored beside, no more.

Knows whole texts and words. It does not know what this costs livingkv: meaning (vectors), sentences and their places
in token streams, sessions, tenants and roles, durable token ids, checksums, confidence, and what a model would need.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tantivy

_HEAP_BYTES = 15_000_000
_MOST_WORDS = 48


class PlainWords:
    """Texts found by their words. Made in a folder that is not there yet, with texts in it; durable on return."""

    def __init__(self, folder: Path, texts: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        builder = tantivy.SchemaBuilder()
        builder.add_text_field("text", stored=True)
        self._index = tantivy.Index(builder.build(), str(folder))
        self._writer = self._index.writer(_HEAP_BYTES, 1)
        self.add(texts, commit=True)

    def add(self, texts: Sequence[str], *, commit: bool) -> None:
        """More texts; durable, and found, once committed."""
        for text in texts:
            document = tantivy.Document()
            document.add_text("text", text)
            self._writer.add_document(document)
        if commit:
            self._writer.commit()
            self._index.reload()

    def search(self, question: str, limit: int) -> list[str]:
        """The texts that BM25 ranks first for any of the question's words."""
        words = "".join(letter if letter.isalnum() else " " for letter in question).lower().split()[:_MOST_WORDS]
        terms = [(tantivy.Occur.Should, self._term(word)) for word in dict.fromkeys(words)]
        searcher = self._index.searcher()
        hits = searcher.search(tantivy.Query.boolean_query(terms), limit).hits
        return [str(searcher.doc(address)["text"][0]) for _, address in hits]

    def _term(self, word: str) -> tantivy.Query:
        return tantivy.Query.term_query(self._index.schema, "text", word, "freq")

    def close(self) -> None:
        """Commit, and wait for merges."""
        self._writer.commit()
        self._writer.wait_merging_threads()
