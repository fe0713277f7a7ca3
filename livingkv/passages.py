"""Passages: sentence hits grown to their neighbours, merged, cut to a token budget.

Knows sentences of a store and token counts; knows no KV and no model. A fact often needs the sentence before it
("NAME is a JOB. ... The access code was N."), so a hit never travels alone when there is room; a heading brings what
stands under it, and a sentence its heading.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from livingkv.line_kinds import is_heading
from livingkv.store import Sentence

PASSAGE_TOKENS = 96
"""What a hit is grown to, about a paragraph."""

COVERAGE_NATS = 2.0
"""What holding all of the question's words is worth in the order of hits, in nats per question token."""

SALIENCE_NATS = 0.2
"""What each standard deviation of the dense channel is worth in the same order."""

_REACH = 4
_SECTION_REACH = 16

Neighbours = Callable[[int, int, int], list[Sentence]]
"""(sentence id, n before, n after): the sentences around one, itself among them, of the same source, in order."""


@dataclass(frozen=True, slots=True)
class Judged:
    """One sentence hit with what the index and the model say about it.

    score: the index's fused score. gain: nats per question token that the sentence's stored KV adds to the
    likelihood of the question; None when no model was asked. rest_gain: the same over the tokens that are in no name;
    behind: by how much that is less than the most of all hits that were judged together, 0 or more.
    coverage: the share of the question's terms that the sentence holds, rare terms counting by their idf.
    salience: how far the index's dense channel lifts the sentence out of all, in standard deviations; 0 where it cannot
    tell. lexical_rank, semantic_rank: its place in a channel of the index, from 1; None where that did not find it.
    """

    sentence: Sentence
    score: float
    lexical: float | None
    semantic: float | None
    coverage: float
    gain: float | None = None
    rest_gain: float = 0.0
    behind: float = 0.0
    salience: float = 0.0
    lexical_rank: int | None = None
    semantic_rank: int | None = None

    @property
    def rank_score(self) -> float:
        """What orders judged hits: the model's judgement, the words and the meaning by the index. Weighed on needles
        and on paraphrased questions (experiments/015_retrieval)."""
        return (self.gain or 0.0) + COVERAGE_NATS * self.coverage + SALIENCE_NATS * self.salience


@dataclass(frozen=True, slots=True)
class Passage:
    """Tokens [token_lo, token_hi) of one session's source, with the best hit inside."""

    session_id: int
    session: str
    source: str
    token_lo: int
    token_hi: int
    text: str
    best: Judged

    @property
    def n_tokens(self) -> int:
        """Length in tokens."""
        return self.token_hi - self.token_lo


def sentence_passages(judged: Sequence[Judged], neighbours: Neighbours) -> list[Passage]:
    """Each hit's sentence alone; a heading, which alone says nothing, with its body."""
    passages = []
    for hit in judged:
        grown = _section(hit.sentence, neighbours, PASSAGE_TOKENS) if is_heading(hit.sentence.text) else [hit.sentence]
        passages.append(_passage(grown, hit))
    return passages


def grow_passages(
    judged: Sequence[Judged],
    neighbours: Neighbours,
    *,
    budget_tokens: int,
    passage_tokens: int = PASSAGE_TOKENS,
) -> list[Passage]:
    """The hits in rank order, grown, overlapping ones merged, as many as fit `budget_tokens`; in rank order of
    their best hit.

    A first hit longer than the budget is kept whole: there is always at least one passage for a hit.
    """
    spans: list[tuple[list[Sentence], Judged]] = []
    used = 0
    for hit in judged:
        if any(hit.sentence.sentence_id == known.sentence_id for span, _ in spans for known in span):
            continue
        room = min(passage_tokens, budget_tokens - used)
        grown = _grow(hit.sentence, neighbours, room)
        size = grown[-1].token_hi - grown[0].token_lo
        if spans and size > budget_tokens - used:
            break
        used += size
        spans.append((grown, hit))
    return _merge(spans)


def _grow(hit: Sentence, neighbours: Neighbours, room: int) -> list[Sentence]:
    """The hit with its heading, where there is room for it, then with what is before and after it, in turn; never past
    the headings of its section."""
    if is_heading(hit.text):
        return _section(hit, neighbours, room)
    around = neighbours(hit.sentence_id, _REACH, _REACH)
    lo = hi = next(i for i, sentence in enumerate(around) if sentence.sentence_id == hit.sentence_id)
    headings = [i for i, sentence in enumerate(around) if is_heading(sentence.text)]
    first = max((i for i in headings if i < lo), default=None)
    end = min((i for i in headings if i > hi), default=len(around))
    if first is not None and around[hi].token_hi - around[first].token_lo <= room:
        lo = first
    while True:
        before = around[lo - 1] if lo > (first or 0) else None
        after = around[hi + 1] if hi + 1 < end else None
        taken = False
        if after is not None and after.token_hi - around[lo].token_lo <= room:
            hi, taken = hi + 1, True
        if before is not None and around[hi].token_hi - before.token_lo <= room:
            lo, taken = lo - 1, True
        if not taken:
            return around[lo : hi + 1]


def _section(heading: Sentence, neighbours: Neighbours, room: int) -> list[Sentence]:
    """A heading and what follows it up to the next one; headings that follow at once are part of it."""
    section, in_body = [heading], False
    for sentence in neighbours(heading.sentence_id, 0, _SECTION_REACH)[1:]:
        title = is_heading(sentence.text)
        if (in_body and title) or sentence.token_hi - heading.token_lo > room:
            break
        in_body = in_body or not title
        section.append(sentence)
    return section


def _merge(spans: list[tuple[list[Sentence], Judged]]) -> list[Passage]:
    """Overlapping or touching spans of one source become one passage, ranked as the better of the two."""
    merged: list[tuple[dict[int, Sentence], Judged]] = []
    for span, hit in spans:
        sentences = {sentence.sentence_id: sentence for sentence in span}
        for known, _ in merged:
            touches = sentences.keys() & ({i + 1 for i in known} | {i - 1 for i in known} | known.keys())
            if touches and _same_source(span[0], next(iter(known.values()))):
                known.update(sentences)
                break
        else:
            merged.append((sentences, hit))
    return [_passage([sentences[i] for i in sorted(sentences)], hit) for sentences, hit in merged]


def _same_source(one: Sentence, other: Sentence) -> bool:
    return (one.session_id, one.source) == (other.session_id, other.source)


def _passage(sentences: Sequence[Sentence], best: Judged) -> Passage:
    first, last = sentences[0], sentences[-1]
    text = _joined(sentences).decode("utf-8", errors="replace")
    return Passage(first.session_id, first.session, first.source, first.token_lo, last.token_hi, text.strip(), best)


def _joined(sentences: Sequence[Sentence]) -> bytes:
    """Their text; where template tokens stand between two, another message begins, on a line of its own."""
    text = sentences[0].raw
    for before, sentence in pairwise(sentences):
        is_apart = sentence.token_lo > before.token_hi and not before.raw.endswith(b"\n")
        text += b"\n" * is_apart + sentence.raw
    return text
