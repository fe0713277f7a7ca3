"""Draws a result of run.py: the right sentence first, by kind of question, for each channel of each embedder.

pip install ".[experiments]"
python experiments/015_retrieval/plot.py [result.json] [--out result.png]
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import matplotlib.pyplot as plt
import typer

RESULT = Path(__file__).with_name("result.json")
ORDERS = {"lexical": "#7f7f7f", "dense": "#e69f00", "fused": "#56b4e9", "judged": "#0072b2"}


def draw(axes: Any, name: str, scores: dict[str, Any]) -> None:
    """Bars of one embedder: kinds side by side, in each the orders; the thin line is recall in the first 16."""
    orders = [order for order in ORDERS if order in scores]
    width = 0.8 / len(orders)
    for index, order in enumerate(orders):
        kinds = list(scores[order])
        places = [place + (index - (len(orders) - 1) / 2) * width for place in range(len(kinds))]
        axes.bar(places, [scores[order][kind]["at_1"] for kind in kinds], width, label=order, color=ORDERS[order])
        upto = [scores[order][kind]["at_16"] for kind in kinds]
        axes.bar(places, upto, width, fill=False, edgecolor=ORDERS[order], linewidth=0.7)
    axes.set_xticks(range(len(kinds)), [f"{kind}\n({scores['fused'][kind]['n']})" for kind in kinds], fontsize=8)
    axes.set_ylim(0, 1.05)
    axes.set_title(f"{name}: right sentence first (filled) and in 16")
    axes.legend(fontsize=8)


def main(
    result_file: Annotated[Path, typer.Argument(metavar="RESULT")] = RESULT,
    out: Annotated[Path | None, typer.Option(help="The picture; next to the result without it.")] = None,
) -> None:
    """Draw what a result holds."""
    found = json.loads(result_file.read_text("utf-8"))["found"]
    figure, axes = plt.subplots(len(found), 1, figsize=(10, 3.2 * len(found)), squeeze=False)
    for row, (name, entry) in zip(axes[:, 0], found.items(), strict=True):
        draw(row, name, entry["scores"])
    figure.tight_layout()
    figure.savefig(out or result_file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    typer.run(main)
