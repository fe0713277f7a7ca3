"""The tenants of a service: one store each, in a folder of its own, opened when first used.

Knows homes and conversations; knows no HTTP. The name comes from the key that a request was made with. Everything here
happens on the inference thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from livingkv.codec import page_bytes
from livingkv.conversation_mark import is_conversation
from livingkv.errors import (
    FingerprintMismatch,
    InputError,
    LivingKVError,
    SessionNotFound,
    SettingError,
    StoreNotFound,
)
from livingkv.home import Home
from livingkv.memory import Memory
from livingkv.models import LoadedModel
from livingkv.server.api_errors import session_busy
from livingkv.server.conversations import Conversations
from livingkv.server.gate import Gate
from livingkv.server.joining import Joining
from livingkv.server.keys import TENANT
from livingkv.server.rendering import ChatTemplate
from livingkv.server.token_texts import TokenTexts
from livingkv.settings import PAGE_TOKENS, Settings
from livingkv.store import SessionRow
from livingkv.watching import Watch


@dataclass(slots=True)
class Tenant:
    """One tenant's open parts. busy: names of sessions that a turn or a job is writing to; at_work: those of a job
    among them. gate: passed by whatever uses the home. awaits: tells whether a job that has not ended writes to a
    session whose stored name is meant."""

    name: str
    home: Home
    conversations: Conversations
    template: ChatTemplate
    texts: TokenTexts
    memory: Memory
    gate: Gate = field(default_factory=Gate)
    busy: set[str] = field(default_factory=set)
    at_work: set[str] = field(default_factory=set)
    awaits: Callable[[Callable[[str], bool]], bool] = lambda is_meant: False

    def kv_bytes(self, n_tokens: int) -> int:
        """What the pages of so many tokens take in the store."""
        engine = self.home.engine()
        return n_tokens * page_bytes(engine.codec.name, engine.shape) // PAGE_TOKENS

    @property
    def is_idle(self) -> bool:
        """Nobody uses it now."""
        return self.gate.is_free and not self.busy

    def require_free(self, name: str) -> None:
        """Raise ApiError where a job is writing to the session of this name: that may take hours, and whoever waited
        for it inside of the gate would keep out those whom the job lets in."""
        if name in self.at_work:
            raise session_busy()

    def require_unwritten(self, is_meant: Callable[[str], bool]) -> None:
        """Raise ApiError where a job writes to a session whose stored name is meant, or is about to: what is forgotten
        now would come back."""
        if any(map(is_meant, self.at_work)) or self.awaits(is_meant):
            raise session_busy()

    @contextmanager
    def at_work_on(self, name: str) -> Iterator[None]:
        """Keep others from writing to a session that nobody is writing to."""
        assert name not in self.busy, "one writes at a time"
        for names in (self.busy, self.at_work):
            names.add(name)
        try:
            yield
        finally:
            for names in (self.busy, self.at_work):
                names.discard(name)

    def holds(self, session: str | None, source: str | None) -> bool:
        """True where the session of this stored name is there, with the source; None names none."""
        if session is None:
            return source is None
        try:
            row = self.home.store().session(session)
        except (SessionNotFound, StoreNotFound):
            return False
        return source is None or source in row.sources

    def renew_conversations(self) -> None:
        """Have the table of conversations agree with the store."""
        if self.home.has_store:
            self.conversations.renew(self.home.store())

    def known_session(self, name: str) -> SessionRow | None:
        """The conversation of this name, None if there is none yet. Raises InputError where it is something else."""
        try:
            row = self.home.store().session(name)
        except (SessionNotFound, StoreNotFound):
            return None
        if row.n_tokens and not is_conversation(self.home.store(), row.session_id):
            raise InputError("session", repr(name), "one that no document was ingested into is allowed: name another")
        return row

    def free_name(self, name: str) -> str:
        """A name for what `name` was until now."""
        taken = {row.name for row in self.home.store().sessions()}
        number = 2
        while f"{name}~{number}" in taken:
            number += 1
        return f"{name}~{number}"


class Tenants:
    """All tenants. `open_one` may take as long as the store's recovery. Not thread-safe."""

    def __init__(
        self,
        folder: Path,
        model: LoadedModel,
        settings: Settings,
        joining: Joining,
        watch: Watch | None = None,
        writes_to: Callable[[str, Callable[[str], bool]], bool] = lambda tenant, is_meant: False,
    ) -> None:
        """joining: what the tenants' forward passes take part in. writes_to: as Jobs.writes_to."""
        self._folder = folder
        self._model = model
        self._settings = settings
        self._joining = joining
        self._watch = Watch() if watch is None else watch
        self._writes_to = writes_to
        self._open: dict[str, Tenant] = {}

    def open_one(self, name: str) -> Tenant:
        """A tenant's parts, its store opened now if need be. Raises StoreError, or FingerprintMismatch or SettingError
        where the store was made otherwise than the service is set up."""
        tenant = self._open.get(name)
        if tenant is None:
            assert TENANT.fullmatch(name), "names of tenants come from the keys file"
            home = Home(self._folder / name, self._model, self._settings, read_only=False, create=True)
            home.watch = self._watch
            try:
                store = home.store() if home.has_store else None
                if store is not None:
                    home.index.embedder_name()  # one that does not fit is told before anything is stored
                engine = home.engine()
                self._joining.take_part(engine.runner)
                parts = Conversations(store), ChatTemplate(engine), TokenTexts(self._model.tokenizer)
            except BaseException:
                home.close()
                raise
            tenant = self._open[name] = Tenant(name, home, *parts, Memory(home), awaits=partial(self._writes_to, name))
        return tenant

    def misfits(self) -> Iterator[LivingKVError]:
        """Why stores that there are cannot be used as the service is set up: a setting, or another model. Each is
        opened for reading; what else is wrong with one is told when it is used."""
        for path in sorted(self._folder.iterdir()):
            if not (TENANT.fullmatch(path.name) and path.is_dir()):
                continue
            try:
                with closing(Home(path, self._model, self._settings, read_only=True, create=False)) as home:
                    home.index.embedder_name()
            except (SettingError, FingerprintMismatch) as error:
                yield error
            except LivingKVError:
                continue

    def opened(self) -> tuple[Tenant, ...]:
        """Those that were used since the start."""
        return tuple(self._open.values())

    def let_go(self) -> None:
        """Drop what device memory and RAM hold of sessions; they are restored from the stores when they go on."""
        for tenant in self._open.values():
            if tenant.is_idle:
                tenant.home.let_go()

    def let_go_others(self, name: str) -> None:
        """The same for all tenants but one: device memory does not grow with their number."""
        for tenant in self._open.values():
            if tenant.name != name and tenant.is_idle:
                tenant.home.let_go()

    def close(self) -> None:
        """Close all stores, and raise why one cannot be closed. What was acknowledged is durable already."""
        with ExitStack() as closing:
            for tenant in self._open.values():
                closing.callback(tenant.home.close)
            self._open = {}
