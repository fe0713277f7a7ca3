"""What a memory holds open: store and model, index, pages and hot windows, each from its first use on.

Knows how they depend on one another; knows no question and no text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from livingkv.codec import page_bytes
from livingkv.conversation_mark import is_conversation
from livingkv.describing import tier_stats, tiers_together
from livingkv.errors import (
    InputError,
    KeyReused,
    PageDamaged,
    PageDropped,
    RecordDamaged,
    SessionNotFound,
    StoreFull,
    StoreLocked,
    StoreNotFound,
    StoreUnwritable,
)
from livingkv.home_index import HomeIndex
from livingkv.hot_window import HotWindow
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.repairing import repair_session, reread_window
from livingkv.results import CheckReport, TierStats
from livingkv.settings import LookBack, Settings
from livingkv.store import IdempotencyKey, SessionRow, Store, StoredRequest
from livingkv.store_and_model import StoreAndModel
from livingkv.stored_kv import restore_hot_window
from livingkv.tiers import TieredPages, open_pages
from livingkv.tiers.pinning import pin_for_cuda
from livingkv.watching import Watch


class Home(StoreAndModel):
    """The open parts of one memory. Not thread-safe."""

    def __init__(
        self,
        path: Path,
        model: str | ModelChoice | LoadedModel | None,
        settings: Settings | None,
        *,
        read_only: bool,
        create: bool,
    ) -> None:
        super().__init__(path, model, settings, read_only=read_only, create=create)
        self.index = HomeIndex(self)
        self.watch = Watch()
        self._let_go_tiers: TierStats | None = None
        self._pages: TieredPages | None = None
        self._hot: dict[int, HotWindow] = {}
        self._recalled: list[int] = []

    def writable_store(self) -> Store:
        """A store that is made now gets its index at once, so that a reader finds one from the first commit on."""
        is_new = self._store is None
        store = super().writable_store()
        if is_new:
            self.index.current()
        return store

    def pages(self) -> TieredPages:
        """The store's pages through RAM, within the budget of the settings. Raises SettingError if it is too small."""
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

    def tier_totals(self) -> TierStats | None:
        """The same, with what they did before they were let go: counts that never go back. None before the first."""
        return tiers_together(self._let_go_tiers, self.tier_stats())

    @property
    def device_bytes(self) -> int:
        """What the hot windows that are held take of device memory."""
        return sum(hot.workspace.size_bytes for hot in self._hot.values())

    def request(self, once: IdempotencyKey) -> StoredRequest | None:
        """What a request of this key stored, None if none did. Raises KeyReused where that one asked something else."""
        found = self.store().request(once) if self.has_store else None
        if found is not None and found.digest != once.digest:
            raise KeyReused("idempotency key", "another request than before", "a new key is needed")
        return found

    def session_for_writing(
        self, name: str, *, kv: bool = True, encrypt: bool = False, once: IdempotencyKey | None = None
    ) -> SessionRow:
        """The session called `name`, made now if it does not exist; with `kv` False it is text-only from the start,
        with `encrypt` it is encrypted. once: stored with a new one.

        Raises InputError where it exists and keeps KV, or is in the clear, all the same.
        """
        row = self.known_session(name, kv=kv, encrypt=encrypt)
        if row is None:
            row = self.writable_store().create_session(name, kv=kv, encrypt=encrypt, once=once)
            if encrypt:
                self.let_go()  # sealed pages need more room in RAM
        return row

    def known_session(self, name: str, *, kv: bool = True, encrypt: bool = False) -> SessionRow | None:
        """The session called `name`, None if there is none yet. Raises InputError if it keeps KV though `kv` is
        False, is in the clear though `encrypt` is True, or is a conversation of the service."""
        try:
            row = self.store().session(name)
        except (SessionNotFound, StoreNotFound):
            return None
        if is_conversation(self.store(), row.session_id):
            raise InputError("session", repr(name), "it is a conversation of the service: go on there, or name another")
        if not kv and not row.text_only:
            raise InputError("text-only", f"session {name!r}, which keeps KV", "leave it out, or name a new session")
        if encrypt and not row.encrypted:
            allowed = "leave it out, or name a new session"
            raise InputError("encrypt", f"session {name!r}, which exists and is in the clear", allowed)
        return row

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
    def hot_window(self, session: SessionRow, *, document: bool = False) -> Iterator[HotWindow]:
        """The session's hot window, restored from the store where this process does not hold it; the short one that a
        document is read with, or that of a conversation. Where KV of it is damaged or was dropped, a writer reads its
        text again. After an error inside the block it is dropped, because it may be ahead of the store."""
        look = self.settings.document if document else self.settings.conversation
        hot = self._hot.pop(session.session_id, None)
        if hot is None or (hot.n_tokens, hot.look) != (session.n_tokens, look):
            started, hot = perf_counter(), None
            self._hot.clear()  # one at a time, also while this one is made
            hot = self._restored(session, look)
            self.watch.restored(perf_counter() - started)
        else:
            self.watch.reused()
        yield hot
        self._hot.clear()  # device memory does not grow with the sessions
        self._hot[session.session_id] = hot

    def holds(self, session: SessionRow) -> HotWindow | None:
        """The session's hot window, where device memory has it as the store does."""
        hot = self._hot.get(session.session_id)
        return hot if hot is not None and hot.n_tokens == session.n_tokens else None

    def adopt_hot_window(self, session: SessionRow, hot: HotWindow) -> None:
        """Hold the hot window of a session that was made with it, in the place of the one that is held."""
        assert hot.n_tokens == session.n_tokens, "the hot window is the session's"
        self._hot.clear()
        self._hot[session.session_id] = hot

    def _restored(self, session: SessionRow, look: LookBack) -> HotWindow:
        store, engine, settings = self.store(), self.engine(), self.settings
        try:
            return restore_hot_window(store, engine, session, settings, self.n_sinks, look, tiers=self.pages())
        except PageDamaged as error:
            if self.read_only:
                raise
            if isinstance(error, PageDropped) and store.disk_budget_bytes is not None:
                return reread_window(store, engine, settings, session, self.n_sinks, look)
        repair_session(store, engine, settings, session, self.n_sinks)
        repaired = store.session(session.session_id)
        return restore_hot_window(store, engine, repaired, settings, self.n_sinks, look, tiers=self.pages())

    def let_go(self) -> None:
        """Drop what device memory and RAM hold of sessions: the store is about to change under it."""
        self._hot.clear()
        if self._pages is not None:
            self._let_go_tiers = self.tier_totals()
            self._pages.close()
            self._pages = None

    def note_recall(self, sentence_ids: Iterable[int]) -> None:
        """Sentences that an answer used; their weights are recharged at once by a writer, at `close` by a reader."""
        if self.read_only:
            self._recalled.extend(sentence_ids)
        else:
            self.store().recharge(sentence_ids)

    def check(self) -> CheckReport:
        """What is wrong with store and index, in words. Never raises for damage."""
        try:
            report = self.store().check()
        except RecordDamaged as error:  # it cannot even be opened
            return CheckReport(str(self.path), 0, 0, 0, (str(error),))
        return replace(report, problems=(*report.problems, *self.index.problems()))

    def close(self) -> None:
        """Close everything. A second call does nothing."""
        self.let_go()
        try:
            self.index.close()
        finally:
            super().close()
        recalled, self._recalled = self._recalled, []
        if recalled:
            with (
                contextlib.suppress(StoreLocked, StoreUnwritable, StoreFull),
                Store.open(self.path, mode="write") as store,
            ):
                store.recharge(recalled)  # a hint for later evictions: worth a moment's lock, not worth an error
