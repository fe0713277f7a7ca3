"""The same questions cold, with the text read afresh and nothing stored, and from restored KV: the scores agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv import Memory
from livingkv.engine import Engine
from livingkv.generation import collect
from livingkv.models import LoadedModel
from livingkv.recall import QUESTION_LEAD
from livingkv.sampling import Sampler, Sampling
from tests.model.conftest import NOTES

pytestmark = pytest.mark.model

TOLERANCE = 0
"""How many questions fewer than cold may be answered right from restored KV."""

NEEDLES = {
    "What is the number of the blue locker?": ("The number of the blue locker is 7315.", "7315"),
    "Where did the Halcyon leave for?": ("On Sunday the Halcyon left for Aldermere.", "Aldermere"),
    "How many lanterns are in the chapel?": ("There are 43 lanterns in the chapel.", "43"),
}
MAX_TOKENS = 24
STOP = (".",)


def haystack() -> bytes:
    """The beginning of an example note with a needle behind every second paragraph."""
    paragraphs = (NOTES / "1-monday.md").read_text("utf-8").split("\n\n")[:6]
    for place, (needle, _) in enumerate(NEEDLES.values(), 1):
        paragraphs.insert(3 * place - 1, needle)
    return "\n\n".join(paragraphs).encode()


def cold_answers(engine: Engine, text: str) -> dict[str, str]:
    """Plain attention over the text, read for this; no page, no codec, no store."""
    words = engine.words
    ids = [*words.framing.prologue, *words.encode(text)]
    read = engine.workspace(len(ids))
    engine.runner.read(torch.tensor(ids), read)
    answers = {}
    for question in NEEDLES:
        asked = [*words.encode(QUESTION_LEAD + question), *words.framing.answer]
        space = engine.workspace(len(ids) + len(asked) + MAX_TOKENS)
        space.push(read.view(0, len(ids)), 0)
        space.next_position = len(ids)
        logits = engine.runner.logits(torch.tensor(asked), space)
        tokens = engine.runner.generate(logits, space, Sampler(Sampling()), MAX_TOKENS)
        answers[question] = collect(tokens, words.stream(), MAX_TOKENS, stop=STOP).text
    return answers


def score(answers: dict[str, str]) -> int:
    """How many answers hold what was hidden."""
    return sum(NEEDLES[question][1] in answer for question, answer in answers.items())


def test_restored_answers_are_as_right_as_cold_ones(tmp_path: Path, default_model: LoadedModel) -> None:
    with Memory.open(tmp_path / "s", model=default_model) as memory:
        memory.ingest("hay", text=haystack())
        cold = score(cold_answers(memory._home.engine(), haystack().decode()))
    assert cold == len(NEEDLES)
    with Memory.open(tmp_path / "s", model=default_model, read_only=True) as memory:
        n_tokens = memory.session("default").n_tokens
        exact = {question: memory.ask(question, mode="exact", max_tokens=MAX_TOKENS, stop=STOP) for question in NEEDLES}
        assert all(answer.reused_tokens == n_tokens for answer in exact.values())
        first, second = (
            {question: memory.ask(question, max_tokens=MAX_TOKENS, stop=STOP).answer for question in NEEDLES}
            for _ in range(2)
        )
    assert first == second, "what is cached by now changes nothing"
    for answers in ({question: answer.answer for question, answer in exact.items()}, first):
        assert score(answers) >= cold - TOLERANCE, answers
