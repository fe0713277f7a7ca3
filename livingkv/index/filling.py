"""A new index that is given everything at once: few large commits, and vectors that are there already are taken over.

Knows entries and the durable index; nothing that it was given can be found before it is durable.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from livingkv.index.analysis import Analyser
from livingkv.index.dense import Codes, vector_codes
from livingkv.index.durable import DurableIndex
from livingkv.index.embedders import Embedder
from livingkv.index.hits import Entry
from livingkv.index.lexical import Document
from livingkv.index.vector_file import Batch

FILL_SENTENCES = 16_384
"""Sentences of one commit: some 20 MB of terms in memory."""


class Filling:
    """Fills an empty index in the order of ids. known: vectors by the same embedder, as another index held them."""

    def __init__(self, durable: DurableIndex, embedder: Embedder | None, known: Batch | None) -> None:
        self.high_water: int | None = durable.state.high_water
        self._durable = durable
        self._embedder = embedder
        self._known = known
        self._order = None if known is None else np.argsort(known.sentence_ids, kind="stable")
        self._analyser = Analyser()
        self._documents: list[Document] = []
        self._codes: list[Codes] = []

    def add(self, entries: Sequence[Entry], high_water: int) -> None:
        """Take sentences that come after those before. Costs their analysis, the embedding of those whose vector is not
        known, and now and then a commit. Raises StoreFull, StoreLocked or IndexFault."""
        terms = self._analyser.terms
        self._documents += [Document(entry.sentence_id, entry.session_id, terms(entry.text)) for entry in entries]
        if self._embedder is not None and entries:
            self._codes.append(self._codes_of(self._embedder, entries))
        self.high_water = high_water
        if len(self._documents) >= FILL_SENTENCES:
            self.flush()

    def flush(self) -> None:
        """Make what was taken durable. Raises as `add`."""
        codes = np.concatenate(self._codes) if self._codes else None
        self._durable.write(self._documents, codes, self.high_water)
        self._documents, self._codes = [], []

    def _codes_of(self, embedder: Embedder, entries: Sequence[Entry]) -> Codes:
        """Codes [n, dimension] of the entries, taken over where they are known."""
        rows = self._rows([entry.sentence_id for entry in entries])
        new = [entry.text for entry, row in zip(entries, rows, strict=True) if row < 0]
        made = vector_codes(embedder.embed(new)) if new else np.zeros((0, embedder.dimension), np.uint8)
        if self._known is None:
            return made
        codes = np.empty((len(entries), embedder.dimension), np.uint8)
        codes[rows >= 0] = self._known.codes[rows[rows >= 0]]
        codes[rows < 0] = made
        return codes

    def _rows(self, sentence_ids: Sequence[int]) -> npt.NDArray[np.int64]:
        """Where the known vectors of these ids stand [n], less than 0 where there is none."""
        wanted = np.asarray(sentence_ids, np.int64)
        if self._known is None or self._order is None or not len(self._order):
            return np.full(len(wanted), -1, np.int64)
        held = self._known.sentence_ids
        places = np.searchsorted(held, wanted, sorter=self._order).clip(max=len(held) - 1)
        rows: npt.NDArray[np.int64] = self._order[places]
        rows[held[rows] != wanted] = -1
        return rows
