"""Memory beside a turn: what the turn does not attend is asked of what is stored of the same user.

Knows a tenant's store and where a turn begins; changes nothing. What is recalled becomes the assistant's words, never a
system message and never another user's.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

from livingkv.asking import Asking
from livingkv.conversation import Beside, Held, Searched, recall_beside
from livingkv.hot_window import window_start
from livingkv.results import Recall
from livingkv.sampling import Sampling
from livingkv.scope import Scope
from livingkv.server.counters import Counters
from livingkv.server.placing import Place
from livingkv.server.recollection import Recollection
from livingkv.server.segments import n_tokens
from livingkv.server.stepwise import in_steps
from livingkv.server.tenants import Tenant
from livingkv.server.turn_request import TurnRequest
from livingkv.store import SessionRow

NOT_ASKED = "memory adds nothing: the message is no question, or the window holds what is nearest to it"
_TOO_LONG = "memory was not asked: the message is longer than the window"


class Recalling:
    """Asks memory for one turn. `steps` does it once."""

    def __init__(self, tenant: Tenant, asked: TurnRequest, counters: Counters) -> None:
        self._tenant = tenant
        self._home = tenant.home
        self._asked = asked
        self._counters = counters

    def steps(self, place: Place, max_tokens: int) -> Generator[None, None, Recollection]:
        """What memory says, pausing often. Raises ModelError or StoreError."""
        recall, last = self._asked.recall, self._asked.messages[-1]
        if recall == "off" or not self._home.has_store or last["role"] != "user" or not last["content"].strip():
            return Recollection(recall, reason=self._asked.no_recall or NOT_ASKED)
        message = next(segment for segment in reversed(place.segments) if segment.role == "user")
        if len(message.ids) > self._home.settings.window_tokens:
            return Recollection(recall, reason=_TOO_LONG)
        return (yield from in_steps(lambda: self._asked_of_memory(recall, place, message.text, max_tokens)))

    def _asked_of_memory(self, recall: Recall, place: Place, message: str, max_tokens: int) -> Recollection:
        held = Held(self._own(place), window_start(place.n_prompt, self._home.settings.conversation))
        searched = self._searched(recall, place, held.session)
        if not searched.rows:
            return Recollection(recall, reason=NOT_ASKED)
        asking = Asking(self._home, message)
        try:
            said = recall_beside(asking, message, held, searched, max_tokens, Sampling(), self._asked.wish.stop)
        finally:
            self._counters.prefilled_tokens.inc(asking.n_prefilled())
            self._counters.generated_tokens.inc(asking.n_generated)
        return self._recollection(recall, asking, said)

    def _recollection(self, recall: Recall, asking: Asking, said: Beside) -> Recollection:
        n_reused = said.answer.reused_tokens if said.answer is not None else 0
        self._counters.cached_tokens.inc(n_reused)
        return Recollection(
            recall,
            said.answer,
            said.words,
            NOT_ASKED if said.answer is None else said.answer.reason,
            asking.n_prefilled(),
            n_reused,
            asking.n_generated,
            tuple(asking.recalled) if said.words is not None else (),
        )

    def _own(self, place: Place) -> SessionRow | None:
        """The stored session that the prompt begins like, as far as both say the same."""
        if place.goes_on is not None:
            return place.goes_on.session
        like = place.likeness
        if like is None:
            return None
        n_common = n_tokens(like.stored[: like.common.n_segments])
        return replace(like.session, n_tokens=n_common) if n_common else None

    def _searched(self, recall: Recall, place: Place, own: SessionRow | None) -> Searched:
        """The sessions that may answer: of this user, without other replies to the very same prompt."""
        if recall == "session":
            return Searched(() if own is None else (own,), None if own is None else own.name)
        user, found = self._asked.user, list[SessionRow]()
        same = self._tenant.conversations.with_beginning(user, place.segments)
        for row in self._home.store().sessions(user):
            if own is not None and row.session_id == own.session_id:
                found.append(own if row.encrypted or row.session_id in same else row)
            elif not row.encrypted and row.session_id not in same:
                found.append(row)
        return Searched(tuple(found), Scope(names=frozenset(row.name for row in found)))
