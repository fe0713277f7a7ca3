"""All sentences with the asked names are found, and the chains that begin in them."""

from __future__ import annotations

from collections.abc import Sequence

from livingkv.index.analysis import terms
from livingkv.naming import MOST_LED, MOST_NAMED, Named, named_sentences
from livingkv.passages import Judged
from livingkv.question import names_in
from livingkv.store import Sentence


def hits(texts: Sequence[str]) -> list[Judged]:
    """Sentences of ten tokens each, not judged."""
    rows = [
        Sentence(n, 1, "default", 0, 1, n * 10, n * 10 + 10, "notes", "document", text.encode())
        for n, text in enumerate(texts)
    ]
    return [Judged(row, 1.0, 1.0, None, 0.5) for row in rows]


def named(question: str, texts: Sequence[str], *, n_judged: int = 0, budget_tokens: int = 1000) -> Named | None:
    """What is found of these sentences; the first `n_judged` have a gain of 2."""
    every = hits(texts)
    judged = [Judged(hit.sentence, 1.0, 1.0, None, 0.5, 2.0) for hit in every[:n_judged]]

    def find(words: str, limit: int) -> list[Judged]:
        wanted = set(terms(words))
        ranked = sorted(every, key=lambda hit: -len(wanted & set(terms(hit.sentence.text))))
        return [hit for hit in ranked if wanted & set(terms(hit.sentence.text))][:limit]

    return named_sentences(names_in(question), judged, find, budget_tokens)


def texts_of(found: Named | None) -> list[str]:
    assert found is not None
    return [hit.sentence.text for hit in found.hits]


def test_every_sentence_with_the_name_is_found_and_judged_ones_stay_judged() -> None:
    texts = ["odd-spoon is 5", "red-door is 6", "odd-spoon is 7", "an odd spoon", "odd-spoon is 8"]
    found = named("What are all numbers for odd-spoon?", texts, n_judged=1)
    assert texts_of(found) == ["odd-spoon is 5", "odd-spoon is 7", "odd-spoon is 8"]
    assert found is not None and found.is_whole and found.n_found == 3 and not found.is_chain
    assert [hit.gain for hit in found.hits] == [2.0, None, None]


def test_several_names_bring_all_of_their_sentences() -> None:
    texts = ["odd-spoon is 5", "red-door is 6", "blue-gate is 7", "odd-spoon is 8"]
    found = texts_of(named("What are all numbers for odd-spoon and blue-gate?", texts))
    assert sorted(found) == ["blue-gate is 7", "odd-spoon is 5", "odd-spoon is 8"]


def test_a_sentence_that_holds_all_names_leaves_out_those_that_hold_one() -> None:
    texts = ["Ida Mercer saw Graz.", "Ida Mercer sings.", "It rains in Graz.", "Karl came by."]
    assert texts_of(named("List all that Ida Mercer saw in Graz", texts)) == texts[:1]
    assert texts_of(named("List all that Ida Mercer and Karl saw in Graz", texts)) == [texts[0], texts[3]]


def test_a_chain_is_followed_and_a_word_of_many_sentences_is_not() -> None:
    chain = ["VAR AAAAA = 30551", "VAR BBBBB = VAR AAAAA", "VAR CCCCC = VAR BBBBB", "VAR DDDDD = VAR CCCCC"]
    others = [f"VAR {letter * 5} = {i}0773" for i, letter in enumerate("MNOPQRST", 1)]
    assert len(others) > MOST_LED
    found = named("Find all variables with the value 30551. There are 4; name all 4.", [*chain, *others, "4 more."])
    assert texts_of(found) == chain
    assert (
        found is not None
        and found.is_chain
        and [name.words[0] for name in found.names] == ["30551", "AAAAA", "BBBBB", "CCCCC"]
    )


def test_the_budget_is_kept_and_said() -> None:
    texts = [f"odd-spoon is {i}" for i in range(MOST_NAMED)]
    found = named("What are all numbers for odd-spoon?", texts, budget_tokens=45)
    assert found is not None and len(found.hits) == 4 and not found.is_whole
    found = named("What are all numbers for odd-spoon?", texts, budget_tokens=10_000)
    assert found is not None and not found.is_whole, "there may be more than were looked at"


def test_a_name_that_nothing_holds() -> None:
    assert named("What are all numbers for odd-spoon?", ["red-door is 6"]) is None
    assert named("What are all numbers for odd-spoon and 7?", ["red-door is 7"]) is None
    assert texts_of(named("What are all keys for 7?", ["red-door is 7"])) == ["red-door is 7"]
