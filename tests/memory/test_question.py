"""What a question asks by: names, and whether it asks about everything."""

from __future__ import annotations

import pytest

from livingkv.question import asks_about_all, held_names, identifiers_in, names_held, names_in, with_list_request


@pytest.mark.parametrize(
    ("question", "names"),
    [
        ("What is the special magic number for lonely-rocket?", [("lonely-rocket",)]),
        ("When does Ida Mercer come to Graz?", [("Ida", "Mercer"), ("Graz",)]),
        ("Which pet does Petra Fisk's mother keep?", [("Petra", "Fisk")]),
        ("Is tenantId set in config.yaml?", [("tenantId",), ("config.yaml",)]),
        ("Which commit is 9f3c2ab?", [("9f3c2ab",)]),
        ("Кто живёт с Анной Ивановой?", [("Анной", "Ивановой")]),
        ("how much does the heating need in winter?", []),
        ("Who knows the password? Does anyone?", []),
        ("鍵はどこにありますか", []),
        ("", []),
    ],
)
def test_names_are_found(question: str, names: list[tuple[str, ...]]) -> None:
    found = names_in(question)
    assert [name.words for name in found] == names
    assert all(question[name.lo : name.hi].split() == list(name.words) for name in found)


def test_a_name_must_stand_whole_in_one_sentence() -> None:
    names = names_in("Where is the office of Zeno Elm?")
    assert names_held(names, ["Zeno Elm sits in B12."]) == 1.0
    assert names_held(names, ["Zeno Grove sits in B12.", "Karl Elm sits in C7."]) == 0.5
    assert names_held(names, ["Nobody sits there."]) == 0.0
    assert names_held(names, []) == 0.0


def test_a_joined_name_must_be_there_whole_and_an_inflected_word_may_end_otherwise() -> None:
    assert names_held(names_in("and odd-spoon?"), ["A number for odd-anvil and quick-spoon."]) == 0.0
    assert names_held(names_in("and odd-spoon?"), ["A number for Odd-Spoon is: 5."]) == 1.0
    assert names_held(names_in("Что знает Анной?"), ["Анна знает всё."]) == 1.0


def test_without_names_nothing_is_missing() -> None:
    assert names_held(names_in("what is it?"), []) == 1.0


@pytest.mark.parametrize(
    ("question", "about_all"),
    [
        ("How many apples did Ann buy?", True),
        ("List all the people who came.", True),
        ("What is the total number of doors?", True),
        ("Wie viele Leute kamen?", True),
        ("Combien d'enfants y a-t-il ?", True),
        ("会议有多少人?", True),
        ("What are all the special magic numbers for odd-spoon?", True),
        ("Find all variables that are assigned the value 12345.", True),
        ("What are the 10 most common words in the list?", True),
        ("Welches Wort kommt am häufigsten vor?", True),
        ("Перечисли всех гостей", True),
        ("すべての鍵を挙げて", True),
        ("Could you list every door?", True),
        ("What is the name of the list of all doors?", False),
        ("Is it true that all doors are red?", False),
        ("When did he find the key after all?", False),
        ("How old is Ann?", False),
        ("What did they list?", False),
        ("Which door is red?", False),
    ],
)
def test_questions_about_everything_are_recognised(question: str, about_all: bool) -> None:
    assert asks_about_all(question) is about_all


def test_names_of_a_sentence_and_identifiers_in_it() -> None:
    names = names_in("And Ida Mercer in Graz?")
    assert held_names(names, "Ida Mercer sings.") == {names[0]}
    assert held_names(names, "Ida sings in Graz.") == {names[1]}
    found = identifiers_in("VAR FGHIJ = VAR abcDe, see ref-14 of Graz and I.")
    assert [name.words for name in found] == [("VAR",), ("FGHIJ",), ("VAR",), ("abcDe",), ("ref-14",)]


def test_a_list_is_asked_for_alone_where_the_question_is_english() -> None:
    assert with_list_request("Name all doors.") == "Name all doors. Answer with the list alone."
    for other in ("How many doors are there?", "Nenne alle Türen.", "Which door is red?"):
        assert with_list_request(other) == other
