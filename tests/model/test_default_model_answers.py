"""The main job on the default model: answers from stored KV, honest abstention, every mode, a conversation that goes
on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from livingkv import Memory, Settings
from livingkv.codec_gate import measure_codec
from livingkv.engine import Engine
from livingkv.models import LoadedModel
from livingkv.results import Mode

pytestmark = pytest.mark.model

QUESTIONS: list[dict[str, Any]] = json.loads(
    (Path(__file__).resolve().parents[2] / "examples" / "questions.json").read_text("utf-8")
)
DEMO = [entry for entry in QUESTIONS if entry.get("demo")]


@pytest.mark.parametrize(
    "entry", [entry for entry in DEMO if entry["accept"]], ids=lambda entry: entry["question"][:40]
)
def test_demo_questions_are_answered_from_stored_kv(
    entry: dict[str, Any], notes_store: Path, default_model: LoadedModel
) -> None:
    with Memory.open(notes_store, model=default_model, read_only=True) as memory:
        answer = memory.ask(entry["question"])
    assert any(accepted.lower() in answer.answer.lower() for accepted in entry["accept"]), answer
    assert answer.confident and answer.mode == "kv"
    assert answer.reused_tokens > 20 and Path(answer.evidence[0].source).name == entry["source"]


@pytest.mark.parametrize(
    "entry", [entry for entry in DEMO if not entry["accept"]], ids=lambda entry: entry["question"][:40]
)
def test_what_is_not_stored_is_not_invented(
    entry: dict[str, Any], notes_store: Path, default_model: LoadedModel
) -> None:
    with Memory.open(notes_store, model=default_model, read_only=True) as memory:
        answer = memory.ask(entry["question"])
    assert not answer.confident and answer.confidence < 0.5
    assert answer.answer == "Nothing that is stored answers this."


@pytest.mark.parametrize("mode", ["kv", "ground", "extract", "exact"])
def test_every_mode_answers(mode: Mode, notes_store: Path, default_model: LoadedModel) -> None:
    with Memory.open(notes_store, model=default_model, read_only=True) as memory:
        answer = memory.ask("What is the code for the tool shed?", mode=mode, session="default")
        n_tokens = memory.session("default").n_tokens
    assert "4471" in answer.answer and answer.mode == mode
    assert answer.reused_tokens == n_tokens if mode == "exact" else answer.reused_tokens < 200
    assert (answer.prefilled_tokens == 0) == (mode == "extract")


def test_mode_exact_says_the_same_streamed_and_from_one_workspace(
    notes_store: Path, default_model: LoadedModel
) -> None:
    for entry in (entry for entry in DEMO if entry["accept"]):
        answers = []
        for settings in (Settings(window_tokens=64, ram_budget_bytes=1 << 23), Settings(window_tokens=1 << 16)):
            with Memory.open(notes_store, model=default_model, read_only=True, settings=settings) as memory:
                answers.append(memory.ask(entry["question"], mode="exact", session="default", max_tokens=16))
        assert answers[0].answer == answers[1].answer != ""
        assert answers[0].reused_tokens == answers[1].reused_tokens


def test_a_conversation_goes_on_in_another_process_state(tmp_path: Path, default_model: LoadedModel) -> None:
    with Memory.open(tmp_path / "chat", model=default_model) as memory:
        memory.chat("Hello, my name is Ada and my boat is called Thistle.", max_tokens=40)
        stored = memory.session("default").n_tokens
    with Memory.open(tmp_path / "chat", model=default_model) as memory:
        turn = memory.chat("What is my boat called?", max_tokens=40)
        assert "Thistle" in turn.answer
        assert turn.reused_tokens == stored and turn.turn == 2
        assert turn.prefilled_tokens < 30


def test_a_conversation_recalls_what_its_hot_window_does_not_hold(tmp_path: Path, default_model: LoadedModel) -> None:
    told = [
        {"role": "user", "content": "We named our dog Bramble, after the hedge where we found him."},
        {"role": "assistant", "content": "What a story. I hope he is well."},
        {"role": "user", "content": "My locker at the gym opens with 4408."},
        {"role": "assistant", "content": "I will keep it in mind."},
        {"role": "user", "content": "The gym has given me a new locker, and my locker opens with 7719 now."},
        {"role": "assistant", "content": "Good to know."},
    ]
    with Memory.open(tmp_path / "s", model=default_model) as memory:
        memory.add_messages(told, session="week 1")
        turn = memory.chat("What is the code of my gym locker?", session="week 2", max_tokens=32)
        assert "7719" in turn.answer and turn.confident and turn.mode in ("kv", "ground")
        assert "7719" in turn.evidence[0].text and turn.evidence[0].session == "week 1"
        turn = memory.chat("What is my dog called?", session="week 2", max_tokens=32)
        assert "Bramble" in turn.answer and turn.confident and turn.turn == 2


def test_what_is_no_question_and_what_is_not_stored_is_not_recalled(
    notes_store: Path, tmp_path: Path, default_model: LoadedModel
) -> None:
    shutil.copytree(notes_store, tmp_path / "s")
    with Memory.open(tmp_path / "s", model=default_model) as memory:
        turn = memory.chat("The code for the tool shed is 1234 now.", session="talk", max_tokens=8)
        assert turn.mode == "resume" and turn.confident and turn.evidence == ()
        turn = memory.chat("Which airline did the visitors from Japan fly with?", session="talk", max_tokens=8)
        assert turn.mode == "resume" and not turn.confident


def test_the_codec_passes_its_gate(default_model: LoadedModel) -> None:
    result = measure_codec(Engine.of(default_model, "int8"))
    assert result.passed and result.kl < 0.005
