"""Small stores for the tests: appends made from words, and a model of what the store must then hold (a plain dict).

The model is the reference that random operations and crashes are checked against.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from livingkv.store import Append, Disk, Fingerprint, SentenceRecord, Store

PAGE_TOKENS = 4
FINGERPRINT = Fingerprint(
    model="tiny:0123",
    tokenizer="tiny-bpe:4567",
    rope="theta=1e6",
    dtype="bfloat16",
    quantization="none",
    codec="int8",
    page_tokens=PAGE_TOKENS,
)
WORDS = ["alpha", "beta ", "Zürich\n", "日本語。", "🙂", "\r\n", "e\u0301", " ", "the quick brown fox. ", "x" * 50]


class ChunkModel(NamedTuple):
    """What one append covered. A forgotten source has no name."""

    token_lo: int
    token_hi: int
    byte_lo: int
    byte_hi: int
    source: str


@dataclass
class SessionModel:
    """What one session must hold. `archived`: source and text of what was pruned."""

    session_id: int
    name: str
    ids: list[int] = field(default_factory=list)
    text: bytes = b""
    sentences: list[tuple[SentenceRecord, str, bytes]] = field(default_factory=list)
    pages: list[bytes] = field(default_factory=list)
    tail: bytes = b""
    n_turns: int = 0
    missing: frozenset[int] = frozenset()
    has_tail: bool = True
    pinned: bool = False
    encrypted: bool = False
    chunks: list[ChunkModel] = field(default_factory=list)
    archived: tuple[tuple[str, bytes], ...] = ()

    def without_pages(self, pages: frozenset[int]) -> SessionModel:
        """The session after pages were dropped."""
        return replace(self, missing=self.missing | pages)

    def repaired(self) -> SessionModel:
        """The session after all missing pages, and the tail, were brought back."""
        return replace(self, missing=frozenset(), has_tail=True)

    def without_sentence(self, number: int) -> SessionModel:
        """The session after its sentence `number` was forgotten."""
        span, _, _ = self.sentences[number]
        kept = self.sentences[:number] + self.sentences[number + 1 :]
        return replace(self._blanked(*span), sentences=kept)

    def without_source(self, name: str) -> SessionModel:
        """The session after all that it holds of a source was forgotten."""
        result = self
        for chunk in self.chunks:
            if chunk.source == name:
                result = result._blanked(chunk.byte_lo, chunk.byte_hi, chunk.token_lo, chunk.token_hi)
        return replace(
            result,
            sentences=[each for each in self.sentences if each[1] != name],
            chunks=[each._replace(source="" if each.source == name else each.source) for each in self.chunks],
            archived=tuple(each for each in self.archived if each[0] != name),
        )

    def pruned(self, keep: int) -> SessionModel:
        """The session after all but the newest `keep` sentences, of which none was recalled, were pruned."""
        result = self
        for _, source, text in self.sentences[: max(0, len(self.sentences) - keep)]:
            result = replace(result.without_sentence(0), archived=(*result.archived, (source, text)))
        return result

    def copied(self, session_id: int, name: str, *, kv: bool) -> SessionModel:
        """Another session made from the export of this one."""
        return replace(
            self,
            session_id=session_id,
            name=name,
            missing=self.missing if kv else frozenset(range(len(self.pages))),
            has_tail=self.has_tail if kv else len(self.ids) % PAGE_TOKENS == 0,
            pinned=False,
            archived=(),
        )

    def _blanked(self, byte_lo: int, byte_hi: int, token_lo: int, token_hi: int) -> SessionModel:
        tokens = range(token_lo, token_hi)
        n_sealed = len(self.pages) * PAGE_TOKENS
        return replace(
            self,
            ids=[0 if token in tokens else each for token, each in enumerate(self.ids)],
            text=self.text[:byte_lo] + b" " * (byte_hi - byte_lo) + self.text[byte_hi:],
            missing=self.missing | {token // PAGE_TOKENS for token in tokens if token < n_sealed},
            has_tail=self.has_tail and not (self.tail and token_hi > n_sealed and tokens),
        )

    def applied(self, append: Append) -> SessionModel:
        """The session after an append."""
        sentences = [(span, append.source, self._bytes(append, span)) for span in append.sentences]
        n_tokens, n_bytes = len(self.ids) + len(append.token_ids), len(self.text) + len(append.text)
        return replace(
            self,
            ids=self.ids + append.token_ids.tolist(),
            text=self.text + append.text,
            sentences=self.sentences + sentences,
            pages=self.pages + [bytes(page) for page in append.pages],
            tail=append.tail,
            has_tail=True,
            n_turns=self.n_turns + append.ends_turn,
            chunks=[*self.chunks, ChunkModel(len(self.ids), n_tokens, len(self.text), n_bytes, append.source)],
        )

    def _bytes(self, append: Append, span: SentenceRecord) -> bytes:
        return append.text[span.byte_lo - len(self.text) : span.byte_hi - len(self.text)]


def make_append(
    model: SessionModel, rng: random.Random, *, n_tokens: int | None = None, page_bytes: int = 50, source: str = "book"
) -> Append:
    """A random append that continues the session rightly."""
    n_tokens = rng.choice([0, 1, 3, 5, 9, 17]) if n_tokens is None else n_tokens
    n_sentences = rng.randrange(4) if n_tokens else 0
    texts = ["".join(rng.choices(WORDS, k=rng.randint(1, 6))).encode() for _ in range(n_sentences)]
    first_token, byte = len(model.ids), len(model.text)
    sentences = []
    for number, text in enumerate(texts):
        lo = first_token + n_tokens * number // n_sentences
        hi = first_token + n_tokens * (number + 1) // n_sentences
        sentences.append(SentenceRecord(byte, byte + len(text), lo, hi))
        byte += len(text)
    n_pages = (first_token + n_tokens) // PAGE_TOKENS - len(model.pages)
    n_tail = (first_token + n_tokens) % PAGE_TOKENS
    return Append(
        session_id=model.session_id,
        first_token=first_token,
        token_ids=np.array(rng.choices(range(151_000), k=n_tokens), dtype=np.int32),
        text=b"".join(texts),
        sentences=tuple(sentences),
        source=source,
        role=rng.choice(("document", "user", "assistant", "template")),
        pages=tuple(rng.randbytes(page_bytes) for _ in range(n_pages)),
        tail=rng.randbytes(n_tail * page_bytes),
        end_of_source=rng.random() < 0.3,
        source_digest=f"digest-{source}",
        ends_turn=rng.random() < 0.3,
    )


def new_session(store: Store, name: str = "main") -> SessionModel:
    """A new, empty session of a store."""
    return SessionModel(store.create_session(name).session_id, name)


def grown(
    store: Store,
    model: SessionModel,
    rng: random.Random,
    *,
    n_tokens: int | None = None,
    page_bytes: int = 50,
    source: str = "book",
) -> SessionModel:
    """Appends at random to a store's session; the session then."""
    append = make_append(model, rng, n_tokens=n_tokens, page_bytes=page_bytes, source=source)
    store.append(append)
    return model.applied(append)


