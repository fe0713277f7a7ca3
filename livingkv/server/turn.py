"""One turn of a conversation, as steps: find what is stored of it, read the rest, generate, commit.

Knows the order of the steps; pauses after each block and each token, so that turns can take turns and be given up.
Nothing is durable before the reply is whole; then all of the turn is, in one commit, before the client is told.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from secrets import token_hex
from time import perf_counter
from typing import Any

import numpy as np
import torch

from livingkv.generation import Generated
from livingkv.hot_window import HotWindow
from livingkv.server.branching import Branch, branch, empty_branch
from livingkv.server.conversations import Match, stored_segments
from livingkv.server.counters import Counters
from livingkv.server.events import Began, Done, Emit
from livingkv.server.limits import TurnLimits
from livingkv.server.reading import Reading
from livingkv.server.recording import appends_of, kept_of, reply_segment
from livingkv.server.rendering import Message
from livingkv.server.replying import Replying, Wish
from livingkv.server.segments import Segment, joined, n_tokens
from livingkv.server.tenants import Tenant
from livingkv.store import SessionRow, TokenIds


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for a reply. user: the scope within the tenant, "" for none. session: its name in that scope, None
    to recognise the conversation by what was said. is_kept: the turn is stored. only_new: the messages follow what the
    session holds; else they are the whole conversation."""

    messages: tuple[Message, ...]
    wish: Wish
    tools: tuple[Any, ...] = ()
    user: str = ""
    session: str | None = None
    is_kept: bool = True
    only_new: bool = False

    @property
    def name(self) -> str | None:
        """The session's name in the store."""
        return None if self.session is None else f"{self.user}/{self.session}" if self.user else self.session


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """Where a turn begins. segments: the prompt. goes_on: the stored session that it is appended to. likeness: the
    one that it begins like."""

    segments: list[Segment]
    goes_on: Match | None
    likeness: Match | None

    @property
    def n_prompt(self) -> int:
        return n_tokens(self.segments)

    def unread(self, n_read: int) -> TokenIds:
        """The prompt's token ids from `n_read` on."""
        return np.concatenate([segment.ids for segment in self.segments])[n_read:]


