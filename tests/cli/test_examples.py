"""The example notes and their questions fit together."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTES = {file.name: file.read_text("utf-8") for file in sorted((EXAMPLES / "notes").glob("*.md"))}
QUESTIONS: list[dict[str, Any]] = json.loads((EXAMPLES / "questions.json").read_text("utf-8"))


def test_the_notes_are_a_week() -> None:
    assert [name.split("-")[1] for name in NOTES] == [
        "monday.md", "tuesday.md", "wednesday.md", "thursday.md", "friday.md", "saturday.md", "sunday.md"
    ]  # fmt: skip
    assert 3_500 < sum(len(text.split()) for text in NOTES.values()) < 4_500


@pytest.mark.parametrize("row", [row for row in QUESTIONS if row["accept"]], ids=lambda row: row["question"])
def test_a_question_is_answered_by_its_note(row: dict[str, Any]) -> None:
    assert any(part in NOTES[row["source"]] for part in row["accept"])
    assert not any(part.casefold() in row["question"].casefold() for part in row["accept"])


def test_the_kinds_of_questions_are_all_there() -> None:
    kinds = [row["kind"] for row in QUESTIONS]
    assert len(QUESTIONS) >= 16
    assert kinds.count("paraphrase") >= 4
    assert kinds.count("confusable") >= 2
    assert kinds.count("absent") + kinds.count("absent property") >= 5
    assert kinds.count("absent property") >= 2
    assert all((row["source"] is None) == (not row["accept"]) for row in QUESTIONS)
    demo = [row for row in QUESTIONS if row.get("demo")]
    assert [bool(row["accept"]) for row in demo] == [True] * 5 + [False]


def test_the_demo_script_is_plain_shell() -> None:
    subprocess.run(["sh", "-n", str(EXAMPLES / "demo.sh")], check=True)
