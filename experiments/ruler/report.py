"""What a result of the RULER experiment says: mean scores by task and system, printed as tables.

Knows the JSON of experiments/008_ruler; runs no model.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.ruler.tasks import TASKS
from experiments.systems import SYSTEMS

Row = dict[str, Any]


def lengths(result: Row) -> list[int]:
    """The lengths that there are answers for, in tokens."""
    return sorted({row["tokens"] for row in result["answers"]})


def systems_of(result: Row) -> list[str]:
    """The systems that answered, in their usual order."""
    return [name for name in SYSTEMS if any(row["system"] == name for row in result["answers"])]


def tasks_of(result: Row) -> list[str]:
    """The tasks that were answered, in RULER's order."""
    return [task for task in TASKS if any(row["task"] == task for row in result["answers"])]


def rows_of(result: Row, tokens: int, system: str, task: str | None = None) -> list[Row]:
    """The answers of one length and system, of one task or of all."""
    rows = [row for row in result["answers"] if (row["tokens"], row["system"]) == (tokens, system)]
    return [row for row in rows if task in (None, row["task"])]


def mean(rows: Sequence[Row], key: str) -> float | None:
    """The mean of a number over the rows that have it; None where no row has."""
    numbers = [row[key] for row in rows if row[key] is not None]
    return statistics.fmean(numbers) if numbers else None


def mean_of_tasks(result: Row, tokens: int, system: str) -> float | None:
    """The mean of the tasks' mean scores, each task counting the same. None unless all tasks were answered."""
    means = [mean(rows_of(result, tokens, system, task), "score") for task in tasks_of(result)]
    known = [number for number in means if number is not None]
    return statistics.fmean(known) if known and len(known) == len(means) else None


def means(result: Row) -> Row:
    """Mean scores by length and system: each task, how many texts it had, and the mean of the tasks."""
    found: Row = {}
    for tokens in lengths(result):
        by_system = found[str(tokens)] = {}
        for name in systems_of(result):
            rows = {task: rows_of(result, tokens, name, task) for task in tasks_of(result)}
            by_system[name] = {
                "mean of tasks": mean_of_tasks(result, tokens, name),
                **{task: {"n": len(part), "score": mean(part, "score")} for task, part in rows.items()},
            }
    return found


def print_report(result: Row) -> None:
    """Tables on standard output: scores, what was recalled, and costs, for every length."""
    console = Console(width=110)
    for tokens in lengths(result):
        console.print(_scores(result, tokens))
        console.print(_costs(result, tokens))


def _scores(result: Row, tokens: int) -> Table:
    model, names = result["model"]["name"], systems_of(result)
    title = f"{result['label']}, {tokens:,} tokens, {model}: score (share of references recalled)"
    table = Table("task", "n", *names, title=title)
    for task in tasks_of(result):
        found = [rows_of(result, tokens, name, task) for name in names]
        table.add_row(task, str(max(map(len, found))), *(_score(rows) for rows in found))
    means = [mean_of_tasks(result, tokens, name) for name in names]
    table.add_row("mean of tasks", "", *(_number(score) for score in means))
    return table


def _score(rows: Sequence[Row]) -> str:
    recalled = mean(rows, "recalled_share")
    return _number(mean(rows, "score")) + ("" if recalled is None else f" ({recalled:.2f})")


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.2f}"


def _costs(result: Row, tokens: int) -> Table:
    table = Table("system", "tokens read, median", "seconds, median", "not confident", "modes")
    for name in systems_of(result):
        if not (rows := rows_of(result, tokens, name)):
            continue
        modes = [row["extra"]["mode"] for row in rows if "mode" in row["extra"]]
        refused = sum(row["extra"].get("confident") is False for row in rows)
        table.add_row(
            name,
            f"{statistics.median(row['prefilled_tokens'] for row in rows):,.0f}",
            f"{statistics.median(row['seconds'] for row in rows):.2f}",
            f"{refused} of {len(rows)}" if modes else "-",
            ", ".join(f"{mode} {modes.count(mode)}" for mode in sorted(set(modes))) or "-",
        )
    return table
