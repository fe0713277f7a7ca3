"""The settings of a memory: one frozen dataclass, checked when it is made.

Knows the names, units and allowed ranges; knows nothing of how they are used. An unknown key raises.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from livingkv.errors import InputError

PAGE_TOKENS = 64
"""Tokens in a page: a constant of the format, not a setting."""

CodecName = Literal["int8", "lossless"]
DEFAULT_CODEC: CodecName = "int8"
Placement = Literal["compact", "absolute", "dual_chunk"]

_RANGES = {
    "window_tokens": (PAGE_TOKENS, 1 << 20),
    "span_tokens": (PAGE_TOKENS, 1 << 20),
    "grid_tokens": (1, 1 << 20),
    "block_tokens": (PAGE_TOKENS, 1 << 16),
    "recall_tokens": (PAGE_TOKENS, 1 << 17),
    "commit_tokens": (PAGE_TOKENS, 1 << 20),
    "max_line_bytes": (1 << 10, 1 << 40),
    "n_candidates": (1, 256),
    "ram_budget_bytes": (1 << 12, 1 << 44),
}


@dataclass(frozen=True, slots=True)
class Settings:
    """How a memory reads and recalls. All sizes are tokens unless the name says otherwise.

    window_tokens: the hot window, the newest tokens that a turn of a conversation attends besides the sinks.
    span_tokens: how far back a block of a document attends, at most the hot window. KV that has seen little else is
    what recall can put in front of any question (docs/decisions/0014).
    grid_tokens: a block ends at the next multiple of this and looks back from the last one; 1 for none. A conversation
    has none; a document is read on a grid of twice its span, so that its KV depends on the text alone.
    block_tokens: tokens read in one forward pass of ingest.
    recall_tokens: the budget of recalled passages in front of a question.
    commit_tokens: during a long ingest, about this many tokens are read between two durable commits.
    codec: page codec: "int8" or "lossless" (the model's own dtype). None: the store's, "int8" for a new one.
    placement: where recalled keys are put: "compact" (between sinks and question), "absolute" or "dual_chunk".
    n_candidates: index hits that the model itself ranks by query likelihood.
    max_line_bytes: a single line longer than this is refused as not being prose.
    disk_budget_bytes: bytes that the store's folder may take; when it would exceed them the KV of the coldest
    pages goes first, text and index stay. The store keeps it for later writers; "unlimited" lifts it. None: as the
    store has it, no limit for a new one.
    key_folder: where the keys of encrypted sessions are, outside of the store. None: in it.
    embedder: what makes the dense channel: "tokens", "states", "minilm", or a model of sentence-transformers. None:
    what the index has, "tokens" for a new one.
    ram_budget_bytes: the pages kept in RAM between questions take at most this much; used as needed, never exceeded.

    Raises InputError for a value out of range.
    """

    window_tokens: int = 4096
    span_tokens: int = 128
    grid_tokens: int = 1
    block_tokens: int = 512
    recall_tokens: int = 1024
    commit_tokens: int = 4096
    codec: CodecName | None = None
    placement: Placement = "compact"
    n_candidates: int = 8
    max_line_bytes: int = 1 << 20
    disk_budget_bytes: int | Literal["unlimited"] | None = None
    ram_budget_bytes: int = 1 << 28
    embedder: str | None = None
    key_folder: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise InputError(f"settings.{name}", repr(value), f"a whole number from {low} to {high} is allowed")
        for name in ("window_tokens", "span_tokens", "block_tokens", "commit_tokens"):
            if getattr(self, name) % PAGE_TOKENS:
                raise InputError(f"settings.{name}", getattr(self, name), f"multiples of {PAGE_TOKENS} are allowed")
        if self.embedder is not None and not (isinstance(self.embedder, str) and self.embedder.strip()):
            raise InputError("settings.embedder", repr(self.embedder), "a name or a folder is allowed")
        budget = self.disk_budget_bytes
        is_number = isinstance(budget, int) and not isinstance(budget, bool)
        if budget not in (None, "unlimited") and (not is_number or budget < 1 << 20):  # type: ignore[operator]
            allowed = f'at least {1 << 20} bytes, "unlimited" or None are allowed'
            raise InputError("settings.disk_budget_bytes", repr(budget), allowed)
        if self.key_folder is not None and (not isinstance(self.key_folder, str) or not self.key_folder):
            raise InputError("settings.key_folder", repr(self.key_folder), "None or the path of a folder is allowed")
        for name, kind in (("codec", CodecName), ("placement", Placement)):
            if getattr(self, name) not in get_args(kind) and (name, getattr(self, name)) != ("codec", None):
                raise InputError(f"settings.{name}", repr(getattr(self, name)), f"one of {get_args(kind)} is allowed")

    @property
    def for_documents(self) -> Settings:
        """The same with the hot window that a document is read with: short, on a grid of twice its length."""
        span = min(self.span_tokens, self.window_tokens)
        return replace(self, window_tokens=span, grid_tokens=2 * span)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings from a plain dict. An unknown key raises InputError and names the known ones."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise InputError("settings", repr(key), f"known keys are {', '.join(known)}")
        return cls(**values)
