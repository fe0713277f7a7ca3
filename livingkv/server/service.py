"""A service: one model, the tenants' stores, and the thread that works on them; requests as streams of events.

Knows how the parts fit together, and errors as clients are told them (ApiError, with its status); knows no route and no
request of HTTP. What it offers to routes may be awaited on an event loop, which is never blocked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from livingkv.errors import LivingKVError
from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.server.api_errors import ApiError, api_error, internal, without_values
from livingkv.server.census import Census
from livingkv.server.completing import Completion, CompletionRequest
from livingkv.server.counters import Counters
from livingkv.server.embedding import Embedded
from livingkv.server.events import Done, Emit, Event, Failed, FirstText, Wrote
from livingkv.server.experts_census import ExpertsCensus, Streaming, streaming_of
from livingkv.server.idempotency import Idempotency
from livingkv.server.inference_thread import InferenceThread, Phase
from livingkv.server.job_work import JobWork
from livingkv.server.jobs import Jobs
from livingkv.server.joining import Joining
from livingkv.server.limits import TurnLimits
from livingkv.server.model_job import Whose
from livingkv.server.options import ServerOptions
from livingkv.server.parts import Parts, load_for_service
from livingkv.server.state_chat import StateChat, no_memory
from livingkv.server.states_census import StatesCensus
from livingkv.server.stepwise import in_steps
from livingkv.server.tenants import Tenant
from livingkv.server.turn import Turn
from livingkv.server.turn_request import TurnRequest
from livingkv.state_model import StateModel
from livingkv.store.disk import errors_named
from livingkv.store.writer_lock import WriterLock

LOG = logging.getLogger("livingkv.server")
Work = Callable[[Emit], Iterator[None]]
T = TypeVar("T")
_LOCK = ".lock"
"""In the folder of the stores, where no tenant has such a name: one service at a time, for it removes and reads again
what another may have on its way."""
_CENSUS_S = 0.05
"""How long a scrape waits for what is held to be counted anew."""


@dataclass(frozen=True, slots=True)
class Made(Generic[T]):
    """What a call returned."""

    value: T


class Service:
    """Made by whoever serves it; `start` and `stop` once each."""

    def __init__(self, options: ServerOptions, model: ModelChoice | LoadedModel | StateModel) -> None:
        self.options = options
        self.counters = Counters()
        self.started_s = int(time.time())
        self.one_plan = threading.Lock()  # held while a plan is made
        self._model = model
        self._parts: Parts | None = None
        self._states: StateChat | None = None
        self._streaming: Streaming | None = None
        self._lock: WriterLock | None = None
        self._census = Census(options.folder, lambda: () if self._parts is None else self._parts.tenants.opened())
        self.counters.registry.register(self._census)
        self.counters.registry.register(ExpertsCensus(lambda: self._streaming))
        self.counters.registry.register(StatesCensus(lambda: {} if self._states is None else self._states.counts()))
        self.counters.ready.set_function(lambda: self.phase is Phase.READY)
        self.once = Idempotency()
        self.work = JobWork(
            options.folder, Jobs(self._in_background, self._told), self.enter, lambda: self._ready().limits
        )
        self._joining = Joining(options.max_batch, self.counters.batch_rows.observe)
        self._thread = InferenceThread(
            self._prepare,
            self._idle,
            self._finish,
            self.counters,
            self._joining,
            between=self._census.step,
            ready=self._resume,
            n_waiting=options.n_waiting,
            n_side_by_side=options.n_side_by_side,
            idle_s=options.idle_s,
        )

    def start(self) -> None:
        """Begin to load the model; returns at once."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Cut what is going on and close the stores. False where a step takes longer than that."""
        return self._thread.stop(timeout_s)

    @property
    def phase(self) -> Phase:
        """How far it is."""
        return self._thread.phase

    @property
    def error(self) -> Exception | None:
        """Why it failed."""
        return self._thread.error

    @property
    def model_name(self) -> str:
        """What clients call the model. Raises ApiError while it is not loaded."""
        return self._talking().model.name

    @property
    def model_config(self) -> Any:
        """The Hugging Face config of the model. Raises ApiError while it is not loaded."""
        model = self._talking().model
        return (model.streamed if isinstance(model, StateModel) else model).network.config

    @property
    def limits(self) -> TurnLimits:
        """What a turn may take. Raises ApiError while the model is not loaded."""
        return self._talking().limits

    async def exposition(self) -> bytes:
        """What was counted, in Prometheus' text format: within a moment, also while a step takes long."""
        if self._census.ask():
            self._thread.wake()
        return await asyncio.to_thread(self._exposed)

    def _exposed(self) -> bytes:
        if self.phase is Phase.READY:
            self._census.wait(_CENSUS_S)
        return self.counters.exposition()

    def _prepare(self) -> None:
        with errors_named(self.options.folder):
            self.options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = WriterLock(self.options.folder, _LOCK)
        model = load_for_service(self._model) if isinstance(self._model, ModelChoice) else self._model
        if isinstance(model, StateModel):
            self._streaming = streaming_of(model.streamed)
            states = StateChat(self.options, model, self.counters)
            states.warm_up()
            self._states = states
            return
        parts = Parts(self.options, model, self.counters, self.work.jobs, self._joining)
        parts.warm_up()
        self._streaming = None if model.experts is None else streaming_of(model.experts)
        for problem in parts.tenants.misfits():
            LOG.error("requests to a store will be refused: %s", problem)
        self._parts = parts

    def _idle(self) -> None:
        if self._parts is not None:
            self._parts.tenants.let_go()

    def _finish(self) -> None:
        with contextlib.ExitStack() as closing:
            if self._lock is not None:
                closing.callback(self._lock.release)
            if self._states is not None and isinstance(self._model, ModelChoice):
                closing.callback(self._states.model.close)
            if self._parts is not None:
                if isinstance(self._model, ModelChoice):
                    closing.callback(self._parts.model.close)
                self._parts.tenants.close()

    def _resume(self) -> None:
        if self._states is None:
            self.work.resume()

    def _ready(self) -> Parts:
        if self._states is not None:
            raise no_memory(self._states.model)
        if self._parts is None:
            raise self._thread.refusal()
        return self._parts

    def _talking(self) -> Parts | StateChat:
        return self._states or self._ready()

    def turn(self, tenant: str, asked: TurnRequest) -> AsyncGenerator[Event, None]:
        """A turn of a conversation. Closing the iterator gives it up."""
        states, whose = self._states, Whose(tenant, asked.user or asked.session or "")
        if states is not None:
            return self._events(lambda emit: states.turn(tenant, asked, emit), whose)
        parts = self._ready()

        def work(emit: Emit) -> Iterator[None]:
            parts.tenants.let_go_others(tenant)
            return Turn(parts.tenants.open_one(tenant), asked, parts.limits, self.counters, emit).steps()

        return self._events(work, whose)

    async def forget_states(self, tenant: str, user: str | None) -> int:
        """Forget the states that a model without plain KV left of a user's conversations, or of all; how many files.

        Raises ApiError, also where the model keeps none.
        """
        states, n_files = self._states, list[int]()
        if states is None:
            self._ready()
            raise ApiError(404, "this model keeps no states: conversations are sessions", code="no_states")

        def work(emit: Emit) -> Iterator[None]:
            n_files.append(states.forget(tenant, user))
            yield
            emit(Done("stop", 0, 0, 0, 0, None))

        async with contextlib.aclosing(self._events(work, Whose(tenant, user or ""))) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise event.error
        return n_files[0]

    def complete(self, tenant: str, asked: CompletionRequest) -> AsyncGenerator[Event, None]:
        """Text that goes on from a prompt. Nothing is stored."""
        parts = self._ready()

        def work(emit: Emit) -> Iterator[None]:
            return Completion(
                parts.engine, parts.texts, asked, parts.limits, parts.settings, self.counters, emit
            ).steps()

        return self._events(work, Whose(tenant))

    async def embed(self, tenant: str, inputs: tuple[str | tuple[int, ...], ...]) -> Embedded:
        """Vectors of texts. Raises ApiError."""
        parts = self._ready()
        found: list[Embedded] = []

        def work(emit: Emit) -> Iterator[None]:
            for done in parts.embedding.steps(inputs):
                found.extend([done] if done is not None else [])
                yield
            emit(Done("stop", 0, 0, 0, 0, None))

        async for event in self._events(work, Whose(tenant)):
            if isinstance(event, Failed):
                raise event.error
        return found[0]

    async def call(self, tenant: str, work: Callable[[Tenant], T], *, user: str = "", alone: bool = False) -> T:
        """What `work` returns, called with the tenant's open parts on the inference thread; it pauses between forward
        passes, where others get a step. alone: nobody else uses that tenant's memory meanwhile, as everything that
        drops or moves what is stored needs. Given up when the awaiting task is cancelled. user: whose turn it is among
        others of the tenant. Raises ApiError."""
        events, made = self.follow(tenant, lambda parts, _: work(parts), user=user, alone=alone), list[T]()
        async with contextlib.aclosing(events):
            async for each in events:
                if isinstance(each, Made):
                    made.append(each.value)
        return made[0]

    async def follow(
        self, tenant: str, work: Callable[[Tenant, Callable[[str], None]], T], *, user: str = "", alone: bool = False
    ) -> AsyncGenerator[str | Made[T], None]:
        """As `call`, and the texts that `work` gives to its second argument, as they come; last, `Made`."""
        self._ready()
        made = list[T]()

        def steps(emit: Emit) -> Iterator[None]:
            with contextlib.ExitStack() as undo:
                one = yield from self.enter(tenant, undo, alone=alone)
                made.append((yield from in_steps(lambda: work(one, lambda text: emit(Wrote(text))))))
            emit(Done("stop", 0, 0, 0, 0, None))

        async with contextlib.aclosing(self._events(steps, Whose(tenant, user))) as events:
            async for event in events:
                if isinstance(event, Failed):
                    raise event.error
                if isinstance(event, Wrote):
                    yield event.text
        yield Made(made[0])

    def enter(self, tenant: str, undo: contextlib.ExitStack, *, alone: bool = False) -> Generator[None, None, Tenant]:
        """The tenant's open parts, once one may come in; out again when `undo` is unwound. Whoever was alone may have
        changed which conversations there are, and forgotten what kept answers quote and ended jobs name. On the
        inference thread."""
        tenants = self._ready().tenants
        tenants.let_go_others(tenant)
        one = tenants.open_one(tenant)
        yield from one.gate.enter(undo, alone=alone)
        if alone:
            undo.callback(one.renew_conversations)
            undo.callback(self.once.forgotten, tenant)
            undo.callback(self.work.jobs.forget_names, tenant, one.holds)
        return one

    def _in_background(self, make: Callable[[], Iterator[None]]) -> None:
        """Have steps made that nobody waits for; where the service stops before they end, nobody is told."""
        self._thread.submit(make, lambda error: None, background=True)

    async def _events(self, work: Work, whose: Whose) -> AsyncGenerator[Event, None]:
        """What a job tells, up to Done or Failed. Raises ApiError where it is not taken up."""
        loop, events = asyncio.get_running_loop(), asyncio.Queue[Event]()
        first_text = FirstText(self.counters.first_token.observe)

        def emit(event: Event) -> None:
            first_text.note(event)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody listens any more
                loop.call_soon_threadsafe(events.put_nowait, event)

        job = self._thread.submit(lambda: work(emit), lambda error: emit(Failed(self._told(error))), whose)
        try:
            while True:
                event = await events.get()
                yield event
                if isinstance(event, (Done, Failed)):
                    return
        finally:
            job.cancel()

    def _told(self, error: Exception) -> ApiError:
        """What the client is told of an error; what it did not cause is counted and logged, without any content."""
        if isinstance(error, ApiError):
            return error
        told = api_error(error) if isinstance(error, LivingKVError) else internal()
        if told.status == 500:
            self.counters.failed.inc()
            LOG.error("a request failed: %s", type(error).__name__, exc_info=without_values(error))
        return told
