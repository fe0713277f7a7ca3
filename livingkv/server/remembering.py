"""What the memory routes do with a tenant's memory: recall, store, search, ask, show.

Knows a tenant's open parts, owners and limits; knows no HTTP. On the inference thread, in steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

from livingkv.describing import hit_of
from livingkv.errors import InputError, SentenceForgotten, SessionNotFound
from livingkv.extracting import extract
from livingkv.results import NOT_STORED, AddedMessages, Answer, Hit, Mode, StoredSentence, Timings
from livingkv.scope import ALL, Scope
from livingkv.server.api_errors import ApiError
from livingkv.server.claims import claimed
from livingkv.server.counters import Counters
from livingkv.server.limits import TurnLimits, tokens_at_least
from livingkv.server.memory_bodies import AskBody, SearchBody, TurnBody
from livingkv.server.memory_shapes import Json, shown_answer, shown_hits, shown_sentence, shown_stats, shown_turn, usage
from livingkv.server.owners import Owner
from livingkv.server.tenants import Tenant
from livingkv.store import IdempotencyKey

DEFAULT_SESSION = "default"
STORED_BEFORE = "it was stored before, and what was recalled then is not known any more: ask for it"
_EMPTY = "nothing is stored yet"


def scope_of(owner: Owner, session: str | None) -> Scope:
    """One session of a user, all of them, or, for everybody, all that there are. Raises InputError."""
    if session is not None:
        return Scope.of(owner.stored(session))
    return ALL if owner.user is None else Scope(folder=owner.user)


@dataclass(frozen=True, slots=True)
class Remembering:
    """One tenant's memory for one request. `limits` and `counters` are the service's."""

    tenant: Tenant
    owner: Owner
    limits: TurnLimits
    counters: Counters

    def turn(self, body: TurnBody, key: IdempotencyKey | None = None) -> Json:
        """Recall, then store the messages, all or none of them; what is stored under the key already is not stored
        again, and nothing is recalled for it. Raises ApiError or LivingKVError: nothing of them is stored then, but a
        session that was made for them may stay, empty."""
        started, name = perf_counter(), self.owner.stored(body.session or DEFAULT_SESSION)
        known = None if key is None else self.tenant.home.request(key)
        if known is not None:
            timings = {"recall": 0.0, "store": 0.0, "total": perf_counter() - started}
            session, ids, used = body.session or DEFAULT_SESSION, known.sentence_ids, usage(0, 0, 0)
            return shown_turn(session, ids, None, [], STORED_BEFORE, used, timings)
        messages = [message.model_dump() for message in body.messages]
        with claimed(self.tenant, name):
            row = self.tenant.home.known_session(name, kv=body.kv)
            is_new = row is None
            self._check_room(body, keeps_kv=body.kv if row is None else not row.text_only)
            if is_new:
                self.limits.check_sessions(self.tenant)
            answer, hits = self._recalled(body, name, is_new=is_new)
            recalled = perf_counter()
            if is_new and not body.kv:
                self.tenant.home.session_for_writing(name, kv=False)
            added = self.tenant.memory.add_messages(messages, session=name, once=key)
            stored = perf_counter()
        if answer is not None and answer.confident and answer.mode == "extract" and hits:
            self.tenant.home.note_recall([hits[0].sentence_id])
        self._count_added(added)
        timings = {"recall": recalled - started, "store": stored - recalled, "total": perf_counter() - started}
        used = usage(
            added.prefilled_tokens + (answer.prefilled_tokens if answer is not None else 0),
            added.reused_tokens + (answer.reused_tokens if answer is not None else 0),
            answer.generated_tokens if answer is not None else 0,
        )
        reason = "there is nothing to recall for" if answer is None else answer.reason
        return shown_turn(body.session or DEFAULT_SESSION, added.sentence_ids, answer, hits, reason, used, timings)

    def _check_room(self, body: TurnBody, *, keeps_kv: bool) -> None:
        """Raise ApiError where the messages, and as far as it is known the KV of them, are more than may be stored."""
        n_bytes = sum(len(message.content.encode()) for message in body.messages)
        n_kv = self.tenant.kv_bytes(tokens_at_least(n_bytes)) if keeps_kv else 0
        self.limits.check_bytes(self.tenant, n_bytes + n_kv)

    def _recalled(self, body: TurnBody, name: str, *, is_new: bool) -> tuple[Answer | None, list[Hit]]:
        """What is known before the messages are stored; None where nothing is asked."""
        asked = body.asked
        if asked is None:
            return None, []
        if not self.tenant.home.has_store or (body.recall == "session" and is_new):
            return nothing_stored(), []
        scope = Scope.of(name) if body.recall == "session" else scope_of(self.owner, None)
        if body.mode == "extract":
            found = extract(self.tenant.home, asked, scope, limit=body.k)
            return found.answer, [hit_of(hit) for hit in found.hits]
        hits = self.tenant.memory.search(asked, session=scope, limit=body.k)
        return self._answer(asked, scope, body.mode, body.max_tokens), hits

    def search(self, body: SearchBody) -> Json:
        """Hits, best first. Raises LivingKVError."""
        scope = scope_of(self.owner, body.session)
        if self._is_empty(scope):
            return {"hits": []}
        hits = self.tenant.memory.search(body.query, session=scope, limit=body.k, source=body.source, role=body.role)
        return {"hits": shown_hits(hits)}

    def ask(self, body: AskBody, tell: Callable[[str], None] | None = None) -> Json:
        """An answer; its text goes to `tell` as it is made, after an empty one that says that the question can be
        asked. Raises LivingKVError."""
        scope = scope_of(self.owner, body.session)
        is_empty = self._is_empty(scope)
        if not is_empty:
            scope.ids(self.tenant.home.store())
        if tell is not None:
            tell("")
        if not is_empty:
            return shown_answer(self._answer(body.query, scope, body.mode, body.max_tokens, body.stops, tell))
        answer = nothing_stored()
        if tell is not None:
            tell(answer.answer)
        return shown_answer(answer)

    def sentences(
        self, session: str | None, source: str | None, role: str | None, after: int | None, limit: int
    ) -> Json:
        """A page of sentences, oldest first. Raises LivingKVError."""
        scope = scope_of(self.owner, session)
        if self._is_empty(scope):
            return {"sentences": [], "next_cursor": None}
        kind = next((each for each in ("document", "user", "assistant") if each == role), None)
        found = self.tenant.memory.sentences(session=scope, source=source, role=kind, after=after, limit=limit + 1)
        more = len(found) > limit
        cursor = str(found[limit - 1].sentence_id) if more else None
        return {"sentences": [shown_sentence(each) for each in found[:limit]], "next_cursor": cursor}

    def sentence(self, sentence_id: int, n_around: int = 2) -> Json:
        """A sentence between its neighbours. Raises ApiError, 404, for one that is not there or not theirs."""
        own, before, after = self.around(sentence_id, n_around)
        return shown_sentence(own) | {
            "before": [each.text for each in before],
            "after": [each.text for each in after],
        }

    def around(
        self, sentence_id: int, n_around: int = 0
    ) -> tuple[StoredSentence, list[StoredSentence], list[StoredSentence]]:
        """A sentence, what stands before it and behind it. Raises ApiError, 404, or KeyMissing."""
        self.require_own(sentence_id)
        try:
            found = self.tenant.memory.around(sentence_id, n_around, n_around)
        except SentenceForgotten as error:
            raise no_such_sentence() from error
        at = next(index for index, each in enumerate(found) if each.sentence_id == sentence_id)
        return found[at], found[:at], found[at + 1 :]

    def require_own(self, sentence_id: int) -> str:
        """The stored name of a sentence's session. Raises ApiError, 404, for one that is not there or not theirs."""
        if not self.tenant.home.has_store:
            raise no_such_sentence()
        try:
            name = self.tenant.home.store().session_of(sentence_id).name
        except (InputError, SessionNotFound) as error:
            raise no_such_sentence() from error
        if not self.owner.owns(name):
            raise no_such_sentence()
        return name

    def stats(self, version: str) -> Json:
        """Counts and bytes of the tenant's store, and what its tiers did."""
        home = self.tenant.home
        stored = self.tenant.memory.stats() if home.has_store else None
        return shown_stats(stored, home.tier_totals(), home.device_bytes, home.engine().model, version)

    def _is_empty(self, scope: Scope) -> bool:
        """True where there is no store yet. Raises SessionNotFound where a session of it is named."""
        if not self.tenant.home.has_store and scope.names is not None:
            raise SessionNotFound("there is no store yet")
        return not self.tenant.home.has_store

    def _answer(
        self,
        question: str,
        scope: Scope,
        mode: Mode,
        max_tokens: int,
        stop: tuple[str, ...] = (),
        tell: Callable[[str], None] | None = None,
    ) -> Answer:
        answer = self.tenant.memory.ask(
            question, session=scope, mode=mode, max_tokens=max_tokens, stop=stop, on_text=tell
        )
        self.counters.prefilled_tokens.inc(answer.prefilled_tokens)
        self.counters.cached_tokens.inc(answer.reused_tokens)
        self.counters.generated_tokens.inc(answer.generated_tokens)
        return answer

    def _count_added(self, added: AddedMessages) -> None:
        self.counters.prefilled_tokens.inc(added.prefilled_tokens)
        self.counters.cached_tokens.inc(added.reused_tokens)
        self.counters.turns.inc()


def nothing_stored() -> Answer:
    """The answer where there is nothing to ask."""
    return Answer(NOT_STORED, "extract", False, 0.0, (), 0, 0, 0, Timings(), _EMPTY)


def no_such_sentence() -> ApiError:
    """What is not there, or belongs to somebody else."""
    return ApiError(404, "there is no such sentence", code="memory_not_found")
