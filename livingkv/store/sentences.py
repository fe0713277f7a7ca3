"""Sentences by id: one, those after one, and one with its neighbours.

Knows how ids map to chunks and how a source's chunks follow one another; refuses to know ranking and passages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from livingkv.errors import InputError, RecordDamaged, SentenceForgotten
from livingkv.store.catalog import Catalog
from livingkv.store.chunk_payload import Chunk, role_of
from livingkv.store.items import ChunkItem
from livingkv.store.reading import Reading
from livingkv.store.rows import Role, Sentence
from livingkv.store.snapshot import SentencePlace, Snapshot


class Only(NamedTuple):
    """Which sentences are wanted: of these sessions, this source, this role. None: of any."""

    session_ids: frozenset[int] | None = None
    source: str | None = None
    role: Role | None = None


ANY = Only()


class _Found:
    """One chunk with what its sentences need: the session's and the source's name. `chunk` is read when first asked."""

    def __init__(self, snapshot: Snapshot, session_id: int, number: int) -> None:
        self.session_id = session_id
        self.number = number
        self.item: ChunkItem = snapshot.chunk(session_id, number)
        session = snapshot.session(session_id)
        self.session = "" if session is None else session.name
        self.key_id = b"" if session is None else session.key_id
        self.source = snapshot.source(session_id, self.item.source).name

    def is_of(self, only: Only) -> bool:
        """Whether its sentences are of this source and role."""
        return only.source in (None, self.source) and only.role in (None, role_of(self.item.role))

    def sentences(self, chunk: Chunk, lo: int, hi: int) -> list[Sentence]:
        """The chunk's sentences [lo, hi), counted in the chunk."""
        lo, hi = max(0, lo), min(hi, self.item.n_sentences)
        if lo >= hi:
            return []
        spans = [chunk.sentence(number) for number in range(lo, hi)]
        start = spans[0].byte_lo
        text = chunk.text(start - self.item.first_byte, spans[-1].byte_hi - self.item.first_byte)
        role = role_of(self.item.role)
        forgotten = chunk.forgotten
        first_id = self.item.first_sentence + lo
        return [
            Sentence(
                first_id + number,
                self.session_id,
                self.session,
                *span,
                self.source,
                role,
                text[span.byte_lo - start : span.byte_hi - start],
                bool(self.key_id),
                chunk.place.time_ms / 1000,
            )
            for number, span in enumerate(spans)
            if lo + number not in forgotten
        ]