class Turn:
    """One turn of one tenant. `steps` runs it once."""

    def __init__(self, tenant: Tenant, asked: TurnRequest, limits: TurnLimits, counters: Counters, emit: Emit) -> None:
        self._tenant = tenant
        self._home = tenant.home
        self._asked = asked
        self._limits = limits
        self._counters = counters
        self._emit = emit

    def steps(self) -> Iterator[None]:
        """Run the turn, pausing often. Closed before its end it leaves the store as it was."""
        with ExitStack() as undo:
            yield from self._tenant.gate.enter(undo)
            if self._home.has_store:
                yield from self._tenant.conversations.fill(self._home.store())
            if self._asked.is_kept:
                self._limits.check_bytes(self._tenant)
            place = yield from self._placed(undo)
            max_tokens = self._limits.room_for_reply(place.n_prompt, self._asked.wish.max_tokens)
            if self._asked.is_kept:
                if place.goes_on is None:
                    self._limits.check_sessions(self._tenant)
                self._home.writable_store()
            window = self._window(place, undo)
            hot, n_cached = window.hot, window.hot.n_tokens
            name = place.goes_on.session.name if place.goes_on else self._new_name()
            self._emit(Began(place.n_prompt, n_cached, hot.n_attended, name))
            self._counters.cached_tokens.inc(n_cached)
            reading = Reading(self._home.engine(), self._home.settings, self._counters)
            logits = yield from reading.read(place.unread(n_cached), hot)
            wish = replace(self._asked.wish, max_tokens=max_tokens)
            replying = Replying(self._home.engine(), self._tenant.texts, wish, self._emit)
            yield from replying.follow(reading.generate(logits, hot, replying.sampler, max_tokens))
            generated, finish, calls = replying.end()
            if self._asked.is_kept:
                assert name is not None
                self._commit(place, name, window, self._settle(hot, place.n_prompt, generated))
            n_generated = len(generated.token_ids)
            self._emit(Done(finish, place.n_prompt, n_cached, n_generated, reading.n_prefilled, name, calls))
        if self._asked.is_kept:
            self._home.index.feed_if_possible()

    def _new_name(self) -> str | None:
        if not self._asked.is_kept:
            return None
        made = f"chat-{token_hex(6)}"
        return self._asked.name or (f"{self._asked.user}/{made}" if self._asked.user else made)

    def _placed(self, undo: ExitStack) -> Generator[None, None, _Place]:
        """Where the turn begins, once no other turn writes to its session."""
        while True:
            place = self._find()
            name = place.goes_on.session.name if place.goes_on else self._asked.name
            if name is None or not self._asked.is_kept:
                return place
            if name not in self._tenant.busy:
                self._tenant.busy.add(name)
                undo.callback(self._tenant.busy.discard, name)
                return place
            while name in self._tenant.busy:
                self._tenant.require_free(name)
                yield

    def _find(self) -> _Place:
        tenant, asked, name = self._tenant, self._asked, self._asked.name
        row = tenant.known_session(name) if name is not None else None
        match: Match | None = None
        if asked.only_new and row is not None and row.n_tokens:
            stored = stored_segments(self._home.store(), row)
            segments = joined([*stored, *tenant.template.next_segments(asked.messages)])
        else:
            segments = tenant.template.segments(asked.messages, asked.tools)
        if row is not None:
            match = tenant.conversations.named(self._home.store(), row, segments)
        if (match is None or not match.is_whole) and self._home.has_store:
            other = tenant.conversations.longest(self._home.store(), asked.user, segments)
            if match is None and other is not None and name is None:
                match = other
            elif other is not None and (match is None or other.common.n_tokens > match.common.n_tokens):
                return self._place(segments, None, other)
        goes_on = match if match is not None and self._may_go_on(match, segments) else None
        return self._place(segments, goes_on, match)

    def _may_go_on(self, match: Match, segments: Sequence[Segment]) -> bool:
        """The stored session is the beginning of the prompt, and ends where a piece ends or within the template."""
        common = match.common
        if not self._asked.is_kept or not match.is_whole or common.n_segments == len(segments):
            return False
        return common.n_more == 0 or segments[common.n_segments].role == "template"

    def _place(self, segments: list[Segment], goes_on: Match | None, likeness: Match | None) -> _Place:
        """The prompt with the tokens that are stored of it: a reply has those that were generated."""
        if likeness is not None:
            n = likeness.common.n_segments
            kept = [self._stored(*pair) for pair in zip(segments[:n], likeness.stored[:n], strict=True)]
            segments = [*kept, *segments[n:]]
        return _Place(segments, goes_on, likeness)

    def _stored(self, asked: Segment, stored: Segment) -> Segment:
        if np.array_equal(asked.ids, stored.ids) and (asked.sentences or not asked.text):
            return asked
        return reply_segment(self._home.engine().words, stored.ids.tolist())

    def _window(self, place: _Place, undo: ExitStack) -> Branch:
        if place.goes_on is not None:
            return Branch(undo.enter_context(self._home.hot_window(place.goes_on.session)), ())
        if place.likeness is not None:
            common = min(place.likeness.common.n_tokens, place.n_prompt - 1)
            started = perf_counter()
            made = branch(self._home, place.likeness.session, common)
            self._home.watch.restored(perf_counter() - started)
            return made
        return empty_branch(self._home)

    def _settle(self, hot: HotWindow, n_prompt: int, generated: Generated) -> Segment:
        """Make the hot window hold the reply as it was told, and the segment that it is. What a stop string cut off is
        taken back where it is not sealed yet; else it stays, having been generated."""
        engine, ids = self._home.engine(), list(generated.token_ids)
        n_kept, more = kept_of(engine.words, generated)
        if n_prompt + n_kept >= hot.n_sealed:
            hot.rewind(min(hot.n_tokens, n_prompt + n_kept))
            ids = [*ids[:n_kept], *more]
        rest = ids[hot.n_tokens - n_prompt :]
        if rest:
            engine.runner.read(torch.tensor(rest, device=engine.model.device), hot)
        return reply_segment(engine.words, ids)

    def _commit(self, place: _Place, name: str, branch: Branch, reply: Segment) -> None:
        store, hot = self._home.store(), branch.hot
        if place.goes_on is not None:
            row, common = place.goes_on.session, place.goes_on.common
            segments = place.segments[common.n_segments :]
            if common.n_more:
                segments = [segments[0].after(common.n_more), *segments[1:]]
        else:
            row, segments = self._made(name), place.segments
        new = joined([*segments, reply])
        pages = (*branch.pages, *hot.take_sealed())
        store.append_all(list(appends_of(row, new, pages, hot.tail())))
        row = store.session(row.session_id)
        if place.goes_on is None:
            self._home.adopt_hot_window(row, hot)
        self._tenant.conversations.note(store, row)
        self._counters.turns.inc()

    def _made(self, name: str) -> SessionRow:
        """A new session of this name; one that has it goes on under another one."""
        store, old = self._home.store(), self._tenant.known_session(name)
        if old is not None and old.n_tokens == 0:
            return old
        if old is not None:
            self._tenant.conversations.note(store, store.rename(old.session_id, self._tenant.free_name(name)))
        return store.create_session(name)
