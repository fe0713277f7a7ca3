"""What the tools of /mcp do: each is one of the memory's verbs, for the caller's tenant and user.

Knows tools and the verbs that they stand for; knows no protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mcp.types import ToolAnnotations
from pydantic import BaseModel

from livingkv import __version__
from livingkv.server import mcp_schemas as schemas
from livingkv.server.guard import Caller
from livingkv.server.keys import Scope as KeyScope
from livingkv.server.memory_bodies import AskBody, ForgetBody, SaidMessage, SearchBody, TurnBody
from livingkv.server.owners import Owner
from livingkv.server.planning import checked, laws_json, planned
from livingkv.server.remembering import Remembering
from livingkv.server.service import Service
from livingkv.server.session_shapes import session_page
from livingkv.server.unlearning import Unlearning

A = TypeVar("A", bound=BaseModel)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks whom: a caller, for one user's sessions."""

    service: Service
    caller: Caller
    owner: Owner

    async def of(self, work: Callable[[Remembering], T], *, alone: bool = False) -> T:
        """What `work` returns, on the inference thread. Raises ApiError."""
        owner, limits, counters = self.owner, self.service.limits, self.service.counters
        return await self.service.call(
            self.caller.tenant,
            lambda tenant: work(Remembering(tenant, owner, limits, counters)),
            user=owner.user or "",
            alone=alone,
        )


@dataclass(frozen=True, slots=True)
class Tool(Generic[A]):
    """One tool. scope: what a key needs for it."""

    name: str
    title: str
    description: str
    scope: KeyScope
    annotations: ToolAnnotations
    arguments: type[A]
    answer: type[BaseModel]
    work: Callable[[Asked, A], Awaitable[dict[str, Any]]]

    async def call(self, asked: Asked, arguments: dict[str, Any]) -> BaseModel:
        """Check the arguments and do it. Raises pydantic's ValidationError, ApiError or LivingKVError."""
        found = await self.work(asked, self.arguments.model_validate(arguments))
        return self.answer.model_validate(found)


async def _remember(asked: Asked, given: schemas.RememberArguments) -> dict[str, Any]:
    said = [SaidMessage(role="user", content=given.text)] if given.text is not None else given.messages or []
    body = TurnBody(messages=said, session=given.session, k=0)
    return await asked.of(lambda memory: memory.turn(body))


async def _recall(asked: Asked, given: schemas.RecallArguments) -> dict[str, Any]:
    body = SearchBody(query=given.query, k=given.k, session=given.session)
    return await asked.of(lambda memory: memory.search(body))


async def _ask(asked: Asked, given: schemas.AskArguments) -> dict[str, Any]:
    most = min(given.max_tokens, asked.service.options.max_new_tokens)
    body = AskBody(query=given.query, mode=given.mode, max_tokens=most, session=given.session)
    return await asked.of(lambda memory: memory.ask(body))


async def _forget(asked: Asked, given: schemas.ForgetArguments) -> dict[str, Any]:
    body = ForgetBody(ids=given.ids, session=given.session, dry_run=given.dry_run)
    found = await asked.of(lambda memory: Unlearning(memory).forget(body), alone=not given.dry_run)
    return {"dry_run": given.dry_run, "counts": found.get("receipt", found)["counts"]}


async def _sessions(asked: Asked, given: schemas.SessionsArguments) -> dict[str, Any]:
    user = asked.owner.user
    return await asked.of(lambda memory: session_page(memory.tenant.home, user, given.cursor, given.limit))


async def _stats(asked: Asked, _: schemas.StatsArguments) -> dict[str, Any]:
    return {"stats": await asked.of(lambda memory: memory.stats(__version__))}


async def _plan(asked: Asked, given: schemas.PlanArguments) -> dict[str, Any]:
    return {"plan": await planned(asked.service, given)}


async def _check_plan(asked: Asked, given: schemas.CheckPlanArguments) -> dict[str, Any]:
    return await checked(asked.service, given.plan, given.model)


async def _plan_laws(_: Asked, __: schemas.PlanLawsArguments) -> dict[str, Any]:
    return laws_json()


TOOLS: tuple[Tool[Any], ...] = (
    Tool(
        "remember",
        "Remember",
        "Store text or messages word for word, durably. Store what the user said or decided, and facts that will be "
        "needed again, in sentences that are understood alone. Nothing is summarised; calling twice stores twice.",
        "write",
        schemas.ADDS,
        schemas.RememberArguments,
        schemas.Remembered,
        _remember,
    ),
    Tool(
        "recall",
        "Recall",
        "Find the stored sentences that a question is most about, by meaning and by words, the best first, with their "
        "ids, sessions and sources. No model runs.",
        "read",
        schemas.READS,
        schemas.RecallArguments,
        schemas.Recalled,
        _recall,
    ),
    Tool(
        "ask",
        "Ask the memory",
        "Answer a question from what is stored, with the evidence. confident: false means that the memory does not "
        "seem to hold the answer: do not take it for one.",
        "read",
        schemas.READS,
        schemas.AskArguments,
        schemas.Answered,
        _ask,
    ),
    Tool(
        "forget",
        "Forget",
        "Forget sentences by id, or a whole session, for good: text, model state, vectors and index entries. With "
        "dry_run, the default, it only counts: show the counts to the user, and call again with dry_run false once "
        "they agree.",
        "write",
        schemas.FORGETS,
        schemas.ForgetArguments,
        schemas.Forgotten,
        _forget,
    ),
    Tool(
        "sessions",
        "List sessions",
        "List the sessions with their sizes and times.",
        "read",
        schemas.READS,
        schemas.SessionsArguments,
        schemas.Sessions,
        _sessions,
    ),
    Tool(
        "stats",
        "Statistics",
        "Counts and bytes of the whole store, its tiers and its model.",
        "read",
        schemas.READS,
        schemas.StatsArguments,
        schemas.Stats,
        _stats,
    ),
    Tool(
        "plan",
        "Plan hardware",
        "What a model needs and how fast it can be: weights, KV, store, ceilings, costs, and a verdict on eleven ways "
        "to run it, from inputs by symbol (see plan_laws), such as context, vram, ram, disk, bw_vram. What is not "
        "given is unknown and never guessed: ask the user for what `supply` names.",
        "read",
        schemas.READS,
        schemas.PlanArguments,
        schemas.Planned,
        _plan,
    ),
    Tool(
        "check_plan",
        "Check a plan",
        "Compute a plan anew from its inputs: every number, unit and verdict that does not follow is told.",
        "read",
        schemas.READS,
        schemas.CheckPlanArguments,
        schemas.CheckedPlan,
        _check_plan,
    ),
    Tool(
        "plan_laws",
        "Laws of plans",
        "The symbols, laws and paths that plans are made of, with units and how to supply each number.",
        "read",
        schemas.READS,
        schemas.PlanLawsArguments,
        schemas.PlanLaws,
        _plan_laws,
    ),
)
