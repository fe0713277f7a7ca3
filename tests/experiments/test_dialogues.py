"""The made-up dialogues: everything follows from the seed, the facts stand where the questions need them."""

from __future__ import annotations

import pytest

from experiments.dialogue_report import merged, scored
from experiments.dialogues import TYPES, DialogueQuestion, History, make_history
from experiments.systems import Answered


@pytest.fixture(scope="module")
def history() -> History:
    """One of twelve sessions."""
    return make_history(12, 150, seed=3)


def test_the_seed_decides_everything(history: History) -> None:
    assert make_history(12, 150, seed=3) == history != make_history(12, 150, seed=4)


def test_sessions_are_dialogues_of_about_the_size(history: History) -> None:
    assert len(history.sessions) == 12
    for session in history.sessions:
        roles = [message["role"] for message in session]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert 112 <= sum(len(str(message["content"]).split()) for message in session) < 400


def test_every_type_is_asked_and_its_gold_is_said_once(history: History) -> None:
    assert {question.type for question in history.questions} == set(TYPES)
    said = [str(message["content"]) for session in history.sessions for message in session]
    for question in history.questions:
        assert bool(question.gold) == (question.type != "abstention") == bool(question.expected)
        assert [sum(gold in text for text in said) for gold in question.gold] == [1] * len(question.gold)
        gold = " ".join(question.gold).casefold()
        assert all(value.casefold() in gold for value in question.expected)


def test_an_update_is_said_after_what_it_overrules(history: History) -> None:
    place = {str(m["content"]): n for n, session in enumerate(history.sessions) for m in session}
    for question in (one for one in history.questions if one.type == "update"):
        new = min(n for text, n in place.items() if question.gold[0] in text)
        old = [n for text, n in place.items() if question.outdated[0] in text]
        assert old and min(old) < new


def test_an_answer_needs_all_and_nothing_outdated() -> None:
    question = DialogueQuestion("update", "town", "Where do I live?", ("I live in Porto.",), ("Porto",), ("Graz",))
    assert question.answered_by("You live in PORTO.")
    assert not question.answered_by("From Graz to Porto.") and not question.answered_by("In Leeds.")


def test_retrieval_and_answer_are_counted_apart() -> None:
    both = DialogueQuestion("multi-session", "pets", "What are they called?", ("A is X.", "B is Y."), ("X", "Y"))
    row = scored(both, Answered("X", 5, 0.1, ("Well. A is X.", "no"), {"confident": True}))
    assert (row["right"], row["found"], row["first"], row["refused"]) == (False, 0.5, True, False)
    absent = DialogueQuestion("abstention", "horse", "What is my horse called?")
    assert scored(absent, Answered("Max.", 5, 0.1, (), {"confident": False}))["right"]
    assert scored(absent, Answered("I don't know the name of your horse.", 5, 0.1, None))["right"]
    row = scored(absent, Answered("Your horse is called Max.", 5, 0.1, None))
    assert not row["right"] and row["found"] is None


def test_only_results_of_one_plan_are_put_together() -> None:
    rows = [{"system": "auto", "type": "user", "right": right, "refused": False} for right in (True, False)]
    one, two = ({"plan": {"seed": 0}, "histories": [], "answers": [row], "end": {}} for row in rows)
    whole = merged([one, two])
    assert whole["answers"] == rows
    assert whole["summary"]["auto"]["user"] == {"n": 2, "right": 1, "wrong, not refused": 1}
    with pytest.raises(ValueError, match="different plans"):
        merged([one, {**two, "plan": {"seed": 1}}])
