"""KV that was lost is rebuilt from the text, and the answers before and after agree."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from livingkv import Memory
from livingkv.models import LoadedModel

pytestmark = pytest.mark.model

QUESTIONS = {
    "What is the code for the tool shed?": "4471",
    "What is the code for the paint store?": "9026",
    "Who was the first skipper of the Marjorie?": "Crane",
}


def test_answers_survive_the_loss_and_the_repair_of_kv(
    notes_store: Path, default_model: LoadedModel, tmp_path: Path
) -> None:
    shutil.copytree(notes_store, tmp_path / "store")
    with Memory.open(tmp_path / "store", model=default_model) as memory:
        before = {question: memory.ask(question) for question in QUESTIONS}
        lost = sorted({token // 64 for answer in before.values() for token in answer.evidence[0].tokens})
        memory._home.store().drop_pages(1, lost)
        memory._home.let_go()
        for question, value in QUESTIONS.items():
            answer = memory.ask(question)
            assert value in answer.answer and answer.mode == "ground", answer
        (repaired,) = memory.repair()
        assert repaired.pages == tuple(lost)
        for question, answer in before.items():
            again = memory.ask(question)
            assert again.answer == answer.answer and again.mode == answer.mode == "kv"
