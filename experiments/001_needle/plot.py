"""Draws the heat map of grid.py: length by depth, a panel for each mode, and below it the needles of one type.

pip install ".[experiments]"
python experiments/001_needle/plot.py [grid.json] [--out grid.png]
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import matplotlib.pyplot as plt
import numpy as np
import typer

RESULT = Path(__file__).with_name("grid.json")


def draw_map(axes: Any, rows: Sequence[dict[str, Any]], mode: str) -> Any:
    """Single needles of one mode: the share of right answers by length and depth. Gives the image."""
    own = sorted((row for row in rows if row["mode"] == mode and not row["needles"]), key=lambda row: row["tokens"])
    depths = sorted({int(depth) for row in own for depth in row["by_depth"]})
    shares = np.full((len(depths), len(own)), np.nan)
    for column, row in enumerate(own):
        for depth, counted in row["by_depth"].items():
            shares[depths.index(int(depth)), column] = counted["correct"] / counted["n"]
    image = axes.imshow(shares, vmin=0, vmax=1, cmap="RdYlGn", aspect="auto")
    for (line, column), share in np.ndenumerate(shares):
        if not np.isnan(share):
            axes.text(column, line, f"{share:.2f}", ha="center", va="center", fontsize=7)
    axes.set_xticks(range(len(own)), [f"{row['tokens']:,}" for row in own], rotation=30)
    axes.set_yticks(range(len(depths)), [f"{depth}%" for depth in depths])
    right, n = sum(row["correct"] for row in own), sum(row["n"] for row in own)
    axes.set_title(f"{mode}: {right} of {n}")
    return image


def draw_many(axes: Any, rows: Sequence[dict[str, Any]], modes: Sequence[str]) -> None:
    """Needles of one type: the share of right answers by length, a line for each mode and number of needles."""
    for needles in sorted({row["needles"] for row in rows} - {0}):
        for mode in modes:
            own = sorted(
                (row for row in rows if (row["mode"], row["needles"]) == (mode, needles)), key=lambda row: row["tokens"]
            )
            shares = [row["correct"] / row["n"] for row in own]
            axes.plot([row["tokens"] for row in own], shares, marker="o", label=f"{mode}, {needles:,} of one type")
    lengths = sorted({row["tokens"] for row in rows if row["needles"]})
    axes.set_xscale("log")
    axes.set_xticks(lengths, [f"{n:,}" for n in lengths])
    axes.minorticks_off()
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("tokens")
    axes.set_ylabel("share of right answers")
    axes.legend()


def main(
    result_file: Annotated[Path, typer.Argument(metavar="RESULT")] = RESULT,
    out: Annotated[Path | None, typer.Option(help="The picture; next to the result without it.")] = None,
) -> None:
    """Draw what a result holds."""
    result = json.loads(result_file.read_text("utf-8"))
    rows = result["summary"]
    modes = sorted({row["mode"] for row in rows}, key=lambda mode: (mode != "auto", mode))
    many = any(row["needles"] for row in rows)
    single = any(not row["needles"] for row in rows)
    figure = plt.figure(figsize=(4.4 * len(modes), 4.5 * (single + many)), layout="constrained")
    grid = figure.add_gridspec(single + many, len(modes))
    if single:
        places = [figure.add_subplot(grid[0, index]) for index in range(len(modes))]
        images = [draw_map(place, rows, mode) for place, mode in zip(places, modes, strict=True)]
        places[0].set_ylabel("depth of a single needle")
        figure.colorbar(images[-1], ax=places, shrink=0.8)
    if many:
        draw_many(figure.add_subplot(grid[-1, :]), rows, modes)
    figure.suptitle(f"Needles, {result['model'] or 'default model'}")
    figure.savefig(out or result_file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    typer.run(main)
