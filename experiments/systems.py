"""The systems that experiments compare, each behind one small protocol: a question in, an answer with its costs out.

full: plain Hugging Face over the whole text, within the model's native context. text: text retrieval, livingkv's index
and the best passages of the same token budget, read as a fresh prompt: the rival. kv, ground, auto and the other modes:
`Memory.ask`. All read the same text and get the same question; an experiment makes the store and scores the answers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol, get_args

from experiments.plain_model import PlainModel
from livingkv import Memory, Settings
from livingkv.home import Home
from livingkv.models import LoadedModel, load_model
from livingkv.results import Mode
from livingkv.store import Sentence

FULL, TEXT = "full", "text"
SYSTEMS = (FULL, TEXT, "kv", "ground", "auto", "extract", "exact", "resume")
DEFAULT_SYSTEMS = (FULL, TEXT, "kv", "ground", "auto")

PASSAGE_TOKENS = 96
"""What text retrieval grows a hit to, about a paragraph."""

N_HITS = 128
"""Hits that text retrieval looks at; the budget ends earlier as a rule."""

_REACH = 4


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer. prefilled_tokens: tokens read through the model for it. seconds: from question to the whole answer.

    recalled: the texts that were put before the model, in the order of rank; None where it saw everything.
    extra: more facts, plain JSON.
    """

    text: str
    prefilled_tokens: int
    seconds: float
    recalled: tuple[str, ...] | None
    extra: dict[str, Any] = field(default_factory=dict)


class System(Protocol):
    """Answers questions about one text."""

    def answer(self, question: str, *, max_tokens: int) -> Answered:
        """The likeliest token each time, at most `max_tokens`."""


class FullAttention:
    """Everything is read by the model. A further question to the same text reuses its KV and counts what it reads."""

    def __init__(self, plain: PlainModel, text: str) -> None:
        self._plain = plain
        self._text = text

    def answer(self, question: str, *, max_tokens: int) -> Answered:
        """Raises ValueError when text, question and answer are longer than the native context."""
        start = perf_counter()
        done = self._plain.complete(f"{self._text}\n\n{question}", max_tokens=max_tokens, reuse=True)
        extra = {"prompt_tokens": done.n_prompt_tokens}
        return Answered(done.text, done.prefilled_tokens, perf_counter() - start, None, extra)


class TextRetrieval:
    """The index's hits as passages in the order of the document, and the question behind them, in one fresh prompt.

    The index that finds them is livingkv's; the model has no say in what is found.
    """

    def __init__(self, plain: PlainModel, home: Home, session: str | None = None) -> None:
        self._plain = plain
        self._home = home
        self._session = session

    def answer(self, question: str, *, max_tokens: int) -> Answered:
        """Answers from what `recall_tokens` of the settings hold. Raises SessionNotFound."""
        start = perf_counter()
        ranked = self._ranked(question)
        found = passages_within(ranked, self._home.store().neighbours, budget_tokens=self._home.settings.recall_tokens)
        texts = [b"".join(sentence.raw for sentence in passage).decode("utf-8", "replace").strip() for passage in found]
        probed = perf_counter() - start
        done = self._plain.complete("\n\n".join([*texts, question]), max_tokens=max_tokens)
        extra = {
            "prompt_tokens": done.n_prompt_tokens,
            "probe_seconds": probed,
            "passages": [[passage[0].session, passage[0].token_lo, passage[-1].token_hi] for passage in found],
        }
        return Answered(done.text, done.prefilled_tokens, perf_counter() - start, tuple(texts), extra)

    def _ranked(self, question: str) -> list[Sentence]:
        store = self._home.store()
        wanted = None if self._session is None else frozenset({store.session(self._session).session_id})
        hits = self._home.index.current().probe(question, limit=N_HITS, session_ids=wanted)
        return [store.sentence(hit.sentence_id) for hit in hits]


class Neighbours(Protocol):
    """`Store.neighbours`."""

    def __call__(self, sentence_id: int, before: int, after: int) -> list[Sentence]:
        """The sentence and those around it, of the same source, in order."""


