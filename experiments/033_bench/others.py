"""Figures of speed that other experiments measure, for the same page: where their JSON lies and how it is told.

An experiment hands rows over under the key "bench" of any of its JSON files: each a dict of figure, condition, ours,
baseline, ratio, target and met, all of them text or numbers; what a row lacks is left empty. Knows no more of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDERS = {
    "029_graphs": "Decoding on a GPU",
    "030_prefill": "Reading on a GPU",
    "031_cpu_decode": "Decoding on a CPU",
    "032_concurrent": "Several askers at once",
}
COLUMNS = ("figure", "condition", "ours", "baseline", "ratio", "target", "met")


def other_rows(experiments: Path) -> list[str]:
    """A section for each experiment that has rows."""
    parts = []
    for name, title in FOLDERS.items():
        for path in sorted((experiments / name).glob("*.json")):
            document = json.loads(path.read_text("utf-8"))
            rows = document.get("bench", []) if isinstance(document, dict) else []
            if rows:
                parts.append(section(title, f"experiments/{name}/{path.name}", document, rows))
    return parts


def section(title: str, where: str, document: dict[str, Any], rows: list[dict[str, Any]]) -> str:
    """The rows of one file as a table."""
    made = document.get("circumstances", {})
    machine = ", ".join(made.get("gpus", [])) or made.get("cpu", "")
    lines = [
        f"## {title}\n",
        f"{machine}; commit {(made.get('commit') or 'unknown')[:10]}. Raw: `{where}`.\n",
        f"| {' | '.join(COLUMNS)} |",
        "|" + "---|" * len(COLUMNS),
    ]
    lines += [f"| {' | '.join(cell(row.get(column)) for column in COLUMNS)} |" for row in rows]
    return "\n".join([*lines, ""])


def cell(value: object) -> str:
    """Text as it is, numbers with three digits, truth as yes or no."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, (int, float)):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return str(value)
