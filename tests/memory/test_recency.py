"""What overrules what: the newer value of a fact, a statement a question, the user the assistant; and what does not."""

from __future__ import annotations

from livingkv.passages import COVERAGE_NATS, Judged
from livingkv.recency import newest_first
from livingkv.store import Sentence
from livingkv.store.rows import Role


def hit(number: int, text: str, rank: float, role: Role = "user", coverage: float = 0.0) -> Judged:
    sentence = Sentence(number, 1, "talk", 0, 1, number * 10, number * 10 + 5, "chat", role, text.encode())
    return Judged(sentence, 1.0, None, None, coverage, rank - COVERAGE_NATS * coverage)


def order(question: str, *hits: Judged) -> list[int]:
    return [each.sentence.sentence_id for each in newest_first(question, hits)]


LIVE = "Where do I live?"


def test_the_newest_of_near_ties_about_the_same_comes_first() -> None:
    old, new = hit(3, "I live in Graz.", 2.3), hit(9, "I have moved, I live in Porto now.", 2.1)
    newest, other = hit(12, "Since May we live in Ghent.", 1.9), hit(20, "I like tea.", 1.8)
    assert order(LIVE, old, new) == [9, 3]
    assert order(LIVE, old, new, newest, other) == [12, 3, 9, 20]


def test_nothing_older_and_nothing_far_behind_overrules() -> None:
    assert order(LIVE, hit(9, "I live in Porto.", 2.3), hit(3, "I live in Graz.", 2.2)) == [9, 3]
    assert order(LIVE, hit(3, "I live in Graz.", 3.4), hit(9, "I live for the moment.", 2.2)) == [3, 9]


def test_another_fact_is_no_update() -> None:
    sister, brother = hit(3, "My sister lives in Leeds.", 2.0), hit(9, "My brother lives in Graz.", 1.9)
    assert order("Where does my sister live?", sister, brother) == [3, 9]
    assert order("Where do my sister and my brother live?", sister, brother) == [3, 9]


def test_what_holds_less_of_the_question_is_no_update() -> None:
    mine = hit(3, "I live in Graz.", 2.3, coverage=0.45)
    assert order(LIVE, mine, hit(9, "My sister lives in Leeds.", 1.6, coverage=0.23)) == [3, 9]
    assert order(LIVE, mine, hit(9, "I live in Leeds now.", 1.6, coverage=0.4)) == [9, 3]


def test_documents_overrule_no_one() -> None:
    told, read = hit(3, "I live in Graz.", 2.3), hit(9, "People live in Porto.", 2.2, "document")
    assert order(LIVE, told, read) == [3, 9]
    assert order(LIVE, hit(3, "They live in Graz.", 2.3, "document"), hit(9, "I live in Porto.", 2.2)) == [3, 9]


def test_a_statement_overrules_a_question_that_was_asked_before() -> None:
    asked = hit(9, "What is the name of my dog?", 6.0)
    assert order("What is the name of my dog?", asked, hit(3, "My dog is called Rex.", 3.0)) == [3, 9]
    assert order("What is the name of my dog?", asked, hit(3, "My cat is called Tom.", 3.0)) == [9, 3]
    assert order("What is the name of my dog?", asked, hit(11, "Is my dog called Rex?", 3.0)) == [9, 11]
    assert order("What is my dog called?", asked, hit(3, "The dog is called Rex.", 3.0, "document")) == [3, 9]


def test_the_user_is_believed_before_the_assistant_where_they_are_close() -> None:
    guessed, told = hit(9, "Your dog is called Max.", 3.0, "assistant"), hit(3, "My dog is called Rex.", 2.8)
    assert order("What is my dog called?", guessed, told) == [3, 9]
    assert order("What is my dog called?", guessed, hit(3, "My dog is called Rex.", 2.0)) == [9, 3]


def test_what_was_not_judged_stays() -> None:
    lost = Judged(hit(3, "I live in Graz.", 0.0).sentence, 1.0, None, None, 0.5)
    assert newest_first(LIVE, [lost]) == [lost] and newest_first(LIVE, []) == []
    assert order("What?", hit(3, "What?", 1.0), hit(9, "Rex.", 0.9)) == [3, 9]
