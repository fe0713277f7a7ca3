"""Two rankings into one.

Knows ranks and weights, and nothing of how the rankings came about.
"""

from __future__ import annotations

from collections.abc import Sequence

from livingkv.index.hits import Found, Hit

RANK_OFFSET = 60
LEXICAL_WEIGHT = 1.0
SEMANTIC_WEIGHT = 0.5


def fuse(lexical: Sequence[Found], semantic: Sequence[Found], *, limit: int) -> list[Hit]:
    """The best `limit` of both by weighted reciprocal ranks, ties by sentence id.

    A sentence scores weight / (60 + rank) in each channel that found it (Cormack, Clarke and Buettcher, Reciprocal Rank
    Fusion, 2009). The weights are measured in experiments/002_retrieval.
    """
    ranked: dict[int, dict[str, tuple[int, Found]]] = {}
    for channel, found in (("lexical", lexical), ("semantic", semantic)):
        for rank, one in enumerate(found, 1):
            ranked.setdefault(one.sentence_id, {})[channel] = (rank, one)
    hits = [_hit(channels) for channels in ranked.values()]
    return sorted(hits, key=lambda hit: (-hit.score, hit.sentence_id))[:limit]


def _hit(channels: dict[str, tuple[int, Found]]) -> Hit:
    lexical_rank, lexical = channels.get("lexical", (None, None))
    semantic_rank, semantic = channels.get("semantic", (None, None))
    found = lexical or semantic
    assert found is not None
    score = LEXICAL_WEIGHT / (RANK_OFFSET + lexical_rank) if lexical_rank else 0.0
    score += SEMANTIC_WEIGHT / (RANK_OFFSET + semantic_rank) if semantic_rank else 0.0
    return Hit(
        sentence_id=found.sentence_id,
        session_id=found.session_id,
        score=score,
        lexical=lexical.score if lexical else None,
        semantic=semantic.score if semantic else None,
        lexical_rank=lexical_rank,
        semantic_rank=semantic_rank,
    )
