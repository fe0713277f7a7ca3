"""The demo's second half: questions to a store that another process filled from examples/notes.

    python examples/demo.py ask STORE [--model M] [--all] [--mode MODE]

Prints every answer with its evidence, confidence, token counts and times. Exits with 1 when an answer is wrong, or when
a question whose answer is not in the notes is answered with confidence. `--all` asks everything in questions.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from livingkv import Answer, Memory
from livingkv.cli_process import run
from livingkv.cli_render import print_answer

QUESTIONS = Path(__file__).with_name("questions.json")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the answers that count: `accept` holds parts of a right answer, none where there is no answer."""

    question: str
    accept: tuple[str, ...]
    source: str | None
    kind: str
    demo: bool = False

    def is_right(self, answer: Answer) -> bool:
        """Whether it holds a wanted part and is confident; where nothing is known, whether it is not confident."""
        if not self.accept:
            return not answer.confident
        return answer.confident and any(part.casefold() in answer.answer.casefold() for part in self.accept)


def read_questions() -> list[Question]:
    """Every question of questions.json, in its order."""
    return [Question(**{**row, "accept": tuple(row["accept"])}) for row in json.loads(QUESTIONS.read_text("utf-8"))]


@app.callback()
def demo() -> None:
    """Questions to a store that was filled from examples/notes."""


@app.command()
def ask(
    store: str,
    model: str | None = None,
    mode: Annotated[Literal["auto", "kv", "ground", "extract", "exact"], typer.Option()] = "auto",
    every: Annotated[bool, typer.Option("--all", help="Ask all questions, not only the demo's.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")] = False,
) -> int:
    """Ask the questions in one process and say whether each answer is right."""
    chosen = [question for question in read_questions() if question.demo or every]
    wrong: list[str] = []
    with Memory.open(store, model=model, read_only=True) as memory:
        for number, question in enumerate(chosen, 1):
            print(f"\n[{number}/{len(chosen)}] {question.question}")
            answer = memory.ask(question.question, mode=mode)
            print_answer(answer, as_json=False)
            if not question.is_right(answer):
                wrong.append(question.question)
                print(f"WRONG: wanted {' or '.join(question.accept) or 'low confidence'}")
    print(f"\n{len(chosen) - len(wrong)} of {len(chosen)} as they should be")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(run(typer.main.get_group(app), sys.argv[1:], program="demo.py"))