class Sentences:
    """The sentences of one store."""

    def __init__(self, catalog: Catalog, reading: Reading) -> None:
        self._catalog = catalog
        self._reading = reading

    def _read(self, found: _Found, lo: int, hi: int) -> list[Sentence]:
        return found.sentences(self._reading.read_chunk(found.session_id, found.number, found.item), lo, hi)

    def _read_if_whole(self, found: _Found, lo: int, hi: int) -> list[Sentence] | None:
        """The same, or None for a chunk that is damaged: it is no reason to keep the others back. `check` names it."""
        try:
            return self._read(found, lo, hi)
        except RecordDamaged:
            pass
        try:  # it may have moved since it was found
            return self._catalog.settled(lambda: self._read(self._found_again(found), lo, hi))
        except RecordDamaged:
            return None

    def _found_again(self, found: _Found) -> _Found:
        with self._catalog.read() as snapshot:
            return _Found(snapshot, found.session_id, found.number)

    def sentence(self, sentence_id: int) -> Sentence:
        """See Store.sentence."""
        with self._catalog.read() as snapshot:
            found = _find(snapshot, sentence_id)
        number = sentence_id - found.item.first_sentence
        for sentence in self._read(found, number, number + 1):
            return sentence
        raise SentenceForgotten("sentence id", sentence_id, "it was forgotten, ids of stored sentences are allowed")

    def after(self, sentence_id: int | None, limit: int, only: Only = ANY) -> list[Sentence]:
        """See Store.sentences_after."""
        first: int | None = 0 if sentence_id is None else sentence_id + 1
        result: list[Sentence] = []
        while first is not None and len(result) < limit:  # again where some were forgotten
            more, first = self._from(first, limit - len(result), only)
            result += more
        return result

    def _from(self, first: int, limit: int, only: Only) -> tuple[list[Sentence], int | None]:
        """Sentences of as many chunks as may hold `limit`, and the id to go on with, None at the end."""
        found: list[_Found] = []
        n_found, end = 0, None
        with self._catalog.read() as snapshot:
            for chunk in _chunks_from(snapshot, first, only.session_ids):
                if n_found >= limit:
                    break
                end = chunk.item.first_sentence + chunk.item.n_sentences
                if not (self._reading.vault.can_open(chunk.key_id) and chunk.is_of(only)):
                    continue
                found.append(chunk)
                n_found += chunk.item.n_sentences - max(0, first - chunk.item.first_sentence)
        result: list[Sentence] = []
        for chunk in found:
            lo = max(0, first - chunk.item.first_sentence)
            own = self._read_if_whole(chunk, lo, chunk.item.n_sentences)
            result += (own or [])[: limit - len(result)]
        return result, end

    def of_session(self, session_id: int, sentence_id: int | None) -> Iterator[list[Sentence]]:
        """See Store.sentences_of."""
        with self._catalog.read() as snapshot:
            numbers = [number for number, item in snapshot.chunks(session_id) if item.n_sentences]
            found = [_Found(snapshot, session_id, number) for number in numbers]
        for chunk in found:
            lo = 0 if sentence_id is None else max(0, sentence_id + 1 - chunk.item.first_sentence)
            if sentences := self._read_if_whole(chunk, lo, chunk.item.n_sentences):
                yield sentences

    def neighbours(self, sentence_id: int, before: int, after: int) -> list[Sentence]:
        """See Store.neighbours."""
        with self._catalog.read() as snapshot:
            middle = _find(snapshot, sentence_id)
            number = sentence_id - middle.item.first_sentence
            earlier = _gather(snapshot, middle, before - number, newest_first=True)
            later = _gather(snapshot, middle, after - (middle.item.n_sentences - 1 - number), newest_first=False)
        result = self._read(middle, number - before, number + after + 1)
        missing = before - number
        for found in earlier:
            n = found.item.n_sentences
            if (own := self._read_if_whole(found, n - missing, n)) is None:
                break
            result = own + result
            missing -= n
        missing = after - (middle.item.n_sentences - 1 - number)
        for found in later:
            if (own := self._read_if_whole(found, 0, missing)) is None:
                break
            result += own
            missing -= found.item.n_sentences
        return result


def _find(snapshot: Snapshot, sentence_id: int) -> _Found:
    place = snapshot.sentence_place(sentence_id) if sentence_id >= 0 else None
    if place is not None:
        found = _Found(snapshot, place.session_id, place.chunk)
        if sentence_id < found.item.first_sentence + found.item.n_sentences:
            return found
    raise InputError("sentence id", sentence_id, "ids of stored sentences are allowed")


def require_sentence(snapshot: Snapshot, sentence_id: int) -> int:
    """The sentence's session. Raises InputError for an id that the store never gave out, or whose session is gone."""
    return _find(snapshot, sentence_id).session_id


def _chunks_from(snapshot: Snapshot, first: int, session_ids: frozenset[int] | None) -> Iterator[_Found]:
    """Chunks with sentences of id `first` or later, of these sessions only (None: of all)."""

    def is_wanted(place: SentencePlace) -> bool:
        return session_ids is None or place.session_id in session_ids

    place = snapshot.sentence_place(first)
    if place is not None and place.first_sentence < first and is_wanted(place):
        found = _Found(snapshot, place.session_id, place.chunk)
        if first < found.item.first_sentence + found.item.n_sentences:
            yield found
    for place in filter(is_wanted, snapshot.sentence_places(first)):
        yield _Found(snapshot, place.session_id, place.chunk)


def _gather(snapshot: Snapshot, middle: _Found, n_wanted: int, *, newest_first: bool) -> list[_Found]:
    """Chunks of the same source before or after `middle`, nearest first, until they hold `n_wanted` sentences."""
    found: list[_Found] = []
    if n_wanted <= 0:
        return found
    source = middle.item.source
    if newest_first:
        numbers = snapshot.source_chunks_before(middle.session_id, source, middle.number)
    else:
        numbers = snapshot.source_chunks(middle.session_id, source, middle.number + 1)
    for number in numbers:
        if n_wanted <= 0:
            break
        chunk = _Found(snapshot, middle.session_id, number)
        if chunk.item.n_sentences:
            found.append(chunk)
            n_wanted -= chunk.item.n_sentences
    return found
