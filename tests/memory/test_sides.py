"""Questions about two things, and the sentences that tell of each."""

from __future__ import annotations

import pytest

from livingkv.passages import Judged
from livingkv.sides import sentences_of_sides, sides_of, tells_of_both, ways_to_ask
from livingkv.store import Sentence


def hit(number: int, text: str) -> Judged:
    sentence = Sentence(number, 1, "default", 0, 1, number * 10, number * 10 + 5, "notes", "user", text.encode())
    return Judged(sentence, 1.0, None, None, 0.5, 1.0)


@pytest.mark.parametrize(
    ("question", "sides"),
    [
        ("What are my cat and my parrot called?", ["cat", "parrot"]),
        ("In which towns do my sister and my brother live?", ["sister", "brother"]),
        ("What are the codes of my office alarm and of my garage gate?", ["office alarm", "garage gate"]),
        ("How much are apples and pears?", ["apples", "pears"]),
        ("Comment s'appellent mon chat et ma perruche ?", ["chat", "perruche"]),
        ("¿Cómo se llaman mi gato y mi loro?", ["gato", "loro"]),
        ("Как зовут мою кошку и моего попугая?", ["кошку", "попугая"]),
        ("What does the roof cost, and when was it done?", []),
        ("Who is my plumber?", []),
        ("What are my blue bag and my blue bag?", []),
        ("我的猫和我的鹦鹉叫什么?", []),
        ("and what", []),
        ("and", []),
    ],
)
def test_the_two_sides_of_a_conjunction(question: str, sides: list[str]) -> None:
    found = sides_of(question)
    assert [" ".join(side.words) for side in found] == sides
    assert all(question[side.lo : side.hi] == " ".join(side.words) for side in found)


CAT, PARROT, BOTH = hit(3, "My cat is Admiral."), hit(1, "The parrot is Biscuit."), hit(5, "A cat and a parrot came.")


def test_the_best_sentence_for_each_side_in_the_order_of_the_question() -> None:
    sides = sides_of("What are my cat and my parrot called?")
    found = sentences_of_sides(sides, [PARROT, hit(2, "The dog is Pixel."), CAT, hit(4, "My parrot talks.")])
    assert found is not None and found.hits == (CAT, PARROT) and found.names == sides and found.is_whole


def test_one_sentence_with_both_or_none_for_one_makes_no_pair() -> None:
    sides = sides_of("What are my cat and my parrot called?")
    assert sentences_of_sides(sides, [CAT, BOTH, PARROT]) is None
    assert sentences_of_sides(sides, [CAT, hit(2, "The dog is Pixel.")]) is None
    assert sentences_of_sides((), [CAT]) is None


def test_a_bare_list_is_asked_for_only_where_its_order_says_what_is_whose() -> None:
    question = "What are my cat and my parrot called?"
    backwards = sentences_of_sides(sides_of(question), [CAT, PARROT])
    forwards = sentences_of_sides(sides_of(question), [CAT, hit(7, "The parrot is Biscuit.")])
    assert backwards is not None and forwards is not None
    assert ways_to_ask(question, backwards) == (question,)
    assert ways_to_ask(question, forwards) == (question, f"{question} Answer with the list alone.")
    assert ways_to_ask("mon chat et ma perruche ?", forwards) == ("mon chat et ma perruche ?",)


@pytest.mark.parametrize(
    ("answer", "is_told"),
    [
        ("Leeds, Lucerne", True),
        ("My sister lives in Leeds, my brother in Lucerne.", True),
        ("In Leeds, my sister lives in Lucerne.", False),
        ("My brother lives in Lucerne.", False),
    ],
)
def test_an_answer_that_names_one_of_two_things_is_not_whole(answer: str, is_told: bool) -> None:
    assert tells_of_both(answer, sides_of("In which towns do my sister and my brother live?")) is is_told
