"""Results of the RULER experiment that several processes made side by side, as one.

    python experiments/008_ruler/merge.py OUT.json PART.json PART.json ...

All parts must have one plan, model and commit. An answer that stands in several parts is taken from the first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import write_json  # noqa: E402
from experiments.ruler.report import print_report  # noqa: E402


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One result of several. Raises ValueError where plan, model or commit differ."""
    whole: dict[str, Any] = {**parts[0], "texts": [], "answers": [], "seconds": []}
    texts: set[tuple[Any, ...]] = set()
    answers: set[tuple[Any, ...]] = set()
    for part in parts:
        for name in ("label", "plan", "model"):
            if part[name] != whole[name]:
                raise ValueError(f"the parts differ in {name}; they cannot be one result")
        if part["end"]["circumstances"]["commit"] != whole["end"]["circumstances"]["commit"]:
            raise ValueError("the parts differ in their commit; they cannot be one result")
        for text in part["texts"]:
            if (key := (text["tokens"], text["sample"], text["task"])) not in texts:
                texts.add(key)
                whole["texts"].append(text)
        for row in part["answers"]:
            if (key := (row["tokens"], row["sample"], row["task"], row["system"])) not in answers:
                answers.add(key)
                whole["answers"].append(row)
        whole["seconds"] += part.get("seconds", [])
    return whole


def main(
    out: Annotated[Path, typer.Argument(help="The whole result.")],
    parts: Annotated[list[Path], typer.Argument(help="What the processes wrote.")],
) -> None:
    """Put results together and print the tables."""
    try:
        whole = merged([json.loads(part.read_text("utf-8")) for part in parts])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    write_json(out, whole)
    print_report(whole)


if __name__ == "__main__":
    typer.run(main)
