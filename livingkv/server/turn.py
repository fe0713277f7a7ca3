"""One turn of a conversation, as steps: find what is stored of it, read the rest, generate, commit.

Knows the order of the steps; pauses after each block and each token, so that turns can take turns and be given up.
Nothing is durable before the reply is whole; then all of the turn is, in one commit, before the client is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from secrets import token_hex
from time import perf_counter

import torch

from livingkv.generation import Generated
from livingkv.hot_window import HotWindow
from livingkv.server.branching import Branch, branch, empty_branch
from livingkv.server.counters import Counters
from livingkv.server.events import Began, Done, Emit
from livingkv.server.limits import TurnLimits
from livingkv.server.placing import Place, Placing
from livingkv.server.reading import Reading
from livingkv.server.recalling import Recalling
from livingkv.server.recording import appends_of, kept_of, reply_segment
from livingkv.server.replying import Replying
from livingkv.server.segments import Segment, joined
from livingkv.server.tenants import Tenant
from livingkv.server.turn_request import TurnRequest
from livingkv.store import SessionRow


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
            place = yield from Placing(self._tenant, self._asked, self._limits).placed(undo)
            max_tokens = self._limits.room_for_reply(place.n_prompt, self._asked.wish.max_tokens)
            if self._asked.is_kept:
                self._check_room(place)
                self._home.writable_store()
            window = self._window(place, undo)
            hot, n_cached = window.hot, window.hot.n_tokens
            name = place.goes_on.session.name if place.goes_on else self._new_name()
            self._emit(Began(place.n_prompt, n_cached, hot.n_attended, name))
            self._counters.cached_tokens.inc(n_cached)
            beside = yield from Recalling(self._tenant, self._asked, self._counters).steps(place, max_tokens)
            reading = Reading(self._home.engine(), self._home.settings, self._counters)
            wish = replace(self._asked.wish, max_tokens=max_tokens)
            replying = Replying(self._home.engine(), self._tenant.texts, wish, self._emit)
            if beside.words is not None:  # told before the prompt is read
                replying.follow(beside.words.token_ids)
            logits = yield from reading.read(place.unread(n_cached), hot)
            if beside.words is None:
                yield from reading.reply(logits, hot, replying, max_tokens)
            generated, finish, calls = replying.end()
            if self._asked.is_kept:
                assert name is not None
                reply = self._settle(hot, place.n_prompt, generated)
                if beside.words is not None:
                    reading.took(len(reply.ids))
                self._commit(place, name, window, reply)
            if beside.sentence_ids:
                self._home.note_recall(beside.sentence_ids)
            n_read, n_generated = reading.n_prefilled + beside.n_prefilled, len(generated.token_ids)
            self._emit(Done(finish, place.n_prompt, n_cached, n_generated, n_read, name, calls, beside))
        if self._asked.is_kept:
            self._home.index.feed_if_possible()

    def _check_room(self, place: Place) -> None:
        """Raise ApiError where the tenant may not store what of the prompt is not stored yet."""
        n_stored = 0 if place.goes_on is None else place.goes_on.session.n_tokens
        self._limits.check_bytes(self._tenant, self._tenant.kv_bytes(place.n_prompt - n_stored))
        if place.goes_on is None:
            self._limits.check_sessions(self._tenant)

    def _new_name(self) -> str | None:
        if not self._asked.is_kept:
            return None
        made = f"chat-{token_hex(6)}"
        return self._asked.name or (f"{self._asked.user}/{made}" if self._asked.user else made)

    def _window(self, place: Place, undo: ExitStack) -> Branch:
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

    def _commit(self, place: Place, name: str, branch: Branch, reply: Segment) -> None:
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
