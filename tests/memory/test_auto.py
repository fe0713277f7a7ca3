"""The order in which auto tries ways of reading, and what it does with answers that do not convince."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import livingkv.asking
import livingkv.auto_answer
from livingkv import Memory, Settings
from livingkv.asking import Asking
from livingkv.auto import MOST_SENTENCES, Way, ways, ways_for_all
from livingkv.auto_answer import Auto
from livingkv.confidence import CONFIDENT
from livingkv.errors import InputError
from livingkv.generation import Generated
from livingkv.naming import Named
from livingkv.passages import Judged
from livingkv.question import asks_for_a_number, names_in, tells_a_number
from livingkv.results import NOT_STORED, Answer
from livingkv.sampling import Sampling
from livingkv.store import Sentence
from tests.tiny import tiny_model

MODEL = tiny_model("qwen2")
SETTINGS = Settings(window_tokens=256, block_tokens=64, commit_tokens=128, n_candidates=4)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(40)).encode()


def hit(number: int, text: str, gain: float | None = 1.0, coverage: float = 0.5) -> Judged:
    sentence = Sentence(number, 1, "default", 0, 1, number * 10, number * 10 + 5, "notes", "document", text.encode())
    return Judged(sentence, 1.0, None, None, coverage, gain)


def test_one_passage_is_read_from_stored_kv_first_and_more_is_read_again_after_it() -> None:
    hits = [hit(i, f"sentence {i}", 3.0 - i) for i in range(6)]
    first, alone, second, third = ways(hits, ())
    assert (alone.mode, alone.hits, alone.grown) == ("ground", (hits[0],), False)
    assert (first.mode, first.hits, first.grown) == ("kv", (hits[0],), True)
    assert (second.mode, second.hits, second.grown) == ("ground", tuple(hits[:4]), False)
    assert (third.mode, third.hits, third.grown) == ("ground", tuple(hits[:2]), True)


def test_a_question_about_several_names_recalls_a_sentence_for_each() -> None:
    hits = [hit(0, "odd-spoon is 5"), hit(1, "red-door is 6", 0.9), hit(2, "blue-gate is 7", 0.8)]
    first, *_ = ways(hits, names_in("what are odd-spoon and blue-gate?"))
    assert first.mode == "ground" and first.hits[:2] == (hits[0], hits[2])


def test_a_list_is_read_again_then_from_stored_kv_and_a_chain_is_only_read_again() -> None:
    hits, names = (hit(0, "odd-spoon is 5"), hit(1, "odd-spoon is 6")), names_in("all of odd-spoon?")
    first, second = ways_for_all(Named(hits, names, 2))
    assert (first.mode, first.hits, first.grown) == ("ground", hits, False)
    assert (second.mode, second.hits, second.grown) == ("kv", hits, False)
    assert [way.mode for way in ways_for_all(Named(hits, names, 2, is_chain=True))] == ["ground"]


def test_near_ties_are_read_together_up_to_a_limit() -> None:
    hits = [hit(i, f"sentence {i}", 1.0) for i in range(MOST_SENTENCES + 4)]
    together = [way for way in ways(hits, ()) if way.mode == "ground" and not way.grown]
    assert [len(way.hits) for way in together] == [1, MOST_SENTENCES]


@pytest.mark.parametrize("hits", [[], [hit(0, "x", None)], [hit(0, "x", 0.05, 0.02)]])
def test_nothing_is_tried_where_nothing_is_worth_it(hits: list[Judged]) -> None:
    assert list(ways(hits, ())) == []


def test_the_first_convincing_answer_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT)
        monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
        answer = memory.ask("What is the code of door 17?", max_tokens=6, on_text=told.append)
    assert answer.confident and answer.mode == "kv" and "nothing is read again" in answer.reason
    assert told == [answer.answer] and answer.reused_tokens > 20
    assert answer.timings_ms.first_token <= answer.timings_ms.total


def test_what_does_not_convince_is_not_answered_and_recharges_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[Way] = []

    def noted(hits: list[Judged], names: tuple[str, ...]) -> Iterator[Way]:
        for way in ways([replace(each, gain=1.0) for each in hits], ()):
            tried.append(way)
            yield way

    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT)
        monkeypatch.setattr(livingkv.auto_answer, "ways", noted)
        monkeypatch.setattr(livingkv.asking, "CONFIDENT", 2.0)
        answer = memory.ask("What is the code of door 17?", max_tokens=6)
        assert memory._home.store().hottest(5) == []
    assert [way.mode for way in tried] == ["kv", "ground", "ground", "ground"]
    assert answer.answer == NOT_STORED and not answer.confident and answer.mode == "extract"
    assert answer.evidence and "does not follow" in answer.reason


LISTS = TEXT + b"The other code of door 17 is 4711.\n\n"


def test_a_list_is_answered_from_every_sentence_with_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=LISTS)
        monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
        monkeypatch.setattr(livingkv.auto_answer, "taken_share", lambda *_: 1.0)
        answer = memory.ask("What are all the codes of door 17?", max_tokens=4)
    assert answer.mode == "ground" and "all 3 sentences with 17" in answer.reason
    assert {text for found in answer.evidence for text in ("1119", "4711", "room 17") if text in found.text} == {
        "1119",
        "4711",
        "room 17",
    }


class _Said:
    """Answers that are what a way of reading is told to give."""

    def __init__(self, by_mode: dict[str, str]) -> None:
        self._by_mode = by_mode

    def __call__(self, auto: Auto, way: Way) -> Answer:
        auto.asking.generated = Generated((), (), self._by_mode[way.mode], "stop")
        answer = auto._abstain(way.reason)
        return replace(answer, answer=self._by_mode[way.mode], mode=way.mode, confident=True, confidence=0.9)


@pytest.mark.parametrize(
    ("said", "mode", "reason"),
    [
        ({"ground": "1119 and 4711", "kv": "never asked"}, "ground", "all 2"),
        ({"ground": "1119", "kv": "1119, 4711"}, "kv", "all 2"),
        ({"ground": "1119", "kv": "4711"}, "ground", "50% of them"),
    ],
)
def test_a_list_that_leaves_sentences_out_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: dict[str, str], mode: str, reason: str
) -> None:
    text = b"The code of door-17 is 1119.\n\nThe other code of door-17 is 4711.\n\nNobody is here.\n\n"
    asked: list[Auto] = []

    def read(auto: Auto, way: Way) -> Answer:
        asked.append(auto)
        return _Said(said)(auto, way)

    monkeypatch.setattr(Auto, "_read_way", read)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=text)
        answer = memory.ask("What are all the codes of door-17?", max_tokens=4)
    assert (answer.answer, answer.mode) == (said[mode], mode) and answer.confident
    generated = asked[-1].asking.generated  # what a chat would make the assistant's turn
    assert generated is not None and generated.text == said[mode]
    assert reason in answer.reason


PETS = b"The cat is Admiral.\n\nThe parrot is Biscuit.\n\nNobody is here.\n\n"


@pytest.mark.parametrize(
    ("said", "is_given"), [("Admiral and Biscuit", True), ("The cat is Admiral.", False), ("It is Biscuit.", False)]
)
def test_a_question_about_two_things_is_answered_for_both_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, is_given: bool
) -> None:
    monkeypatch.setattr(Auto, "_read_way", lambda auto, way: _Said({"ground": said})(auto, way))
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("pets", text=PETS)
        answer = memory.ask("What are my cat and my parrot called?", max_tokens=4)
    assert answer.confident is is_given and answer.answer == (said if is_given else NOT_STORED)
    assert ("two things" if is_given else said) in answer.reason


def test_what_a_question_without_names_asks_about_has_to_be_recalled(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("pets", text=PETS)
        held = []
        for question in (
            "What is the parrot?",
            "What is the horse?",
            "What is the horse with the parrot?",
            "Is a cat a parrot?",
        ):
            asking = Asking(memory._home, question)
            probed = asking.probe(None)
            passages = asking.passages(asking.judge(probed), grown=False)
            asking.read("ground", probed, passages, 4, Sampling(), (), None, "")
            assert asking.signs is not None
            held.append(asking.signs.names)
    assert held == [1.0, 0.0, 0.5, 0.5]  # the cat and the parrot are in two passages


def test_what_asks_about_everything_is_attended_whole_and_never_sure(tmp_path: Path) -> None:
    told: list[str] = []
    with Memory.open(tmp_path / "s", model=MODEL, settings=replace(SETTINGS, window_tokens=128)) as memory:
        memory.ingest("doors", text=TEXT[:2500])
        answer = memory.ask("What are the 3 most common words?", max_tokens=4, on_text=told.append)
        assert memory._home.store().hottest(5) == []
    assert answer.mode == "ground" and not answer.confident and 0.0 <= answer.confidence < CONFIDENT
    assert answer.prefilled_tokens > 600 and told == [answer.answer] and answer.answer != NOT_STORED
    assert "the whole session was read again" in answer.reason and answer.evidence == ()


def test_what_would_take_too_long_to_read_again_is_attended_from_stored_kv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=replace(SETTINGS, window_tokens=128)) as memory:
        memory.ingest("doors", text=TEXT[:2500])
        monkeypatch.setattr(livingkv.auto_answer, "against_reading", lambda *_: "it would take about 99 s here")
        answer = memory.ask("What are the 3 most common words?", max_tokens=4)
    assert answer.mode == "exact" and not answer.confident and 0.0 <= answer.confidence < CONFIDENT
    assert answer.reused_tokens > 600 and answer.answer != NOT_STORED
    assert "the whole session was attended" in answer.reason


@pytest.mark.parametrize(
    ("limit_s", "n_copies", "reason"),
    [(0.0, 1, "exact_limit_s is 0"), (1e-6, 1, "it would take up to"), (60.0, 3, "more than the 2,048")],
)
def test_what_mode_exact_may_not_be_used_for_is_said(
    tmp_path: Path, limit_s: float, n_copies: int, reason: str
) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=replace(SETTINGS, exact_limit_s=limit_s)) as memory:
        memory.ingest("doors", text=TEXT * n_copies if n_copies > 1 else TEXT[:2500])
        answer = memory.ask("How many doors are there in all?", max_tokens=4)
    assert answer.answer == NOT_STORED and not answer.confident and answer.evidence
    assert "recall of passages cannot answer; mode exact would" in answer.reason and reason in answer.reason


def test_one_of_several_sessions_has_to_be_named(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT[:2500])
        memory.ingest("doors", text=TEXT[:1200], session="other", kv=False)
        answer = memory.ask("How many doors are there in all?", max_tokens=4)
        assert answer.answer == NOT_STORED and "one session has to be named" in answer.reason
        assert memory.ask("How many doors are there in all?", session="default", max_tokens=4).mode == "ground"


def test_names_held_by_more_than_the_budget_are_about_everything(tmp_path: Path) -> None:
    text = "".join(f"Ida Mercer opened door {i}.\n\n" for i in range(20)).encode()
    with Memory.open(tmp_path / "s", model=MODEL, settings=replace(SETTINGS, recall_tokens=64)) as memory:
        memory.ingest("doors", text=text)
        answer = memory.ask("List all the doors that Ida Mercer opened", max_tokens=4)
    assert answer.mode == "ground" and "about Ida Mercer" in answer.reason


@pytest.mark.parametrize("limit", [-1, True, "60", 1e9, float("nan")])
def test_the_limit_of_exact_is_checked(limit: float) -> None:
    with pytest.raises(InputError, match="exact_limit_s"):
        Settings(exact_limit_s=limit)


def test_a_number_that_a_passage_states_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT[:2500])
        monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
        monkeypatch.setattr(livingkv.auto_answer, "tells_a_number", lambda _: True)
        stated = memory.ask("How many doors does nobody remember?", max_tokens=4)
        summed = memory.ask("How many doors are there in all?", max_tokens=4)
    assert stated.confident and stated.evidence and "everything" not in stated.reason
    assert not summed.confident and "asks about all that is stored" in summed.reason


@pytest.mark.parametrize(
    ("question", "expected"),
    [
        ("How many ribs are cracked?", True),
        ("Wie viele Rippen sind gebrochen?", True),
        ("How many ribs are there in total?", False),
        ("List all ribs", False),
        ("What are the three most common words?", False),
        ("Who has cracked the rib?", False),
    ],
)
def test_a_number_may_be_stated(question: str, expected: bool) -> None:
    assert asks_for_a_number(question) is expected


@pytest.mark.parametrize(
    "question",
    ["How many lamps did Anna-Berg buy in total?", "How many lamps did Anna-Berg buy?"],
)
def test_a_count_about_a_name_that_several_sentences_hold_is_never_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    text = b"Anna-Berg bought 12 lamps in May.\n\nAnna-Berg bought 7 lamps in June.\n\nAnna-Berg lives here.\n\n"
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("lamps", text=text)
        answer = memory.ask(question, max_tokens=4)
    assert not answer.confident and "asks about all that is stored" in answer.reason


def test_a_number_about_a_name_is_read_from_the_one_sentence_that_tells_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livingkv.auto_answer, "tells_a_number", lambda _: True)
    text = b"Anna-Berg bought 12 lamps in May.\n\nAnna-Berg bought a door.\n\nAnna-Berg lives here.\n\n"
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("lamps", text=text)
        answer = memory.ask("How many lamps did Anna-Berg have?", max_tokens=4)
    assert answer.confident and answer.evidence
    assert tells_a_number("12") and tells_a_number("eleven ribs") and not tells_a_number("The scones were cracked.")


def test_an_answer_without_a_number_does_not_say_how_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    monkeypatch.setattr(livingkv.auto_answer, "tells_a_number", lambda _: False)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT[:2500])
        assert not memory.ask("How many doors does nobody remember?", max_tokens=4).confident
