"""Where a turn begins: its prompt as tokens, and what is stored of it.

Knows the template and the stored conversations of one tenant; runs nothing through the model and changes nothing.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from livingkv.server.conversations import Match, stored_segments
from livingkv.server.limits import TurnLimits
from livingkv.server.recording import reply_segment
from livingkv.server.segments import Segment, joined, n_tokens
from livingkv.server.stepwise import in_steps
from livingkv.server.tenants import Tenant
from livingkv.server.turn_request import TurnRequest
from livingkv.store import TokenIds


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """Where a turn begins. segments: the prompt. goes_on: the stored session that it is appended to. likeness: the
    one that it begins like."""

    segments: list[Segment]
    goes_on: Match | None
    likeness: Match | None

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt."""
        return n_tokens(self.segments)

    def unread(self, n_read: int) -> TokenIds:
        """The prompt's token ids from `n_read` on."""
        return np.concatenate([segment.ids for segment in self.segments])[n_read:]


class Placing:
    """Finds where one turn begins."""

    def __init__(self, tenant: Tenant, asked: TurnRequest, limits: TurnLimits) -> None:
        self._tenant = tenant
        self._home = tenant.home
        self._asked = asked
        self._limits = limits

    def placed(self, undo: ExitStack) -> Generator[None, None, Place]:
        """Where the turn begins, once no other turn writes to its session. Raises InputError or ApiError."""
        said: list[Segment] | None = None
        follows = False
        while True:
            if said is None or follows is not self._follows_stored:
                follows = self._follows_stored
                said = yield from in_steps(self._next_rendered if follows else self._rendered)
                continue
            place = self._find(said, follows=follows)
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

    @property
    def _follows_stored(self) -> bool:
        """The messages follow what the session holds."""
        asked = self._asked
        row = self._tenant.known_session(asked.name) if asked.only_new and asked.name is not None else None
        return row is not None and row.n_tokens > 0

    def _rendered(self) -> list[Segment]:
        asked = self._asked
        return self._tenant.template.segments(asked.messages, asked.tools, count=self._limits.check_prompt)

    def _next_rendered(self) -> list[Segment]:
        return self._tenant.template.next_segments(self._asked.messages, count=self._limits.check_prompt)

    def _find(self, said: list[Segment], *, follows: bool) -> Place:
        tenant, asked, name = self._tenant, self._asked, self._asked.name
        row = tenant.known_session(name) if name is not None else None
        match: Match | None = None
        segments = said
        if follows and row is not None:
            segments = joined([*stored_segments(self._home.store(), row), *said])
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

    def _place(self, segments: list[Segment], goes_on: Match | None, likeness: Match | None) -> Place:
        """The prompt with the tokens that are stored of it: a reply has those that were generated."""
        if likeness is not None:
            n = likeness.common.n_segments
            kept = [self._stored(*pair) for pair in zip(segments[:n], likeness.stored[:n], strict=True)]
            segments = [*kept, *segments[n:]]
        return Place(segments, goes_on, likeness)

    def _stored(self, asked: Segment, stored: Segment) -> Segment:
        if np.array_equal(asked.ids, stored.ids) and (asked.sentences or not asked.text):
            return asked
        return reply_segment(self._home.engine().words, stored.ids.tolist())
