"""The bodies of the memory routes, checked. What is unknown is left aside; what is known and cannot be is refused.

Knows fields and ranges; knows no store.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from livingkv.results import Mode
from livingkv.server.schemas import Lenient, Text, Whole

MOST_HITS = 100
MOST_MESSAGES = 256
"""In one turn: a longer history is told in parts, or ingested."""
MOST_IDS = 10_000
_LONGEST_MESSAGE = 1 << 16
_LONGEST_QUERY = 1 << 14

StoredRole = Literal["document", "user", "assistant"]
SentenceId = Annotated[str, StringConstraints(pattern="^[0-9]{1,19}$")]
Query = Annotated[Text, Field(min_length=1, max_length=_LONGEST_QUERY)]
Said = Annotated[Text, Field(min_length=1, max_length=_LONGEST_MESSAGE)]
Stop = Annotated[Text, Field(min_length=1)]


class ScopedBody(Lenient):
    """What every body may say: for whom, and in which session."""

    user: Text | None = None
    session: Text | None = None


class SaidMessage(Lenient):
    """One message of a turn."""

    role: Literal["user", "assistant"]
    content: Said


class TurnBody(ScopedBody):
    """/v1/memory/turn. query: what is recalled for; the last message of the user if it is left out. k: 0 recalls
    nothing. recall: from all sessions of the user, or from this one. kv: False makes a new session text-only."""

    messages: Annotated[list[SaidMessage], Field(min_length=1, max_length=MOST_MESSAGES)]
    query: Query | None = None
    mode: Mode = "extract"
    k: Annotated[Whole, Field(ge=0, le=MOST_HITS)] = 5
    max_tokens: Annotated[Whole, Field(ge=1)] = 64
    recall: Literal["all", "session"] = "all"
    kv: bool = True

    @property
    def asked(self) -> str | None:
        """What is recalled for, None for nothing: of a long message its end, where people ask."""
        said = [message.content for message in self.messages if message.role == "user"]
        asked = self.query or (said[-1][-_LONGEST_QUERY:] if said else None)
        return asked if self.k and asked is not None and asked.strip() else None


class SearchBody(ScopedBody):
    """/v1/memory/search."""

    query: Query
    k: Annotated[Whole, Field(ge=1, le=MOST_HITS)] = 10
    source: Text | None = None
    role: StoredRole | None = None


class AskBody(ScopedBody):
    """/v1/memory/ask."""

    query: Query
    mode: Mode = "auto"
    max_tokens: Annotated[Whole, Field(ge=1)] = 64
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    stream: bool = False

    @property
    def stops(self) -> tuple[str, ...]:
        """The strings to end before."""
        return () if self.stop is None else (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class PatchBody(Lenient):
    """PATCH /v1/memory/{id}."""

    text: Annotated[Text, Field(min_length=1, max_length=_LONGEST_QUERY)]
    user: Text | None = None


class ForgetBody(ScopedBody):
    """/v1/memory/forget: exactly one of a session, a source of a session, sentences, and everything."""

    source: Text | None = None
    ids: Annotated[list[SentenceId], Field(min_length=1, max_length=MOST_IDS)] | None = None
    everything: bool = False
    deep: bool = False
    dry_run: bool = False

    @model_validator(mode="after")
    def _names_one_thing(self) -> Self:
        if sum((self.session is not None, self.ids is not None, self.everything)) != 1:
            raise ValueError("exactly one of session, ids and everything is needed")
        if self.source is not None and self.session is None:
            raise ValueError("source: the session that it is in is needed")
        return self