def new_store(path: Path, *, disk: Disk | None = None, segment_bytes: int = 1 << 20) -> Store:
    """A new store, or one whose making broke off."""
    return Store.open(
        path, mode="write", fingerprint=FINGERPRINT, create=True, segment_bytes=segment_bytes, catalog_bytes=1 << 24,
        disk=disk,
    )  # fmt: skip


def write_store(path: Path, *, disk: Disk | None = None, segment_bytes: int = 1 << 20) -> Store:
    """An existing store, for writing."""
    return Store.open(path, mode="write", segment_bytes=segment_bytes, catalog_bytes=1 << 24, disk=disk)


def read_store(path: Path, *, disk: Disk | None = None) -> Store:
    """An existing store, for reading."""
    return Store.open(path, mode="read", catalog_bytes=1 << 24, disk=disk)


def filled_store(path: Path, *, n_appends: int = 6, segment_bytes: int = 1 << 20) -> SessionModel:
    """A closed store with one session of `n_appends` appends; what it holds."""
    rng = random.Random(7)
    with new_store(path, segment_bytes=segment_bytes) as store:
        model = new_session(store)
        for _ in range(n_appends):
            model = grown(store, model, rng, n_tokens=9)
    return model


def rebuild(root: Path) -> None:
    """Lose a closed store's catalog, and make it anew from the segments without a problem."""
    shutil.rmtree(root / "catalog")
    assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()


def holds(root: Path, needle: bytes) -> list[str]:
    """Files of a store that hold some bytes."""
    return [str(path) for path in sorted(root.rglob("*")) if path.is_file() and needle in path.read_bytes()]


def assert_session(store: Store, model: SessionModel) -> None:
    """The store's session is the model's, byte for byte."""
    row = store.session(model.name)
    counted = (row.session_id, row.n_tokens, row.n_sealed_tokens, row.n_bytes, row.n_sentences, row.n_turns)
    assert counted == (
        model.session_id,
        len(model.ids),
        len(model.pages) * PAGE_TOKENS,
        len(model.text),
        len(model.sentences),
        model.n_turns,
    )
    assert store.token_ids(model.session_id, 0, len(model.ids)).tolist() == model.ids
    assert store.text(model.session_id) == model.text
    present = [page for page in range(len(model.pages)) if page not in model.missing]
    assert store.read_pages(model.session_id, present) == [model.pages[page] for page in present]
    assert store.missing_pages(model.session_id) == sorted(model.missing)
    assert row.needs_tail != model.has_tail
    if model.has_tail:
        assert store.read_tail(model.session_id) == (len(model.pages) * PAGE_TOKENS, model.tail)
    own = [sentence for sentence in store.sentences_after(None, 1 << 30) if sentence.session_id == model.session_id]
    found = [
        (SentenceRecord(each.byte_lo, each.byte_hi, each.token_lo, each.token_hi), each.source, each.raw)
        for each in own
    ]
    assert found == model.sentences


def assert_whole(store: Store) -> None:
    """`check` finds nothing, and the parts of `stats` add up."""
    assert store.check().problems == ()
    stats = store.stats()
    assert sum(stats.bytes_by_part.values()) == stats.size_bytes
