"""docs/BENCH.md: one table of all figures of speed, out of committed JSON.

    python experiments/033_bench/report.py

Knows how a row is told (others.py: those of other experiments); measures nothing. A test compares the page with what
this makes of the JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE)]

from others import other_rows, short_number  # noqa: E402
from targets import FIGURES, is_met, wanted  # noqa: E402

PAGE = ROOT / "docs" / "BENCH.md"
RESULTS = ("cpu.json", "cpu_quick.json", "cuda.json", "cuda_quick.json", "cuda_7b.json")
HEAD = """# The benchmark

Made by `experiments/033_bench/report.py` out of committed JSON; `make bench` runs the figures and makes this page anew.
Both sides of a ratio come from one run. Where both were measured several times they took turns, and the ratio is the
median over the rounds, with the least and the most in brackets; a single number beside a spread was measured once, such
as reading everything again. kvpress, and peaks of memory, are from processes of their own.
*copied*: what lies in the store beyond the first tokens is their pages once more, because reading all of it takes hours
there; cost depends on how much is stored and not on what. In the JSON each figure names the commit that it was made of.
In the rows of decoding at 512k and at 32k the ratio of livingkv is its speed at 512k by that at 32k, and that of
Hugging Face its own speed at the longer of two lengths by that at the shorter.
"""
COLUMNS = "| figure | condition | livingkv | baseline | ratio | target | met |\n|---|---|---|---|---|---|---|"


def page(folder: Path = HERE, experiments: Path = HERE.parent) -> str:
    """The whole page."""
    parts = [HEAD]
    for name in RESULTS:
        if (folder / name).exists():
            parts.append(section(name, json.loads((folder / name).read_text("utf-8"))))
    parts += other_rows(experiments)
    return "\n".join(parts)


def section(name: str, result: dict[str, Any]) -> str:
    """The table of one run and what it was made on."""
    made = result["circumstances"]
    where = ", ".join(made["gpus"]) or f"{made['cpu']}, {made['n_cores']} cores"
    kind = name.removesuffix(".json").removesuffix("_quick")
    title = result["device"].upper() + (", Qwen2.5-7B shape, random weights" if kind == "cuda_7b" else "")
    lines = [
        f"## {title}, {'quick' if result['quick'] else 'full'} run\n",
        f"{where}; torch {made['versions']['torch']}, transformers {made['versions']['transformers']}, "
        f"commit {(made['commit'] or 'unknown')[:10]}. Raw: `experiments/033_bench/{name}`.\n",
        COLUMNS,
    ]
    for figure in result["figures"].values():
        for row in figure["rows"]:
            if row["figure"] in FIGURES:
                lines += told(row, kind)
    lines += ["", *growth(result, kind), *notes(result)]
    return "\n".join(lines)


def told(row: dict[str, Any], kind: str) -> Iterator[str]:
    """A row of the JSON as a line for each baseline; the target is compared with the first."""
    figure = FIGURES[row["figure"]]
    condition = row["condition"] + (", *copied*" if row["copied"] else "")
    target = wanted(row["figure"], row["condition"], kind)
    ours = f"{spread(row['ours'])} {row['unit']}"
    for number, (name, ratio) in enumerate(row["ratios"].items()):
        theirs = row["baselines"].get(name)
        summed = (
            row["facts"].get("cold prefill") == "sum of timed blocks" and name.endswith("read again") and not number
        )
        baseline = (
            name
            + (", summed up from timed blocks" if summed else "")
            + (f": {spread(theirs)} {row['unit']}" if theirs else "")
        )
        value = row["ours"]["median"] if figure.value == "ours" else ratio["median"]
        verdict = "", ""
        if number == 0 and target is not None:
            verdict = (
                f"{figure.sense} {short_number(target)}",
                "yes" if is_met(row["figure"], value, target) else "**no**",
            )
        yield f"| {figure.title} | {condition} | {ours} | {baseline} | {spread(ratio)} | {verdict[0]} | {verdict[1]} |"


def growth(result: dict[str, Any], kind: str) -> list[str]:
    """How cost grows, as a table; its picture stands beside the JSON."""
    rows = result["figures"].get("growth", {}).get("rows", [])
    if not rows:
        return []
    picture = f"../experiments/033_bench/growth_{kind}.png"
    lines = [
        "### How cost grows\n",
        f"![Ingest, restore, probe, disk and memory against the length of a session]({picture})\n",
        "| stored | ingest, s | Hugging Face reads it, s | restore, s | probe, ms | disk, MB | full cache, MB | "
        "peak memory, GB |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        facts, base = row["facts"], row["facts"]["baseline"]
        cells = [
            row["condition"] + (", *copied*" if row["copied"] else ""),
            number(facts["ingest s"]),
            number(base["read s"]),
            spread(row["ours"]),
            spread(facts["probe ms"]),
            number(facts["disk bytes"] / 1e6),
            number(base["cache bytes"] / 1e6),
            number(facts["peak bytes"] / 1e9),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def notes(result: dict[str, Any]) -> list[str]:
    """What could not be had, and what failed."""
    lines = []
    for name, figure in result["figures"].items():
        if "failed" in figure:
            lines.append(f"- {name}: {figure['failed']}")
        missing = {key: value for row in figure["rows"] for key, value in row["missing"].items()}
        lines += [f"- {name}, without {key}: {value}" for key, value in missing.items()]
    return ["Not had:\n", *lines, ""] if lines else []


def spread(values: dict[str, Any]) -> str:
    """Median, and the least and the most where there are several."""
    median = short_number(values["median"])
    return median if values["n"] == 1 else f"{median} ({short_number(values['low'])} to {short_number(values['high'])})"


def number(value: float | None) -> str:
    """The same, "-" for none."""
    return "-" if value is None else short_number(value)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
