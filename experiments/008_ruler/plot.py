"""Draws a result of run.py: for every length each system's score on each task, and by length the mean of the tasks.

pip install ".[experiments]"
python experiments/008_ruler/plot.py [result.json] [--out result.png]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import matplotlib.pyplot as plt
import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.ruler.report import lengths, mean, mean_of_tasks, rows_of, systems_of, tasks_of  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
COLOURS = {"full": "#7f7f7f", "text": "#e69f00", "kv": "#56b4e9", "ground": "#009e73", "auto": "#0072b2"}


def draw_tasks(axes: Any, result: dict[str, Any], tokens: int) -> None:
    """Bars of one length: tasks side by side, in each the systems. Where a system was not asked there is no bar."""
    tasks, names = tasks_of(result), systems_of(result)
    width = 0.8 / len(names)
    for index, name in enumerate(names):
        scores = [mean(rows_of(result, tokens, name, task), "score") for task in tasks]
        known = [(place, score) for place, score in enumerate(scores) if score is not None]
        places = np.array([place for place, _ in known]) + (index - (len(names) - 1) / 2) * width
        axes.bar(places, [score for _, score in known], width, label=name, color=COLOURS.get(name))
    n = max(len(rows_of(result, tokens, name, task)) for name in names for task in tasks)
    axes.set_xticks(range(len(tasks)), [task.removeprefix("niah_") for task in tasks])
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of references")
    axes.set_title(f"{tokens:,} tokens, at most {n} a task")


def draw_means(axes: Any, result: dict[str, Any]) -> None:
    """One line for each system: the mean of the tasks by length."""
    for name in systems_of(result):
        points = [(tokens, mean_of_tasks(result, tokens, name)) for tokens in lengths(result)]
        known = [(tokens, score) for tokens, score in points if score is not None]
        axes.plot(*zip(*known, strict=True) if known else ([], []), marker="o", label=name, color=COLOURS.get(name))
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths(result), [f"{tokens:,}" for tokens in lengths(result)])
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("mean of tasks")
    axes.set_title("by length in tokens")


def main(
    result_file: Annotated[Path, typer.Argument(metavar="RESULT")] = RESULT,
    out: Annotated[Path | None, typer.Option(help="The picture; next to the result without it.")] = None,
) -> None:
    """Draw the scores that a result holds."""
    result = json.loads(result_file.read_text("utf-8"))
    n = len(lengths(result))
    n_axes = n + (n > 1)
    figure, grid = plt.subplots(n_axes, 1, figsize=(12, 3.2 * n_axes), layout="constrained", squeeze=False)
    axes = list(grid[:, 0])
    for place, tokens in zip(axes[:n], lengths(result), strict=True):
        draw_tasks(place, result, tokens)
    if n > 1:
        draw_means(axes[-1], result)
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=len(systems_of(result)), loc="outside lower center")
    figure.suptitle(f"{result['label']}, {result['model']['name']}")
    figure.savefig(out or result_file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    typer.run(main)
