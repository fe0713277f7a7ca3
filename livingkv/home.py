"""What a memory holds open: store, index, engine and hot windows, each from its first use on.

Knows how they depend on one another; knows no question and no text. A store that does not exist is made by the
first write, because its fingerprint needs a model.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from livingkv.codec import page_bytes
from livingkv.codec_gate import require_codec
from livingkv.describing import tier_stats
from livingkv.engine import Engine
from livingkv.errors import (
    EmbedderMismatch,
    IndexDamaged,
    IndexFault,
    InputError,
    PageDamaged,
    RecordDamaged,
    SentenceForgotten,
    SessionNotFound,
    StoreFull,
    StoreLocked,
    StoreNotFound,
    StoreUnwritable,
)
from livingkv.hot_window import HotWindow
from livingkv.index import Entry, Index
from livingkv.models import LoadedModel, load_model
from livingkv.repairing import repair_session
from livingkv.results import CheckReport, TierStats
from livingkv.settings import DEFAULT_CODEC, CodecName, Settings
from livingkv.store import SessionRow, Store
from livingkv.stored_kv import restore_hot_window
from livingkv.tiers import TieredPages, open_pages
from livingkv.tiers.pinning import pin_for_cuda

_BATCH = 1000


class Home:
    """The open parts of one memory. Not thread-safe."""

    def __init__(
        self, path: Path, model: str | LoadedModel | None, settings: Settings | None, *, read_only: bool, create: bool
    ) -> None:
        self.path = path
        self._model = model
        self._asked_settings = settings
        self._read_only = read_only
        self._closing = contextlib.ExitStack()
        self._store: Store | None = None
        self._index: Index | None = None
        self._engine: Engine | None = None
        self._pages: TieredPages | None = None
        self._hot: dict[int, HotWindow] = {}
        self._recalled: list[int] = []
        self.load_ms = 0.0
        try:
            self._open(path, model, create=create)
        except BaseException:
            self._closing.close()
            raise

    def _open(self, path: Path, model: str | LoadedModel | None, *, create: bool) -> None:
        read_only = self._read_only
        try:
            self._store = Store.open(path, mode="read" if read_only else "write")
        except StoreNotFound:
            if read_only or not create:
                raise
        else:
            self._closing.callback(self._store.close)
            self._agree_on_codec(self._store)
            if not read_only:
                self._limit_disk(self._store)
        if isinstance(model, LoadedModel) and self._store is not None:
            self._store.fingerprint.require(self.engine().fingerprint(), path)

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._asked_settings or Settings()

    @property
    def n_sinks(self) -> int:
        """How many first tokens of a session are always attended: a property of the store."""
        label = self.store().labels.get("n_sinks")
        return int(label) if label is not None else len(self.engine().words.framing.prologue)

    @property
    def model_label(self) -> str:
        """What the store's model is found by."""
        return self._label("model")

    def _label(self, name: str) -> str:
        label = self.store().labels.get(name)
        if label is None:
            raise RecordDamaged(
                f"{self.path}: its manifest lacks the label {name!r}; restore manifest.json from a backup"
            )
        return label

    @property
    def codec(self) -> CodecName:
        """The store's page codec, or that of the settings while there is no store."""
        if self._store is not None:
            return "int8" if self._store.fingerprint.codec == "int8" else "lossless"
        return self.settings.codec or DEFAULT_CODEC

    def _agree_on_codec(self, store: Store) -> None:
        asked = self._asked_settings
        if asked is not None and asked.codec not in (None, store.fingerprint.codec):
            allowed = f"{self.path} was written with {store.fingerprint.codec}: use that, or another store path"
            raise InputError("settings.codec", asked.codec, allowed)

    def _limit_disk(self, store: Store) -> None:
        wish = self.settings.disk_budget_bytes
        if wish is not None:
            store.limit_disk(None if wish == "unlimited" else wish)

    def store(self) -> Store:
        """The store. Raises StoreNotFound while nothing was ever written."""
        if self._store is None:
            raise StoreNotFound(f"there is no store at {self.path}: ingest something into it first")
        return self._store

    def writable_store(self) -> Store:
        """The store, made now if it does not exist; its model is checked. Raises StoreUnwritable when opened
        read-only."""
        if self._read_only:
            raise StoreUnwritable(f"{self.path} was opened read-only: open it for writing")
        engine = self.engine()
        if self._store is None:
            require_codec(engine)
            self._store = Store.open(
                self.path,
                mode="write",
                fingerprint=engine.fingerprint(),
                create=True,
                labels=engine.labels(),
            )
            self._closing.callback(self._store.close)
            self._limit_disk(self._store)
            self.index()  # so that a reader finds one from the first commit on
        return self._store

    def engine(self) -> Engine:
        """The model, loaded now if need be, and checked against the store. Raises ModelError or FingerprintMismatch."""
        if self._engine is None:
            started = perf_counter()
            model = self._model
            if model is None and self._store is not None:
                model = self._label("model")
            if not isinstance(model, LoadedModel):
                model = load_model(model)
            if self.settings.placement == "dual_chunk" and model.dual_chunk is None:
                allowed = "a model with dual-chunk positions is needed; compact and absolute work with every model"
                raise InputError("settings.placement", "dual_chunk", allowed)
            engine = Engine.of(model, self.codec)
            if self._store is not None:
                self._store.fingerprint.require(engine.fingerprint(), self.path)
            self._engine = engine
            self.load_ms += (perf_counter() - started) * 1000.0
        return self._engine

    def pages(self) -> TieredPages:
        """The store's pages through RAM, within the budget of the settings. Raises InputError if it is too small."""
        if self._pages is None:
            engine = self.engine()
            self._pages = open_pages(
                self.store(),
                page_bytes=page_bytes(engine.codec.name, engine.shape),
                ram_budget_bytes=self.settings.ram_budget_bytes,
                register=pin_for_cuda if engine.model.device.type == "cuda" else None,
            )
        return self._pages

    def tier_stats(self) -> TierStats | None:
        """What the tiers hold and did since they were opened, None while they are not."""
        return None if self._pages is None else tier_stats(self._pages.counts(), self.settings.ram_budget_bytes)

    def index(self) -> Index:
        """The index, with every sentence of the store in it; a writer makes it anew where it is missing, damaged
        or of another embedder, a reader makes one of its own for as long as it is open. It probes by meaning once
        the model is loaded.

        Raises StoreFull, StoreLocked or IndexFault.
        """
        if self._index is not None and self._engine is not None and not self._index.has_embedder:
            self._close_index()  # what it was fed without the model has no vectors
        if self._index is None:
            self._index = self._opened_index()
            self.index_new_sentences()
        elif self._read_only:
            self.index_new_sentences()
        return self._index

    def _opened_index(self) -> Index:
        folder = self.store().path / "index"
        embedder = self._engine.embedder() if self._engine is not None else None
        try:
            index = Index.open(folder, embedder, mode="read" if self._read_only else "write")
            index.load()
            if self._knows_too_much(index):
                index.abandon()
                raise IndexDamaged(f"{folder} is of a later state than the store")
            return index
        except (IndexDamaged, EmbedderMismatch):
            if not self._read_only:
                return Index.recreate(folder, self.engine().embedder())
        except IndexFault:  # a file system that cannot even be locked
            if not self._read_only:
                raise
        own = self._closing.enter_context(tempfile.TemporaryDirectory(prefix="livingkv-index-"))
        return Index.recreate(Path(own), embedder)

    def _knows_too_much(self, index: Index) -> bool:
        """True for an index of another moment than the store, as in a copy made while a writer was at work."""
        if index.high_water is None:
            return False
        try:
            self.store().sentence(index.high_water)
        except (SentenceForgotten, RecordDamaged):
            return False
        except InputError:
            return True
        return False

    def _close_index(self) -> None:
        """Flush and close. What cannot be flushed is fed again at the next use, so it is no reason to fail."""
        index, self._index = self._index, None
        if index is not None:
            with contextlib.suppress(IndexFault, StoreFull, StoreLocked):
                index.close()

    def index_new_sentences(self) -> None:
        """Let the index know the store's newest sentences. They can be found at once; durable at the latest at
        `close`."""
        store = self.store()
        if self._index is None:
            self._index = self._opened_index()
        while batch := store.sentences_after(self._index.high_water, _BATCH):
            if not self._read_only and not self._index.has_embedder:
                self._index.use_embedder(self.engine().embedder())
            self._index.add([Entry(s.sentence_id, s.session_id, s.text) for s in batch])
            self._index.commit(batch[-1].sentence_id)

    def index_if_possible(self) -> None:
        """The same after a commit that stands whatever becomes of the index: what it misses now it is fed at the next
        use."""
        with contextlib.suppress(IndexFault, StoreFull, StoreLocked):
            self.index_new_sentences()

    def session_for_writing(self, name: str, *, kv: bool = True) -> SessionRow:
        """The session called `name`, made now if it does not exist; with `kv` False it is text-only from the start."""
        store = self.writable_store()
        try:
            return store.session(name)
        except SessionNotFound:
            return store.create_session(name, kv=kv)

    def at_message_start(self, session_id: int) -> bool:
        """True when the session's last token opened a user message, so that nothing of it has been said yet."""
        session, framing = self.store().session(session_id), self.engine().words.framing
        ids = tuple(
            self.store()
            .token_ids(session_id, max(0, session.n_tokens - len(framing.reopen)), session.n_tokens)
            .tolist()
        )
        return session.n_tokens <= len(framing.prologue) or ids == framing.reopen

    @contextlib.contextmanager
    def hot_window(self, session: SessionRow) -> Iterator[HotWindow]:
        """The session's hot window, restored from the store where this process does not hold it. Where KV of it is
        damaged or was dropped, a writer rebuilds it first. After an error inside the block it is dropped, because
        it may be ahead of the store."""
        hot = self._hot.pop(session.session_id, None)
        if hot is None or hot.n_tokens != session.n_tokens:
            hot = self._restored(session)
        yield hot
        self._hot.clear()  # one at a time: device memory does not grow with the sessions
        self._hot[session.session_id] = hot

    def _restored(self, session: SessionRow) -> HotWindow:
        store, engine = self.store(), self.engine()
        try:
            return restore_hot_window(store, engine, session, self.settings, self.n_sinks)
        except PageDamaged:
            if self._read_only:
                raise
        repair_session(store, engine, self.settings, session, self.n_sinks)
        return restore_hot_window(store, engine, store.session(session.session_id), self.settings, self.n_sinks)

    def let_go(self) -> None:
        """Drop what device memory and RAM hold of sessions: the store is about to change under it."""
        self._hot.clear()
        if self._pages is not None:
            self._pages.close()
            self._pages = None

    def mend_index(self) -> None:
        """Make the index anew if a check finds anything wrong with it."""
        if self.index().check():
            self.remake_index()

    def remake_index(self) -> None:
        """A new index of what the store holds now; of the old one nothing is left on disk."""
        folder = self.store().path / "index"
        self._close_index()
        self._index = Index.recreate(folder, self.engine().embedder())
        self.index_new_sentences()
        self._index.flush()

    def note_recall(self, sentence_ids: Iterable[int]) -> None:
        """Sentences that an answer used; their weights are recharged at once by a writer, at `close` by a reader."""
        if self._read_only:
            self._recalled.extend(sentence_ids)
        else:
            self.store().recharge(sentence_ids)

    def check(self) -> CheckReport:
        """What is wrong with store and index, in words. Never raises for damage."""
        report = self.store().check()
        try:
            with Index.open(self.store().path / "index", None, "read") as index:
                problems = tuple(index.check())
        except IndexFault as error:
            problems = (f"index: {error}; it is made anew at the next use",)
        return replace(report, problems=(*report.problems, *problems))

    def close(self) -> None:
        """Close everything. A second call does nothing."""
        self.let_go()
        self._close_index()
        self._closing.close()
        recalled, self._recalled = self._recalled, []
        if recalled:
            with (
                contextlib.suppress(StoreLocked, StoreUnwritable, StoreFull),
                Store.open(self.path, mode="write") as store,
            ):
                store.recharge(recalled)  # a hint for later evictions: worth a moment's lock, not worth an error
