"""The life of sessions besides appends: drop and repair KV, pin, fork, rename, forget (see the verbs' docstrings).

Each verb is one commit: a plan made from a snapshot, committed under the append lock, then erasures worked off.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping

from livingkv.errors import PageDamaged, StoreError
from livingkv.store.committing import Committing
from livingkv.store.forking import plan_fork, plan_rename
from livingkv.store.items import PageState
from livingkv.store.look import StoreLook
from livingkv.store.making import with_feature
from livingkv.store.manifest import ENCRYPTION
from livingkv.store.page_changes import plan_drop, plan_pin, plan_replace
from livingkv.store.plan import Plan
from livingkv.store.rows import IdempotencyKey, SessionRow
from livingkv.store.snapshot import Snapshot


class StoreLife(StoreLook, ABC):
    """Base of `Store`: the verbs that change what was appended."""

    _append_lock: threading.Lock

    @abstractmethod
    def _commit(self, plan: Plan) -> None:
        """Commit a plan."""

    @abstractmethod
    def _make_room(self, plan: Plan, n_more: int = 0) -> bool:
        """Keep a commit within the disk budget; True if the plan must be made again."""

    @abstractmethod
    def _writing(self) -> Committing:
        """The writing half. Raises StoreError if the store is open for reading only."""

    def _encrypt(self, plan: Plan) -> None:
        """Give the only session of a plan, which is new, a key of its own; the key is durable on return."""
        self._writing()
        key_id = self._vault.make_key()
        self._manifest = with_feature(self._disk, self.path, self._catalog, self._manifest, ENCRYPTION)
        plan.sessions = {session_id: item._replace(key_id=key_id) for session_id, item in plan.sessions.items()}

    def _change(self, make: Callable[[Plan, Snapshot], None]) -> Plan:
        """Commit what `make` puts into a plan, and give the space of what it gave up back if that is possible."""
        with self._append_lock:
            plan = self._committed(make)
            if plan.erasures:
                with contextlib.suppress(StoreError):  # the commit stands; the next opening for writing tries again
                    self._writing().erase()
        return plan

    def _committed(self, make: Callable[[Plan, Snapshot], None]) -> Plan:
        plan = self._made(make)
        if plan.pages and self._make_room(plan):
            plan = self._made(make)
        if not plan.is_empty:
            self._commit(plan)
        return plan

    def _made(self, make: Callable[[Plan, Snapshot], None]) -> Plan:
        with self._catalog.read() as snapshot:
            plan = Plan(snapshot.state())
            make(plan, snapshot)
        return plan

    def drop_pages(self, session_id: int, pages: Iterable[int], *, quarantine: bool = False) -> int:
        """Give up the KV of pages; text, ids and index stay. Durable on return. The bytes of KV that were given up.

        Reading such a page raises PageDropped; `replace_pages` brings it back. Pages without KV are left alone.
        quarantine: the pages are damaged; `check` names them until they are replaced.
        A fork that shares a page keeps it. Raises InputError, SessionNotFound, StoreFull or StoreError.
        """
        state = PageState.QUARANTINED if quarantine else PageState.DROPPED

        def make(plan: Plan, snapshot: Snapshot) -> None:
            session = self._reading.require_session(snapshot, session_id)
            plan_drop(plan, snapshot, session_id, session, pages, state, self.fingerprint.page_tokens)

        return sum(item.location.length for item in self._change(make).erasures)

    def replace_pages(self, session_id: int, pages: Mapping[int, bytes], tail: bytes | None = None) -> None:
        """Put the KV of pages, and of the tail unless it is None, in the place of what is there; durable on return.

        All or nothing. For pages that are damaged, dropped or in quarantine, and for a tail that is not stored.
        Raises InputError for a page that the session does not have, SessionNotFound, StoreFull or StoreError.
        """

        def make(plan: Plan, snapshot: Snapshot) -> None:
            session = self._reading.require_session(snapshot, session_id)
            self._reading.require_key(session_id, session)
            plan_replace(plan, snapshot, session_id, session, pages, tail, self.fingerprint.page_tokens)

        self._change(make)

    def missing_pages(self, session_id: int) -> list[int]:
        """Pages whose KV is not kept, in order. Raises SessionNotFound."""
        with self._catalog.read() as snapshot:
            self._reading.require_session(snapshot, session_id)
            return [page for page, item in snapshot.pages_of(session_id) if item.state is not PageState.PRESENT]

    def pin(self, session_id: int, *, pinned: bool = True) -> None:
        """Keep a quota from taking the session's pages, or let it again; durable on return."""

        def make(plan: Plan, snapshot: Snapshot) -> None:
            plan_pin(plan, session_id, self._reading.require_session(snapshot, session_id), pinned=pinned)

        self._change(make)

    def fork(self, session_id: int, name: str, once: IdempotencyKey | None = None) -> SessionRow:
        """A new session that begins as this one; durable on return. Records are shared, neither affects the other.

        Its sentences get ids of their own. A fork of an encrypted session has the same key. once: as for `append_all`.
        Raises KeyMissing,
        SessionExists, SessionNotFound, InputError, StoreFull or StoreError.
        """

        def make(plan: Plan, snapshot: Snapshot) -> None:
            origin = self._reading.require_session(snapshot, session_id)
            self._reading.require_key(session_id, origin)
            tail = None
            with contextlib.suppress(PageDamaged):
                tail = self._reading.tail_of(snapshot, session_id, origin)
            plan_fork(plan, snapshot, session_id, origin, name, tail, int(time.time() * 1000))
            if once is not None:
                plan.note_request(once)

        self._change(make)
        return self.session(name)

    def rename(self, session_id: int, name: str) -> SessionRow:
        """Give a session another name; durable on return. The old one leads nowhere, but stays in the files until
        `defrag`, or until the session is forgotten; in lines of the archive until they are erased.

        Raises SessionExists, SessionNotFound, InputError, StoreFull or StoreError.
        """

        def make(plan: Plan, snapshot: Snapshot) -> None:
            session = self._reading.require_session(snapshot, session_id)
            self._reading.require_key(session_id, session)
            plan_rename(plan, snapshot, session_id, session, name)

        self._change(make)
        return self.session(session_id)
