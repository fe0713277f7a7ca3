"""Golden terms: prose of many languages, code, numbers; and what holds for every text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.index.analysis import MAX_TERM_CHARS, Analyser, english_stem, folded, question_terms, terms
from livingkv.index.question_words import QUESTION_WORDS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parse_retry_after", {"parse_retry_after", "parse", "retry", "after"}),
        ("getUserByEmail", {"getuserbyemail", "get", "user", "by", "email"}),
        ("HTTPServerError", {"httpservererror", "http", "server", "error"}),
        ("storage/blocks.py", {"storage/blocks.py", "storage", "blocks", "py"}),
        ("a.b@example.org", {"a.b@example.org", "example", "org"}),
        ("e-mail", {"e-mail", "email", "mail"}),
        ("amber-anchor", {"amber-anchor", "amberanchor", "amber", "anchor"}),
        ("C++ and C#", {"c++", "c#"}),
        ("xxh3_64", {"xxh3_64", "xxh3", "64"}),
        ("9f3c2ab", {"9f3c2ab"}),
        ("40kg of port5432", {"40kg", "40", "kg", "port5432", "port", "5432"}),
        ("4,200 or 1,234,567.89", {"4200", "1234567.89"}),
        ("3.50 at 18:40 in v2.14.0", {"3.50", "18:40", "v2.14.0"}),
        ("2024-01-31", {"2024-01-31", "2024", "01", "31"}),
        ("٣٤٥", {"345"}),
        ("Signe's hive", {"signe", "hive"}),
        ("l'épaule", {"l'épaule", "épaule", "epaule"}),
        ("Straße ẞ", {"strasse", "ss"}),
        ("ﬁnd Ｆｕｌｌ", {"find", "full"}),
        ("京都の工場", {"京都", "都の", "の工", "工場"}),
        ("投影仪", {"投影", "影仪"}),
        ("猫", {"猫"}),
        ("소포를", {"소포를", "소포", "포를"}),
        ("ไปกำ", {"ไป", "กํา"}),  # NFKC takes the vowel apart
        ("किस्त", {"किस्त"}),
        ("numbers boxes stories stopped making", {"~number", "~box", "~story", "~stop", "~mak"}),
        ("встречу", {"встречу", "^встр"}),
        ("Piekarnię", {"piekarnię", "piekarnie", "^piek"}),
    ],
)
def test_golden_terms(text: str, expected: set[str]) -> None:
    found = set(terms(text))
    assert expected <= found, f"{expected - found} missing in {found}"


@pytest.mark.parametrize("text", ["", " \n", "!?…", "👍🏽 👩\u200d👩\u200d👧", "\u200b"])
def test_nothing_to_find(text: str) -> None:
    assert terms(text) == []
    assert question_terms(text) == {}


@pytest.mark.parametrize(
    ("one", "other"),
    [("make", "making"), ("box", "boxes"), ("story", "stories"), ("stop", "stopped"), ("use", "uses"), ("bus", "bus")],
)
def test_forms_of_a_word_meet(one: str, other: str) -> None:
    assert english_stem(one) == english_stem(other)


def test_question_words_weigh_little_unless_they_are_all_there_is() -> None:
    weights = question_terms("What is the number of KEY?")
    assert weights["what"] < 0.3 < weights["key"] == 1.0
    assert question_terms("Who are you")["who"] == 0.2
    assert set(question_terms("where is it").values()) <= {0.2, 0.1, 1.0, 0.5}
    assert question_terms("where is it")["^wher"] == 0.1
    assert question_terms("what is what")["what"] == 1.0


def test_variants_weigh_less_than_the_word() -> None:
    weights = question_terms("numbers")
    assert weights == {"numbers": 1.0, "~number": 0.5, "^numb": 0.5}


def test_question_words_are_folded_as_terms_are() -> None:
    assert all(word == folded(word) for word in QUESTION_WORDS)


@settings(max_examples=300, deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_clean_terms(text: str) -> None:
    found = terms(text)
    assert all(term and not any(sign.isspace() for sign in term) for term in found)
    assert all(len(term) <= MAX_TERM_CHARS + 4 for term in found)
    assert set(question_terms(text)) == set(found)
    assert set(terms(text.upper().lower())) >= set() and terms(text) == found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text("abcdefXYZ0123456789éß", min_size=1, max_size=8), min_size=1, max_size=8))
def test_a_sentence_holds_the_terms_of_each_of_its_words(words: list[str]) -> None:
    whole = set(terms(" ".join(words)))
    for word in words:
        assert set(terms(word)) <= whole


@given(st.lists(st.text(max_size=60), max_size=5))
def test_an_analyser_gives_the_same_terms_for_many_texts(texts: list[str]) -> None:
    analyser = Analyser()
    for text in [*texts, *texts]:
        assert analyser.terms(text) == terms(text)
