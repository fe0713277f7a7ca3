"""Two rankings into one.

Knows ranks, weights and how much of the question the words explain; knows nothing of how the rankings came about.
"""

from __future__ import annotations

from collections.abc import Sequence

from livingkv.index.background import Spread
from livingkv.index.hits import Found, Hit

RANK_OFFSET = 1
SEMANTIC_WEIGHT = 0.25
"""Of the semantic channel where too few sentences are there to say how far its first hit stands out."""

WEIGHT_OF_SALIENCE = 0.05
"""Of the semantic channel, for each standard deviation by which its first hit stands above sentences at large."""


def fuse(
    lexical: Sequence[Found], semantic: Sequence[Found], *, lexical_share: float, spread: Spread, limit: int
) -> list[Hit]:
    """The best `limit` of both by weighted reciprocal ranks, ties by sentence id.

    A sentence scores lexical_share / (1 + rank) in the lexical channel and weight / (1 + rank) in the semantic one
    (Cormack, Clarke and Buettcher, Reciprocal Rank Fusion, 2009). `lexical_share`, 0..1, is how much of the question's
    telling words the best lexical hit holds: where hardly a word is shared, meaning decides. The weight of meaning is
    how far its best hit stands out of the `spread` of the question's cosines, whatever the embedder's scale. The usual
    offset of 60 and constant weights lose sure lexical hits here; experiments/002_retrieval and 015_retrieval have the
    numbers.
    """
    saliences = [spread.salience(one.score) for one in semantic]
    first = saliences[0] if saliences else None
    weight = SEMANTIC_WEIGHT if first is None else WEIGHT_OF_SALIENCE * max(0.0, first)
    ranked: dict[int, dict[str, tuple[int, Found]]] = {}
    for channel, found in (("lexical", lexical), ("semantic", semantic)):
        for rank, one in enumerate(found, 1):
            ranked.setdefault(one.sentence_id, {})[channel] = (rank, one)
    hits = [_hit(channels, lexical_share, weight, saliences) for channels in ranked.values()]
    return sorted(hits, key=lambda hit: (-hit.score, hit.sentence_id))[:limit]


def _hit(
    channels: dict[str, tuple[int, Found]], lexical_share: float, weight: float, saliences: Sequence[float | None]
) -> Hit:
    lexical_rank, lexical = channels.get("lexical", (None, None))
    semantic_rank, semantic = channels.get("semantic", (None, None))
    found = lexical or semantic
    assert found is not None
    score = lexical_share / (RANK_OFFSET + lexical_rank) if lexical_rank else 0.0
    score += weight / (RANK_OFFSET + semantic_rank) if semantic_rank else 0.0
    return Hit(
        sentence_id=found.sentence_id,
        session_id=found.session_id,
        score=score,
        lexical=lexical.score if lexical else None,
        semantic=semantic.score if semantic else None,
        lexical_rank=lexical_rank,
        semantic_rank=semantic_rank,
        salience=saliences[semantic_rank - 1 if semantic_rank else -1] if saliences else None,
    )
