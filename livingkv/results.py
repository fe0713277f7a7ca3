"""The typed results of the library, with the names that the command line's `--json` prints.

Knows nothing of how they come about. Every class is frozen; `to_json` of this module turns any of them into plain
JSON types.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

NOT_STORED = "Nothing that is stored answers this."
"""The answer where none convinces: a statement, not an invention."""

Mode = Literal["auto", "kv", "ground", "extract", "exact", "resume"]

Recall = Literal["all", "session", "off"]
"""Where a turn of a conversation may recall from: all sessions, what is older in its own, or nowhere."""


def to_json(result: Any) -> Any:
    """Any result of this module (or a list of them) as dicts, lists, strings and numbers."""
    if isinstance(result, (list, tuple)):
        return [to_json(item) for item in result]
    return asdict(result)


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall time in milliseconds. `load` is the model's load when this call caused it, else 0."""

    load: float = 0.0
    probe: float = 0.0
    fetch: float = 0.0
    first_token: float = 0.0
    total: float = 0.0


@dataclass(frozen=True, slots=True)
class Evidence:
    """One recalled passage. `tokens` is its half-open span [lo, hi) in the session's token stream.

    `score` is the one that ranked it (higher is better); `lexical` and `semantic` are the channels' own scores of its
    best sentence, None where the channel did not find it, and the ranks its places there, from 1. `role`: "document",
    or who said that sentence: "user" or "assistant". `coverage`: the share of the question's words that it holds.
    `sentence_id`: its id, by which it can be forgotten.
    """

    text: str
    source: str
    session: str
    tokens: tuple[int, int]
    score: float
    lexical: float | None
    semantic: float | None
    role: str = "document"
    sentence_id: int | None = None
    lexical_rank: int | None = None
    semantic_rank: int | None = None
    coverage: float = 0.0


@dataclass(frozen=True, slots=True)
class Hit:
    """One sentence that a search found; fields as those of `Evidence`, about the sentence itself."""

    sentence_id: int
    text: str
    source: str
    session: str
    role: str
    tokens: tuple[int, int]
    score: float
    lexical: float | None
    semantic: float | None
    lexical_rank: int | None
    semantic_rank: int | None
    coverage: float


@dataclass(frozen=True, slots=True)
class StoredSentence:
    """One sentence of a store. `weight` decays with time and grows by 1 with every recall, of which there were
    `n_recalls`, the last at `recalled_s` (None without one); `created_s` is when it was stored, both Unix seconds."""

    sentence_id: int
    text: str
    source: str
    session: str
    role: str
    tokens: tuple[int, int]
    weight: float
    n_recalls: int
    recalled_s: float | None
    created_s: float


@dataclass(frozen=True, slots=True)
class Answer:
    """What `ask` returns. `mode` is the mode that answered, never "auto"; `reason` says why auto chose it.

    `confidence` is in 0..1; `confident` is False when the store does not seem to hold the answer.
    `n_tokens` counts the stored tokens of the searched sessions, `reused_tokens` those whose stored KV was attended,
    `prefilled_tokens` those that the model had to read for this answer. `generated_tokens`: those of answers that did
    not convince are among them.
    """

    answer: str
    mode: Mode
    confident: bool
    confidence: float
    evidence: tuple[Evidence, ...]
    n_tokens: int
    reused_tokens: int
    prefilled_tokens: int
    timings_ms: Timings
    reason: str = ""
    generated_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Turn(Answer):
    """What `chat` returns: the answer of a turn that is durable when this object exists.

    mode: "resume" when the model answered from the conversation's hot window, else the mode in which memory answered
    beside it; then `evidence` says from what. confident: False when memory was asked and had no answer that convinced.
    `n_tokens` counts those of the session; `reused_tokens` are the stored ones that the turn attends, and those that
    memory's answer attended.
    """

    turn: int = 0


@dataclass(frozen=True, slots=True)
class Ingested:
    """What `ingest` returns for one source. `skipped` is True when the session held these very bytes already.

    `n_stale_sentences`: those of other bytes under this name, kept of ingests that broke off. `forget` takes them.
    """

    source: str
    session: str
    n_bytes: int
    n_tokens: int
    n_sentences: int
    seconds: float
    skipped: bool = False
    n_stale_sentences: int = 0


@dataclass(frozen=True, slots=True)
class AddedMessages:
    """What `add_messages` read: counts of this call; `turn` is the session's number of turns behind it, 0 where all was
    added before under the same key. `sentence_ids`:
    what they are stored as. `reused_tokens`: stored ones of the session that were attended; `prefilled_tokens` went
    through the model."""

    session: str
    n_messages: int
    n_bytes: int
    n_tokens: int
    n_sentences: int
    turn: int
    seconds: float
    sentence_ids: tuple[int, ...] = ()
    reused_tokens: int = 0
    prefilled_tokens: int = 0


