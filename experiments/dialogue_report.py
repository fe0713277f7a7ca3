"""Answers about conversations as rows and tables: retrieval and answers apart, by type of question and by system."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.dialogues import TYPES, DialogueQuestion
from experiments.systems import Answered

_DOES_NOT_KNOW = re.compile(
    r"\b(?:don't|do not|doesn't|does not|didn't|did not|can't|cannot|unable to|never|no) "
    r"(?:have|know|recall|remember|mention|say|provide|contain|access|find|tell|told|information|record|answer)"
    r"|\bnot (?:mentioned|specified|provided|stated|known|given|stored|sure|clear|aware|available|able)"
    r"|\bunknown\b|\bsorry\b|\bnothing (?:that is )?stored\b",
    re.IGNORECASE,
)


def scored(question: DialogueQuestion, answered: Answered) -> dict[str, Any]:
    """One answer as a row. found: the share of the gold sentences that were put before the model; first: one of them
    was in what ranked first; None where that is not known. refused: marked as not stored; declined: its words say so.

    right: for what nobody said, that it is refused or declined.
    """
    refused = answered.extra.get("confident") is False
    declined = _DOES_NOT_KNOW.search(answered.text) is not None
    row: dict[str, Any] = asdict(question)
    row["question"] = row.pop("text")
    recalled, gold = answered.recalled, question.gold
    known = recalled is not None and bool(gold)
    return row | {
        "answer": answered.text,
        "right": question.answered_by(answered.text) if gold else refused or declined,
        "refused": refused,
        "declined": declined,
        "found": sum(any(text in one for one in recalled or ()) for text in gold) / len(gold) if known else None,
        "first": any(text in one for one in (recalled or ())[:1] for text in gold) if known else None,
        "prefilled_tokens": answered.prefilled_tokens,
        "seconds": answered.seconds,
        "extra": answered.extra,
    }


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Results of one plan as one. Raises ValueError for those of different plans."""
    if any(result["plan"] != results[0]["plan"] for result in results):
        raise ValueError("results of different plans cannot be put together")
    whole = dict(results[0])
    for part in ("histories", "answers"):
        whole[part] = [row for result in results for row in result[part]]
    whole["ends"] = [result.get("end") for result in results]
    whole["summary"] = summary(whole["answers"])
    return whole


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By system and type of question, and over all types: answers, right ones, wrong ones that were not refused."""
    found: dict[str, Any] = {}
    for row in rows:
        for kind in (row["type"], "all"):
            counts = found.setdefault(row["system"], {}).setdefault(kind, {"n": 0, "right": 0, "wrong, not refused": 0})
            counts["n"] += 1
            counts["right"] += bool(row["right"])
            counts["wrong, not refused"] += not row["right"] and not row["refused"]
    return found


def print_report(result: dict[str, Any]) -> None:
    """Right answers, wrong ones that were given as sure, and what was recalled, by type and system."""
    rows = result["answers"]
    systems = list(dict.fromkeys(row["system"] for row in rows))
    table = Table("type", *systems, title="right (wrong, not refused) | all gold recalled, first")
    for kind in (*TYPES, "all"):
        cells = [
            _cell([row for row in rows if row["system"] == name and kind in (row["type"], "all")]) for name in systems
        ]
        table.add_row(kind, *cells)
    Console().print(table)


def _cell(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "-"
    known = [row for row in rows if row["found"] is not None]
    recalled = f"{sum(row['found'] == 1 for row in known)}, {sum(row['first'] for row in known)}/{len(known)}"
    if rows[0]["system"] == "ranked":  # it answers nothing
        return recalled
    right = sum(row["right"] for row in rows)
    wrong = sum(not row["right"] and not row["refused"] and not row["declined"] for row in rows)
    return f"{right}/{len(rows)} ({wrong})" + (f" | {recalled}" if known else "")
