"""The settings of a memory: one frozen dataclass, checked when it is made.

Knows the names, units and allowed ranges; knows nothing of how they are used. An unknown key raises.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

from livingkv.errors import InputError

PAGE_TOKENS = 64
"""Tokens in a page: a constant of the format, not a setting."""

CodecName = Literal["int8", "lossless"]
DEFAULT_CODEC: CodecName = "int8"
DEFAULT_SPAN = 128
"""Tokens that a document of a new store looks back."""
DEFAULT_BLOCK = 512
GPU_DOCUMENT_BLOCK = 8192
CPU_DOCUMENT_BLOCK = 256
"""Tokens of a document in one pass: on a GPU starting a pass costs as much as reading many tokens, on a CPU nothing
(experiments/013_cells)."""

STREAMED_BLOCK = 1024
STREAMED_DOCUMENT_BLOCK = 4096
"""The same where experts are read from disk: every pass reads most of them, however few tokens it holds."""

Placement = Literal["compact", "absolute", "dual_chunk"]

_RANGES = {
    "window_tokens": (PAGE_TOKENS, 1 << 20),
    "block_tokens": (PAGE_TOKENS, 1 << 16),
    "recall_tokens": (PAGE_TOKENS, 1 << 17),
    "commit_tokens": (PAGE_TOKENS, 1 << 20),
    "max_line_bytes": (1 << 10, 1 << 40),
    "n_candidates": (1, 256),
    "ram_budget_bytes": (1 << 12, 1 << 44),
}

_MOST_SECONDS = 86_400


class LookBack(NamedTuple):
    """How far a block of text looks back: `window_tokens` from the last multiple of `grid_tokens`, at the next of which
    it ends; a grid of 1 is none."""

    window_tokens: int
    grid_tokens: int = 1


@dataclass(frozen=True, slots=True)
class Settings:
    """How a memory reads and recalls. All sizes are tokens unless the name says otherwise.

    window_tokens: the hot window, the newest tokens that a turn of a conversation attends besides the sinks.
    span_tokens: how far back a block of a document attends. KV that has seen little else is what recall can put in
    front of any question (docs/decisions/0014). None: as the store has it, 128 for a new one. The hot window or more:
    documents are read like conversations.
    block_tokens: tokens read in one forward pass. None: 512 of a conversation; of a document 8,192 on a GPU, where
    passes are dear to start (fewer where they would not fit), and 256 on a CPU. With streamed experts 1,024, of a
    document 4,096.
    recall_tokens: the budget of recalled passages in front of a question.
    commit_tokens: during a long ingest, about this many tokens are read between two durable commits.
    codec: page codec: "int8" or "lossless" (the model's own dtype). None: the store's, "int8" for a new one.
    placement: where recalled keys are put: "compact" (between sinks and question), "absolute" or "dual_chunk".
    n_candidates: index hits that the model itself ranks by query likelihood.
    exact_limit_s: mode auto reads a session whole again, or attends it whole, for a question about everything, where
    that takes at most so many seconds on this machine; 0: never.
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
    span_tokens: int | None = None
    block_tokens: int | None = None
    recall_tokens: int = 1024
    commit_tokens: int = 4096
    codec: CodecName | None = None
    placement: Placement = "compact"
    n_candidates: int = 8
    exact_limit_s: float = 60.0
    max_line_bytes: int = 1 << 20
    disk_budget_bytes: int | Literal["unlimited"] | None = None
    ram_budget_bytes: int = 1 << 28
    embedder: str | None = None
    key_folder: str | None = None

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if value is None and name == "block_tokens":
                continue
            if not _is_whole(value) or not low <= value <= high:
                raise InputError(f"settings.{name}", repr(value), f"a whole number from {low} to {high} is allowed")
        limit = self.exact_limit_s
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 <= limit <= _MOST_SECONDS:
            raise InputError("settings.exact_limit_s", repr(limit), f"0 to {_MOST_SECONDS} seconds are allowed")
        span = self.span_tokens
        if span is not None and (not _is_whole(span) or span < PAGE_TOKENS or span % PAGE_TOKENS):
            raise InputError("settings.span_tokens", repr(span), f"None or multiples of {PAGE_TOKENS} are allowed")
        for name in ("window_tokens", "block_tokens", "commit_tokens"):
            if (getattr(self, name) or 0) % PAGE_TOKENS:
                raise InputError(f"settings.{name}", getattr(self, name), f"multiples of {PAGE_TOKENS} are allowed")
        if self.embedder is not None and not (isinstance(self.embedder, str) and self.embedder.strip()):
            raise InputError("settings.embedder", repr(self.embedder), "a name or a folder is allowed")
        budget = self.disk_budget_bytes
        if budget not in (None, "unlimited") and not (_is_whole(budget) and budget >= 1 << 20):
            allowed = f'at least {1 << 20} bytes, "unlimited" or None are allowed'
            raise InputError("settings.disk_budget_bytes", repr(budget), allowed)
        if self.key_folder is not None and (not isinstance(self.key_folder, str) or not self.key_folder):
            raise InputError("settings.key_folder", repr(self.key_folder), "None or the path of a folder is allowed")
        for name, kind in (("codec", CodecName), ("placement", Placement)):
            if getattr(self, name) not in get_args(kind) and (name, getattr(self, name)) != ("codec", None):
                raise InputError(f"settings.{name}", repr(getattr(self, name)), f"one of {get_args(kind)} is allowed")

    def pass_tokens(self, look: LookBack, *, on_gpu: bool, streamed: bool = False) -> int:
        """Tokens that one forward pass holds at most where text looks back like `look`. streamed: experts are."""
        if self.block_tokens is not None:
            return self.block_tokens
        if streamed:
            return STREAMED_BLOCK if look.grid_tokens == 1 else STREAMED_DOCUMENT_BLOCK
        if look.grid_tokens == 1:
            return DEFAULT_BLOCK
        return GPU_DOCUMENT_BLOCK if on_gpu else CPU_DOCUMENT_BLOCK

    @property
    def conversation(self) -> LookBack:
        """How far a turn of a conversation looks back: the whole hot window."""
        return LookBack(self.window_tokens)

    @property
    def document(self) -> LookBack:
        """How far a document looks back: a span, on a grid of twice its length, so that its KV depends on the text
        alone."""
        span = DEFAULT_SPAN if self.span_tokens is None else self.span_tokens
        return LookBack(span, 2 * span) if span < self.window_tokens else self.conversation

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Settings:
        """Settings from a plain dict. An unknown key raises InputError and names the known ones."""
        known = [field.name for field in fields(cls)]
        for key in values:
            if key not in known:
                raise InputError("settings", repr(key), f"known keys are {', '.join(known)}")
        return cls(**values)


def _is_whole(value: object) -> TypeGuard[int]:
    """True for a whole number; a truth value is none."""
    return isinstance(value, int) and not isinstance(value, bool)
