"""Fusion by rank: what both channels like comes first, and a sure lexical hit is not outvoted."""

from __future__ import annotations

from livingkv.index.background import Spread
from livingkv.index.fusion import fuse
from livingkv.index.hits import Found

UNKNOWN = Spread(0, 0.0, 0.0)


def found(*sentence_ids: int) -> list[Found]:
    return [Found(sentence_id, 1, 10.0 - rank) for rank, sentence_id in enumerate(sentence_ids)]


def order(lexical: list[Found], semantic: list[Found], share: float) -> list[int]:
    return [hit.sentence_id for hit in fuse(lexical, semantic, lexical_share=share, spread=UNKNOWN, limit=10)]


def test_one_channel_keeps_its_order() -> None:
    assert order(found(3, 1, 2), [], 0.8) == [3, 1, 2]
    assert order([], found(3, 1, 2), 0.0) == [3, 1, 2]
    assert order([], [], 0.0) == []


def test_a_sure_lexical_hit_stays_first() -> None:
    assert order(found(1, 2, 3), found(2, 3, 4), 0.9)[0] == 1


def test_meaning_decides_where_few_words_are_shared() -> None:
    assert order(found(1, 2), found(9, 8), 0.1)[0] == 9


def test_hits_tell_where_they_come_from() -> None:
    first, second, third = fuse(found(1, 2), found(2, 3), lexical_share=1.0, spread=UNKNOWN, limit=3)
    assert (first.sentence_id, first.lexical_rank, first.semantic_rank) == (1, 1, None)
    assert (second.sentence_id, second.lexical, second.semantic) == (2, 9.0, 10.0)
    assert (third.sentence_id, third.lexical, third.semantic_rank) == (3, None, 2)
    assert first.score >= second.score >= third.score


def test_the_limit_holds_and_ties_go_by_id() -> None:
    hits = fuse(found(5), found(4), lexical_share=0.25, spread=UNKNOWN, limit=1)
    assert [hit.sentence_id for hit in hits] == [4]


def test_meaning_weighs_as_much_as_its_first_hit_stands_out() -> None:
    for share, deviation, first in ((0.4, 1.0, 9), (0.4, 4.0, 1), (0.9, 1.0, 1)):
        spread = Spread(1000, 0.0, deviation**2)  # the first cosine is 10, so it stands out by 10 or 2.5
        hits = fuse(found(1), found(9), lexical_share=share, spread=spread, limit=2)
        assert hits[0].sentence_id == first


def test_the_scale_of_an_embedder_changes_nothing() -> None:
    def scaled(factor: float, shift: float) -> list[tuple[int, float]]:
        semantic = [one._replace(score=one.score * factor + shift) for one in found(4, 5, 6)]
        spread = Spread(1000, 2.0 * factor + shift, factor**2)
        hits = fuse(found(5, 7), semantic, lexical_share=0.5, spread=spread, limit=9)
        assert all(hit.salience is not None for hit in hits)
        return [(hit.sentence_id, round(hit.score, 9)) for hit in hits]

    assert scaled(1.0, 0.0) == scaled(0.01, 0.8)


def test_a_hit_of_words_alone_stands_out_no_more_than_the_last_of_meaning() -> None:
    hits = fuse(found(7), found(4, 5), lexical_share=0.5, spread=Spread(1000, 0.0, 1.0), limit=9)
    assert {hit.sentence_id: hit.salience for hit in hits} == {4: 10.0, 5: 9.0, 7: 9.0}
