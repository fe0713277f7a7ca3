"""What was said later overrules what was said before: hits of conversations in the order in which to believe them.

Knows roles, order and words of judged hits; knows no KV and no model. Documents overrule nothing and are never moved
back, unless what stands before them merely asks.
"""

from __future__ import annotations

from collections.abc import Sequence

from livingkv.answer_check import content_words
from livingkv.confidence import TIE
from livingkv.passages import Judged
from livingkv.question_signs import is_question

UPDATE_TIE = 1.0
"""A user's later words overrule earlier ones that rank higher by less: two ways of saying one fact rank apart, too."""


LEAST_COVERAGE = 0.75
"""What overrules holds at least this much of what the overruled holds of the question, by weight: "My sister lives in
Leeds" is no news of where I live."""


def newest_first(question: str, judged: Sequence[Judged]) -> list[Judged]:
    """The hits, best first; before the best one what overrules it, the newest.

    A hit overrules the best one if it holds all words of the question that the best one holds, and there is one, and it
    is a statement of the user's that is newer than the user's, or one beside an assistant's words of about the same
    rank, or any statement where the best hit is a question that was asked before. The others keep their order.
    """
    if not judged or judged[0].gain is None:
        return list(judged)
    asked, first = content_words(question), judged[0]
    held = asked & content_words(first.sentence.text)
    rivals = [
        hit
        for hit in judged[1:]
        if held and held <= content_words(hit.sentence.text) and _overrules(hit, first) and not _asks(hit)
    ]
    if not rivals:
        return list(judged)
    newest = max(rivals, key=lambda hit: hit.sentence.sentence_id)
    return [newest, *(hit for hit in judged if hit is not newest)]


def _overrules(hit: Judged, first: Judged) -> bool:
    behind = first.rank_score - hit.rank_score
    if hit.gain is None or hit.sentence.role not in ("user", "document"):
        return False
    if _asks(first):
        return True
    if hit.sentence.role != "user":
        return False
    if first.sentence.role == "assistant":
        return behind < TIE
    is_later = hit.sentence.sentence_id > first.sentence.sentence_id
    is_as_near = behind < UPDATE_TIE and hit.coverage >= LEAST_COVERAGE * first.coverage
    return first.sentence.role == "user" and is_later and is_as_near


def _asks(hit: Judged) -> bool:
    return hit.sentence.role == "user" and is_question(hit.sentence.text)
