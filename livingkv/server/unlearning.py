"""What the memory routes change in what is stored: sentences replaced, and forgetting, which can be counted before.

Knows a tenant's open parts and owners; knows no HTTP. On the inference thread, alone in the tenant's memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from livingkv.conversation_mark import is_conversation
from livingkv.errors import SessionNotFound
from livingkv.results import Forgotten
from livingkv.scope import Scope
from livingkv.server.api_errors import ApiError
from livingkv.server.job_results import receipt_json
from livingkv.server.memory_bodies import ForgetBody
from livingkv.server.memory_shapes import Json, shown_counts, shown_sentence
from livingkv.server.remembering import Remembering, scope_of
from livingkv.server.tenants import Tenant
from livingkv.store import SessionRow


@dataclass(frozen=True, slots=True)
class Unlearning:
    """Changes of one tenant's memory for one request."""

    remembering: Remembering

    @property
    def tenant(self) -> Tenant:
        """Whose memory it is."""
        return self.remembering.tenant

    def forget(self, body: ForgetBody) -> Json:
        """Forget what the body names, or count it. Raises ApiError or LivingKVError; nothing is changed then."""
        if body.ids is not None:
            return self.forget_sentences([int(each) for each in body.ids], deep=body.deep, dry_run=body.dry_run)
        scope = scope_of(self.remembering.owner, body.session)
        if body.session is None and not body.dry_run:  # also what is not there yet
            self.tenant.require_unwritten(self.remembering.owner.owns)
        if not self.tenant.home.has_store:
            if body.session is not None:
                raise SessionNotFound("there is no store yet")
            return shown_counts(_NOTHING) if body.dry_run else {"receipt": receipt_json(_NOTHING)}
        rows = scope.rows(self.tenant.home.store())
        is_deep = body.deep and body.source is not None
        return self._forgotten(rows, scope, source=body.source, deep=is_deep, dry_run=body.dry_run)

    def forget_sentences(self, sentence_ids: Iterable[int], *, deep: bool = False, dry_run: bool = False) -> Json:
        """Forget sentences, or count them. Raises ApiError, 404, where one is not there or not theirs; nothing is
        changed then."""
        ids = sorted(set(sentence_ids))
        names = {self.remembering.require_own(each) for each in ids}
        rows = [self.tenant.home.store().session(name) for name in sorted(names)]
        return self._forgotten(rows, None, sentence_ids=ids, deep=deep, dry_run=dry_run)

    def _forgotten(
        self,
        rows: Iterable[SessionRow],
        scope: Scope | None,
        *,
        source: str | None = None,
        sentence_ids: Iterable[int] = (),
        deep: bool,
        dry_run: bool,
    ) -> Json:
        if not dry_run:
            names = {row.name for row in rows}
            self.tenant.require_unwritten(names.__contains__)
        receipt = self.tenant.memory.forget(
            session=scope, source=source, sentence_ids=sentence_ids, deep=deep, dry_run=dry_run
        )
        if dry_run:
            return shown_counts(receipt)
        return {"receipt": receipt_json(receipt)}

    def replace(self, sentence_id: int, text: str) -> Json:
        """Another text in the place of a sentence: stored first, behind all that its session holds, under the same role
        and source; then the old sentence is forgotten. The first of the new sentences, and `stored`, the ids of all.

        Raises ApiError or LivingKVError: nothing is lost then.
        """
        name, (old, _, _) = self.remembering.require_own(sentence_id), self.remembering.around(sentence_id)
        self.tenant.require_free(name)
        self.remembering.limits.check_bytes(self.tenant, len(text.encode()))
        store, memory = self.tenant.home.store(), self.tenant.memory
        row, first = store.session(name), store.next_sentence_id
        if is_conversation(store, row.session_id):
            told = "a conversation's words are what its model read: forget the sentence, and say it anew"
            raise ApiError(409, told, code="conversation")
        if old.role == "document":
            done = memory.ingest(old.source, session=name, text=text.encode(), kv=not row.text_only)
            if done.skipped:
                told = f"source {old.source!r} is this very text already: delete the sentence instead"
                raise ApiError(409, told, code="already_stored")
        else:
            memory.add_messages([{"role": old.role, "content": text}], session=name)
        n_new = store.next_sentence_id - first
        memory.forget(sentence_ids=[sentence_id])
        new, _, _ = self.remembering.around(first)
        return shown_sentence(new) | {"stored": [str(first + index) for index in range(n_new)]}


_NOTHING = Forgotten(0, 0, 0, 0, 0, 0, 0)
