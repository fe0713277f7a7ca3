"""Which ways of reading mode auto tries for what was recalled, and in which order, the cheapest first.

Knows ranks and names; reads nothing and judges no answer. A hit that stands out is read from stored KV with its
neighbours, nothing is read again. Where that does not convince, its sentence is read again, then those of the first
hits, then the passages around the best two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from livingkv.confidence import n_tied
from livingkv.naming import Named
from livingkv.passages import Judged
from livingkv.question import Name, names_held
from livingkv.results import Mode

SENTENCES = 4
"""So many sentences are read again at least, where there are as many hits."""

MOST_SENTENCES = 8
PASSAGES = 2
LEAST_GAIN = 0.1
"""Below this many nats per question token, and this share of its words, nothing is worth reading."""


class Way(NamedTuple):
    """One way of reading: the mode, the hits to recall, whether they are grown to passages, and why."""

    mode: Mode
    hits: tuple[Judged, ...]
    grown: bool
    reason: str


def ways(judged: Sequence[Judged], names: Sequence[Name]) -> Iterator[Way]:
    """What to try, the cheapest first; nothing when no hit is worth reading. Hits best first; names of the question."""
    hits = [hit for hit in judged if hit.gain is not None]
    if not hits or max(hits[0].gain or 0.0, hits[0].coverage) < LEAST_GAIN:
        return
    needed, n_ties = _for_names(hits, names), n_tied(hits)
    if len(needed) == 1:
        yield Way("kv", tuple(needed), True, "one passage answers: its stored KV is attended, nothing is read again")
        yield Way("ground", tuple(needed), False, "the best sentence is read again")
    others = [hit for hit in hits if hit not in needed]
    n = min(MOST_SENTENCES, max(SENTENCES, len(needed), n_ties))
    first = (*needed, *others)[:n]
    yield Way("ground", first, False, f"the {len(first)} best sentences are read again")
    yield Way("ground", (*needed, *others)[:PASSAGES], True, "the passages around the best hits are read again")


def ways_for_all(named: Named) -> Iterator[Way]:
    """What to try for a question that wants all about some names. Their sentences are read again first: from stored KV
    a small model lists two of four. Sentences that lead from one to the next are only read again: their stored KV does
    not know of one another."""
    which = f"all {len(named.hits)} sentences with {', '.join(' '.join(name.words) for name in named.names)}"
    yield Way("ground", named.hits, False, f"{which} are read again")
    if not named.is_chain:
        yield Way("kv", named.hits, False, f"{which}: their stored KV is attended, nothing is read again")


def _for_names(hits: Sequence[Judged], names: Sequence[Name]) -> list[Judged]:
    """The best hit, and for every name that it does not hold the best hit that does."""
    needed = [hits[0]]
    for name in names:
        if names_held([name], [hit.sentence.text for hit in needed]) < 1.0:
            needed.extend([hit for hit in hits if names_held([name], [hit.sentence.text]) == 1.0][:1])
    return needed
