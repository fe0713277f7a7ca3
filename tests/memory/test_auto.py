"""The order in which auto tries ways of reading, and what it does with answers that do not convince."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import livingkv.asking
from livingkv import Memory, Settings
from livingkv.auto import MOST_SENTENCES, Way, ways
from livingkv.passages import Judged
from livingkv.question import names_in
from livingkv.results import NOT_STORED
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
        monkeypatch.setattr(livingkv.asking, "ways", noted)
        monkeypatch.setattr(livingkv.asking, "CONFIDENT", 2.0)
        answer = memory.ask("What is the code of door 17?", max_tokens=6)
        assert memory._home.store().hottest(5) == []
    assert [way.mode for way in tried] == ["kv", "ground", "ground", "ground"]
    assert answer.answer == NOT_STORED and not answer.confident and answer.mode == "extract"
    assert answer.evidence and "does not follow" in answer.reason
