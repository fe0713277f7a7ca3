"""Fusion by rank: what both channels like comes first, and a sure lexical hit is not outvoted."""

from __future__ import annotations

from livingkv.index.fusion import fuse
from livingkv.index.hits import Found


def found(*sentence_ids: int) -> list[Found]:
    return [Found(sentence_id, 1, 10.0 - rank) for rank, sentence_id in enumerate(sentence_ids)]


def order(lexical: list[Found], semantic: list[Found], share: float) -> list[int]:
    return [hit.sentence_id for hit in fuse(lexical, semantic, lexical_share=share, limit=10)]


def test_one_channel_keeps_its_order() -> None:
    assert order(found(3, 1, 2), [], 0.8) == [3, 1, 2]
    assert order([], found(3, 1, 2), 0.0) == [3, 1, 2]
    assert order([], [], 0.0) == []


def test_a_sure_lexical_hit_stays_first() -> None:
    assert order(found(1, 2, 3), found(2, 3, 4), 0.9)[0] == 1


def test_meaning_decides_where_few_words_are_shared() -> None:
    assert order(found(1, 2), found(9, 8), 0.1)[0] == 9


def test_hits_tell_where_they_come_from() -> None:
    first, second, third = fuse(found(1, 2), found(2, 3), lexical_share=1.0, limit=3)
    assert (first.sentence_id, first.lexical_rank, first.semantic_rank) == (1, 1, None)
    assert (second.sentence_id, second.lexical, second.semantic) == (2, 9.0, 10.0)
    assert (third.sentence_id, third.lexical, third.semantic_rank) == (3, None, 2)
    assert first.score >= second.score >= third.score


def test_the_limit_holds_and_ties_go_by_id() -> None:
    hits = fuse(found(5), found(4), lexical_share=0.25, limit=1)
    assert [hit.sentence_id for hit in hits] == [4]
