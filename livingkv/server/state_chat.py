"""Chat with a model whose state is more than keys and values: each prompt is read from its longest kept state on.

States are kept for each user where the reply begins and where it ends, in RAM and beside the tenant's store; after a
restart a conversation goes on from there. Nothing else is stored: no text, no session, no memory.
Knows snapshots and turns; knows no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from livingkv.errors import InputError
from livingkv.framing import Words
from livingkv.server.api_errors import ApiError
from livingkv.server.counters import Counters
from livingkv.server.events import Began, Done, Emit
from livingkv.server.limits import TurnLimits
from livingkv.server.options import ServerOptions
from livingkv.server.rendering import ChatTemplate
from livingkv.server.replying import Replying
from livingkv.server.stepwise import in_steps, pause
from livingkv.server.token_texts import TokenTexts
from livingkv.server.turn_request import TurnRequest
from livingkv.settings import STREAMED_BLOCK
from livingkv.snapshots import (
    SnapshotCounts,
    Snapshots,
    SnapshotSession,
    Turn,
    assistant_header,
    fresh_cache,
    header_start,
    snapshot_key,
)
from livingkv.state_model import StateModel

FOLDER = ".states"
"""Behind a tenant's name: where its states are, beside its store."""


class StateChat:
    """One model's chat, for all tenants. Used on the inference thread only."""

    def __init__(self, options: ServerOptions, model: StateModel, counters: Counters) -> None:
        self.model = model
        self.words = Words(model.tokenizer)
        self.limits = TurnLimits.of(options, model.native_context)
        self._options = options
        self._counters = counters
        self._texts = TokenTexts(model.tokenizer)
        self._template = ChatTemplate(self)
        self._header = assistant_header(model.tokenizer) if model.tokenizer.chat_template else ()
        self._fresh = fresh_cache(model.network)
        self._key = snapshot_key(model.network, model.digest, self._fresh)
        self._sessions: dict[str, SnapshotSession] = {}
        self._counted: dict[str, SnapshotCounts] = {}

    def warm_up(self) -> None:
        """Read a token; ready means that this works."""
        self._session("warm-up", None).step(self._fresh(), [min(self.model.stop_ids, default=0)])

    def turn(self, tenant: str, asked: TurnRequest, emit: Emit) -> Iterator[None]:
        """A turn, as steps: a block of the prompt or a token each. Closed before its end it leaves nothing but what was
        kept at the beginning of the reply. Raises InputError."""
        if asked.only_new:
            raise InputError("history", "stored", "this model's conversations are not stored: send all messages")
        messages, tools = asked.messages, asked.tools or None
        segments = yield from in_steps(lambda: self._template.segments(messages, tools, count=self.limits.check_prompt))
        ids = [token for segment in segments for token in segment.ids.tolist()]
        max_tokens = self.limits.room_for_reply(len(ids), asked.wish.max_tokens)
        session = self._session(tenant, self._folder(tenant))
        mark = header_start(ids, self._header) if asked.is_kept else None
        marks = () if mark is None else (mark,)
        read = partial(session.read, ids, marks=marks, user=asked.user, on_disk=asked.is_kept)
        try:
            turn = yield from in_steps(read)
        finally:
            self._count(tenant)
        emit(Began(len(ids), turn.n_cached, turn.n_cached, None))
        self._counters.cached_tokens.inc(turn.n_cached)
        self._counters.prefilled_tokens.inc(turn.n_prefilled)
        replying = Replying(self, self._texts, replace(asked.wish, max_tokens=max_tokens), emit)
        yield from in_steps(lambda: replying.follow(self._generated(turn, replying, max_tokens)))
        generated, finish, calls = replying.end()
        if asked.is_kept:
            turn.keep()
            self._count(tenant)
            self._counters.turns.inc()
        n_generated = len(generated.token_ids)
        emit(Done(finish, len(ids), turn.n_cached, n_generated, turn.n_prefilled, None, calls))

    def forget(self, tenant: str, user: str | None) -> int:
        """Forget the states of a user, or of all: they are gone from RAM and disk on return. How many files.

        Raises StoreError.
        """
        try:
            return self._session(tenant, self._folder(tenant)).snapshots.forget(user)
        finally:
            self._count(tenant)

    def counts(self) -> dict[str, SnapshotCounts]:
        """What states did, by tenant, as of the last turn of each. From any thread."""
        return dict(self._counted)

    def _count(self, tenant: str) -> None:
        if tenant in self._sessions:
            self._counted[tenant] = self._sessions[tenant].snapshots.counts()

    def _folder(self, tenant: str) -> Path:
        return self._options.folder / f"{tenant}{FOLDER}"

    def _generated(self, turn: Turn, replying: Replying, max_tokens: int) -> Iterator[int]:
        for token in turn.generate(max_tokens, stop_ids=self.model.stop_ids, choose=replying.sampler.pick):
            if token in self.model.stop_ids:
                return
            self._counters.generated_tokens.inc()
            yield token

    def _session(self, tenant: str, folder: Path | None) -> SnapshotSession:
        found = self._sessions.get(tenant)
        if found is None:
            snapshots = Snapshots(
                folder,
                self._key,
                self._fresh,
                ram_bytes=self._options.state_ram_bytes,
                disk_bytes=self._options.state_disk_bytes,
                device=self.model.network.device,
            )
            found = SnapshotSession(
                self.model.network, snapshots, self._fresh, piece_tokens=STREAMED_BLOCK, before_pass=pause
            )
            if folder is not None:
                self._sessions[tenant] = found
        return found


def no_memory(model: StateModel) -> ApiError:
    """What every route but chat completions answers."""
    told = f"only /v1/chat/completions is offered with this model, which keeps no memory: {model.reason}"
    return ApiError(400, told, param="model", code="no_memory")
