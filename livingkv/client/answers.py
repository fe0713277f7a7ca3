"""What the service answers, as frozen dataclasses. Fields are named as docs/API.md names them.

Knows fields and types; knows no route. A field that a later version of the service adds is left aside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hit:
    """A sentence that was found. positions: [lo, hi) in the tokens of its session. lexical, semantic: None where that
    channel did not find it. coverage: the share of the question's words that it holds. user: None for nobody. Of an
    answer's evidence the text is a whole passage; id None where that is not about one sentence."""

    id: str | None
    session: str
    user: str | None
    text: str
    source: str
    role: str
    positions: tuple[int, int]
    score: float
    lexical: float | None = None
    semantic: float | None = None
    lexical_rank: int | None = None
    semantic_rank: int | None = None
    coverage: float | None = None


@dataclass(frozen=True, slots=True)
class Sentence:
    """A stored sentence. before, after: the texts beside it, where one sentence was asked for."""

    id: str
    session: str
    user: str | None
    text: str
    source: str
    role: str
    positions: tuple[int, int]
    weight: float
    recalls: int
    created_s: float
    recalled_s: float | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of a list. next_cursor: what to ask for the rest with, None at its end."""

    items: tuple[T, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a request. cached_tokens: those of the prompt that were attended from the store, not computed."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cached_tokens(self) -> int:
        """Stored tokens that were attended."""
        return int(self.prompt_tokens_details.get("cached_tokens", 0))


@dataclass(frozen=True, slots=True)
class AskResult:
    """An answer with what it rests on. confident: whether the memory is believed to hold it; reason: why this mode."""

    answer: str
    mode: str
    reason: str
    confident: bool
    confidence: float
    evidence: tuple[Hit, ...]
    usage: Usage
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class TurnResult:
    """What was known before the messages, and the ids of the sentences that they became; durable. answer: None where
    none was asked for."""

    stored: tuple[str, ...]
    session: str
    recalled: tuple[Hit, ...]
    confident: bool | None = None
    confidence: float | None = None
    answer: str | None = None
    mode: str | None = None
    reason: str | None = None
    usage: Usage | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counts:
    """How much is forgotten, or would be."""

    sentences: int = 0
    tokens: int = 0
    pages: int = 0
    keys: int = 0


@dataclass(frozen=True, slots=True)
class ForgottenBytes:
    """text: of the sentences; erased: overwritten or cut off now; freed: given back to the disk; awaiting: given back
    when the store is next rewritten."""

    text: int = 0
    erased: int = 0
    freed: int = 0
    awaiting: int = 0


@dataclass(frozen=True, slots=True)
class Receipt:
    """What was forgotten. keys_left: files of keys that were not at hand to be destroyed."""

    counts: Counts
    bytes: ForgottenBytes
    keys_left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Job:
    """Work that goes on. state: queued, running, done, failed or cancelled; done and total in `unit`. user: whose it
    is, None for nobody's. error: why it failed, as an error of the API."""

    id: str
    kind: str
    state: str
    user: str | None = None
    session: str | None = None
    source: str | None = None
    done: int = 0
    total: int | None = None
    unit: str | None = None
    created_s: float = 0.0
    ended_s: float | None = None
    result: Any = None
    error: Mapping[str, Any] | None = None

    @property
    def is_over(self) -> bool:
        """Nothing more comes."""
        return self.state in ("done", "failed", "cancelled")


@dataclass(frozen=True, slots=True)
class Source:
    """A document of a session. complete: all of it was read."""

    name: str
    tokens: int
    bytes: int
    sentences: int
    complete: bool


@dataclass(frozen=True, slots=True)
class Stretch:
    """A piece of a session's timeline: tokens [lo, hi) of one source and role."""

    source: str
    role: str
    tokens: tuple[int, int]
    bytes: int
    sentences: int


@dataclass(frozen=True, slots=True)
class Session:
    """A session. state: device or stored. sources and timeline only where one session was asked for."""

    name: str
    user: str | None
    kind: str
    tokens: int
    bytes: int
    sentences: int
    turns: int
    created_s: float
    updated_s: float
    encrypted: bool = False
    text_only: bool = False
    pinned: bool = False
    state: str = "stored"
    sources: tuple[Source, ...] = ()
    timeline: tuple[Stretch, ...] = ()


@dataclass(frozen=True, slots=True)
class Saved:
    """What is stored of a session, every byte read and found right. tier: the nearest place that holds what the next
    turn attends: device, ram or disk. pages_missing: those whose KV is not kept; it is made anew from the text."""

    tokens: int
    bytes: int
    tier: str
    ms: float
    fingerprint: Mapping[str, Any]
    pages_checked: int
    pages_missing: int = 0


@dataclass(frozen=True, slots=True)
class Restored:
    """A session that was brought into device memory. tier: where it was. Of all tokens, so many were reused and so many
    read by the model again (rebuilt); attended_tokens: those that the next turn has in view."""

    tokens: int
    bytes: int
    tier: str
    ms: float
    fingerprint: Mapping[str, Any]
    reused_tokens: int
    prefilled_tokens: int
    rebuilt: bool
    attended_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Stats:
    """What the store holds. everything: all that was answered, as JSON has it."""

    everything: Mapping[str, Any]
