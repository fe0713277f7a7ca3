"""Living weights: how warm sentences are, from when and how often they were recalled.

A weight halves with every half-life and grows by 1 at each recall; the decay is worked out when a weight is read, so
that a recall writes only the rows of what it used. Knows weights and time; refuses to know what cold means for pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import nlargest

from livingkv.store.catalog import Changes
from livingkv.store.items import Weight
from livingkv.store.rows import SentenceWeight
from livingkv.store.snapshot import Snapshot

HALF_LIFE_S = 7 * 86400.0


def decayed(item: Weight, now_ms: int, half_life_s: float) -> float:
    """The weight now. A clock that went backwards leaves it as it was."""
    age_s = max(0, now_ms - item.recalled_ms) / 1000
    return float(item.weight * 0.5 ** (age_s / half_life_s))


def recharge(changes: Changes, sentence_ids: Iterable[int], now_ms: int, half_life_s: float) -> None:
    """Count one recall of each sentence."""
    for sentence_id in set(sentence_ids):
        old = changes.weight(sentence_id) or Weight(0.0, now_ms, 0)
        weight = decayed(old, now_ms, half_life_s) + 1.0
        changes.put_weight(sentence_id, Weight(weight, max(now_ms, old.recalled_ms), old.hits + 1))


def all_weights(snapshot: Snapshot, now_ms: int, half_life_s: float) -> Iterable[SentenceWeight]:
    """Every sentence that was recalled."""
    for sentence_id, item in snapshot.weights():
        yield SentenceWeight(sentence_id, decayed(item, now_ms, half_life_s), item.recalled_ms / 1000, item.hits)


def weights_of(
    snapshot: Snapshot, sentence_ids: Iterable[int], now_ms: int, half_life_s: float
) -> Iterable[SentenceWeight]:
    """These sentences, without those that were never recalled."""
    for sentence_id in sentence_ids:
        item = snapshot.weight(sentence_id)
        if item is not None:
            yield SentenceWeight(sentence_id, decayed(item, now_ms, half_life_s), item.recalled_ms / 1000, item.hits)


def hottest(snapshot: Snapshot, limit: int, now_ms: int, half_life_s: float) -> list[SentenceWeight]:
    """The warmest sentences, warmest first."""
    return nlargest(
        limit, all_weights(snapshot, now_ms, half_life_s), key=lambda each: (each.weight, -each.sentence_id)
    )