def passages_within(
    ranked: Sequence[Sentence], neighbours: Neighbours, *, budget_tokens: int, passage_tokens: int = PASSAGE_TOKENS
) -> list[list[Sentence]]:
    """The best sentences, each with what stands around it, as many as the budget holds; runs of neighbours in the order
    of the document. The first sentence is there even if it alone is longer than the budget."""
    chosen: dict[int, Sentence] = {}
    used = 0
    for hit in ranked:
        if hit.sentence_id in chosen:
            continue
        size = hit.token_hi - hit.token_lo
        if chosen and used + size > budget_tokens:
            break
        chosen[hit.sentence_id] = hit
        used, room = used + size, passage_tokens - size
        around = neighbours(hit.sentence_id, _REACH, _REACH)
        for sentence in sorted(around, key=lambda other: abs(other.sentence_id - hit.sentence_id)):
            size = sentence.token_hi - sentence.token_lo
            if sentence.sentence_id in chosen:
                continue
            if size > min(room, budget_tokens - used):
                break
            chosen[sentence.sentence_id] = sentence
            used, room = used + size, room - size
    return _runs(sorted(chosen.values(), key=lambda sentence: (sentence.session_id, sentence.token_lo)))


def _runs(ordered: Sequence[Sentence]) -> list[list[Sentence]]:
    runs: list[list[Sentence]] = []
    for sentence in ordered:
        last = runs[-1][-1] if runs else None
        together = last is not None and (last.session_id, last.source) == (sentence.session_id, sentence.source)
        if last is not None and together and last.token_hi == sentence.token_lo:
            runs[-1].append(sentence)
        else:
            runs.append([sentence])
    return runs


class MemoryMode:
    """livingkv in one of its modes."""

    def __init__(self, memory: Memory, mode: Mode, session: str | None = None) -> None:
        self._memory = memory
        self._mode = mode
        self._session = session

    def answer(self, question: str, *, max_tokens: int) -> Answered:
        """Raises what `Memory.ask` raises."""
        start = perf_counter()
        answer = self._memory.ask(question, session=self._session, mode=self._mode, max_tokens=max_tokens)
        seconds = perf_counter() - start
        extra = {
            "mode": answer.mode,
            "reason": answer.reason,
            "confident": answer.confident,
            "confidence": answer.confidence,
            "reused_tokens": answer.reused_tokens,
            "timings_ms": asdict(answer.timings_ms),
            "passages": [[found.session, *found.tokens] for found in answer.evidence],
        }
        texts = tuple(found.text for found in answer.evidence)
        return Answered(answer.answer, answer.prefilled_tokens, seconds, texts, extra)


class Models:
    """The two copies of one model, each loaded when first needed: livingkv takes a network over."""

    def __init__(self, spec: str | None = None) -> None:
        self._spec = spec

    @cached_property
    def served(self) -> LoadedModel:
        """For livingkv."""
        return load_model(self._spec)

    @cached_property
    def plain(self) -> PlainModel:
        """For plain Hugging Face."""
        return PlainModel(load_model(self._spec))


@contextmanager
def open_systems(
    names: Sequence[str],
    *,
    models: Models,
    store: Path | None,
    text: str | None = None,
    settings: Settings | None = None,
    session: str | None = None,
) -> Iterator[dict[str, System]]:
    """The systems of these names, over a store that exists and is only read. `text` is what "full" reads; it alone
    needs no store.

    Raises ValueError for an unknown name, for "full" without a text and for the others without a store.
    """
    check_names(names)
    with ExitStack() as closing:
        systems: dict[str, System] = {}
        if FULL in names:
            if text is None:
                raise ValueError("full attention needs the text")
            systems[FULL] = FullAttention(models.plain, text)
        if set(names) - {FULL}:
            if store is None:
                raise ValueError("only full attention can do without a store")
            home = Home(store, models.served, settings, read_only=True, create=False)
            memory = closing.enter_context(Memory(home))
            systems |= {mode: MemoryMode(memory, mode, session) for mode in get_args(Mode) if mode in names}
            if TEXT in names:
                systems[TEXT] = TextRetrieval(models.plain, home, session)
        yield {name: systems[name] for name in names}


def check_names(names: Sequence[str]) -> None:
    """Raises ValueError for a name that is no system's."""
    for name in names:
        if name not in SYSTEMS:
            raise ValueError(f"there is no system {name}; there are {', '.join(SYSTEMS)}")