@dataclass(frozen=True, slots=True)
class SessionInfo:
    """One session. `n_tokens` counts the model's stored tokens, template tokens included; times are Unix seconds.

    `sources` of an encrypted session are empty where its key is not there.
    """

    name: str
    session_id: int
    n_tokens: int
    n_bytes: int
    n_sentences: int
    n_turns: int
    created_s: float
    updated_s: float
    sources: tuple[str, ...] = ()
    encrypted: bool = False


@dataclass(frozen=True, slots=True)
class TierStats:
    """The pages of an open memory since it was opened. `ram_bytes` is what the RAM tier holds now, at most
    `ram_budget_bytes`; a page that was asked for is a hit where RAM had it or was reading it, else a miss.

    disk_pages, disk_bytes, disk_seconds: read from disk; seconds add up reads side by side.
    """

    ram_bytes: int
    ram_budget_bytes: int
    n_pages: int
    n_hits: int
    n_misses: int
    n_evicted: int
    disk_pages: int
    disk_bytes: int
    disk_seconds: float


@dataclass(frozen=True, slots=True)
class Stats:
    """Size and shape of a store. `bytes_by_part` names every part that takes disk space.

    held_bytes: what the file system holds in whole blocks; `disk_budget_bytes`, None without one, is about that.
    tiers: what an open memory read through its tiers; None where it has read no page yet, or none is open.
    """

    path: str
    model: str
    codec: str
    n_sessions: int
    n_tokens: int
    n_sentences: int
    n_pages: int
    size_bytes: int
    bytes_by_part: dict[str, int] = field(default_factory=dict)
    bytes_per_token: float | None = None
    bf16_bytes_per_token: int | None = None
    held_bytes: int = 0
    disk_budget_bytes: int | None = None
    tiers: TierStats | None = None


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What `check` found. `problems` is empty exactly when the store is whole."""

    path: str
    n_pages: int
    n_records: int
    n_sentences: int
    problems: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True when nothing is wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Repaired:
    """What `repair` rebuilt of one session: page numbers, and whether the unsealed tail was among it. `problem`: why
    the rest could not be rebuilt, None if there is none."""

    session: str
    pages: tuple[int, ...]
    tail: bool
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Reembedded:
    """What `reembed` made: the embedder as it was named, the id of its vectors, numbers in each, how many, how long."""

    embedder: str
    embedder_id: str
    dimension: int
    n_sentences: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The receipt of `forget`, given only when the bytes are gone from store and index. `bytes_awaiting` are
    overwritten already; `defrag` gives their space back. `n_keys`: keys of encrypted sessions that were destroyed.
    Of a dry run: what would go, all numbers of `bytes_` being 0.
    `n_pages`: pages whose KV is gone; what forks share stays. `keys_left`: files of keys that no session needs any more
    and that were not at hand, so that they still open older copies."""

    n_sentences: int
    n_tokens: int
    n_pages: int
    n_bytes: int
    bytes_erased: int
    bytes_freed: int
    bytes_awaiting: int
    n_keys: int = 0
    keys_left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Erased:
    """The receipt of a store that was erased as a whole: what it held, and what became of its files.

    Counts are of the moment when erasing began, also when it broke off and was finished later; None where the store
    was too damaged to count. `paths`: the store and copies of it that a migration left. `size_bytes`: what their files
    took. `bytes_overwritten`: by this call; less than the size where files have holes, a full disk allowed no
    overwriting, or an earlier call began. `left`: names in the store's folder that are not a store's, untouched.
    """

    paths: tuple[str, ...]
    n_sessions: int | None
    n_sentences: int | None
    n_tokens: int | None
    n_pages: int | None
    n_archived: int | None
    n_bytes: int | None
    size_bytes: int
    bytes_overwritten: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Archived:
    """A pruned sentence in the archive. `session` is that session's name now; the text's bytes that are not UTF-8
    are surrogates (`surrogateescape`)."""

    sentence_id: int
    session: str
    source: str
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class ArchiveErased:
    """The receipt of an erased archive, or part of one: its bytes are overwritten. `n_bytes`: of text."""

    n_sentences: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Hot:
    """One of the hottest sentences: `weight` decays with time and grows by 1 with every recall.

    `forget` takes `sentence_id`.
    """

    text: str
    source: str
    session: str
    weight: float
    n_recalls: int
    sentence_id: int


@dataclass(frozen=True, slots=True)
class Migrated:
    """What `migrate` made: the new store, and where the old one is kept until somebody removes it."""

    path: str
    old_path: str
    n_sessions: int
    n_tokens_before: int
    n_tokens_after: int
