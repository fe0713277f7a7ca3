"""Figures of speed that other experiments measure, for the same page: how their JSON is told as rows.

Knows the results of 029 (decoding on a GPU), 030 (reading, restoring and recall there), 031 (decoding on a CPU) and 032
(several askers), and what is wanted of them. A part that a result lacks gives no row.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

GIB = 1 << 30


class Line(NamedTuple):
    """A row of the page. least, most: what is wanted of the value, which is the ratio, or ours where there is none."""

    figure: str
    condition: str
    ours: str
    baseline: str
    ratio: float | None
    least: float | None = None
    most: float | None = None
    value: float | None = None

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None where there is none."""
        value = self.ratio if self.value is None else self.value
        if value is None or (self.least is None and self.most is None):
            return None
        return value >= self.least if self.least is not None else value <= (self.most or 0.0)


def gpu_decode(made: dict[str, Any]) -> Iterator[Line]:
    """029: recorded steps beside the bandwidth's limit, Hugging Face's eager decoding and its full caches."""
    made = made | made.get("quick", {})
    peak = made.get("four_bit", {}).get("peak_bytes_reading")
    if peak:
        yield Line("peak memory, NF4", "reading, window of 4,096", gigabytes(peak), "7 GiB", peak / (7 * GIB), most=1.0)
    steps = made.get("plain", [])
    if not isinstance(steps, list):
        return
    ours = {n: statistics.median(row["tokens_per_s"] for row in rows) for n, rows in by_length(steps).items()}
    if not ours:
        return
    short, long = min(ours), max(ours)
    limit = made.get("bandwidth", {}).get("limit_tokens_per_s")
    for n, speed in ours.items():
        if limit:
            baseline = f"bandwidth / weight bytes: {short_number(limit)} tokens/s"
            yield Line("decode, batch 1", f"{n:,} stored", tokens(speed), baseline, speed / limit, least=0.6)
    theirs = [row for row in made.get("huggingface", []) if "tokens_per_s" in row]
    for row in theirs:
        n, plans = row["n_cached"], row.get("cudnn_attention", True)
        target = None if plans else {131_072: 1.3}.get(n, 3.0)  # held to the quicker one
        speed = ours[long if n > short else short]
        way = "as it comes" if plans else "without cuDNN's attention"
        baseline = f"Hugging Face eager, {way}, {n:,} in its cache: {short_number(row['tokens_per_s'])} tokens/s"
        ratio = speed / row["tokens_per_s"]
        yield Line("decode / Hugging Face", f"{n:,} tokens", tokens(speed), baseline, ratio, least=target)
    rows = {row["n_rows"]: row["tokens_per_s"] for row in made.get("several", []) if row.get("recorded")}
    if 1 in rows and 8 in rows:
        yield Line("8 rows / 1", "4,120 attended each", tokens(rows[8]), tokens(rows[1]), rows[8] / rows[1], least=5.0)
    if long > short:
        condition = f"{long:,} stored / {short:,}"
        yield Line("flat decode", condition, tokens(ours[long]), tokens(ours[short]), ours[long] / ours[short], 0.95)
        peaks = [max(row["peak_bytes"] or 0 for row in by_length(steps)[n]) for n in (long, short)]
        if min(peaks) > 0:
            yield Line(
                "flat memory", condition, gigabytes(peaks[0]), gigabytes(peaks[1]), peaks[0] / peaks[1], most=1.03
            )


def by_length(steps: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    """Recorded steps by what is stored."""
    found: dict[int, list[dict[str, Any]]] = {}
    for row in steps:
        if row.get("recorded"):
            found.setdefault(row["n_stored"], []).append(row)
    return found


def gpu_ingest(made: dict[str, Any]) -> Iterator[Line]:
    """030: reading beside the matrix limit and Hugging Face, restore and recall beside reading everything again."""
    prefill = made.get("prefill", {})
    theirs = {key: row for key, row in prefill.items() if key.startswith("hugging_face")}
    for name, row in prefill.items():
        if not isinstance(row, dict) or "share_of_limit" not in row:
            continue
        speed, title = row["tokens_per_s"], name.replace("_", " ")
        if row["share_of_limit"]:
            yield Line("windowed prefill", title, tokens(speed), "the matrix limit", row["share_of_limit"], least=0.5)
        for other, plain in theirs.items():
            baseline = f"{other.replace('_', ' ')}: {short_number(plain['tokens_per_s'])} tokens/s"
            yield Line("windowed prefill", title, tokens(speed), baseline, speed / plain["tokens_per_s"])
    for length, rows in made.get("restore", {}).items():
        if not isinstance(rows, dict):
            continue
        plain_s = made.get("plain", {}).get(length, {}).get("seconds")
        for name, row in rows.get("ratios", {}).items():
            mode, heat = name.split("_")
            target = {"warm": 20.0, "cold": 8.0}[heat] if mode == "resume" else None
            if mode == "kv" and heat == "warm":
                target = {131_072: 50.0, 524_288: 500.0}.get(int(length))
            title = "cold prefill / restore and first token" if mode == "resume" else "everything read again / recall"
            condition = f"{int(length):,} tokens, page cache {'dropped' if heat == 'cold' else 'warm'}"
            baseline = f"Hugging Face reads it: {short_number(plain_s)} s" if plain_s else "not measured"
            yield Line(
                title, condition, f"{short_number(row['seconds'])} s", baseline, row["plain_prefill_over_it"], target
            )
    peak = made.get("nf4", {}).get("peak_bytes")
    if peak:
        yield Line(
            "peak memory, NF4", "ingest, chat and question", gigabytes(peak), "7 GiB", peak / (7 * GIB), most=1.0
        )


def cpu_decode(made: dict[str, Any]) -> Iterator[Line]:
    """031: decode steps beside llama.cpp, and how well each reads text. The targets are those of int8, the default."""
    perplexity = made.get("quality", {}).get("perplexity", {})
    for row in made.get("speed", []):
        n, speeds = row["tokens_stored"], row["tokens_per_s"]
        for name, ratio in row["median_ratio"].items():
            target = {4096: 1.0, 16_384: 2.0, 65_536: 4.0}.get(n) if name == "int8" else None
            ours = told_perplexity(f"{name}: {tokens(speeds[name])}", perplexity.get(name))
            theirs = told_perplexity(f"llama.cpp Q4_K_M: {tokens(speeds['llama.cpp'])}", perplexity.get("llama.cpp"))
            yield Line("decode / llama.cpp", f"{n:,} tokens stored", ours, theirs, ratio, least=target)


def told_perplexity(speed: str, value: float | None) -> str:
    """A speed with the perplexity that it is had at."""
    return speed if value is None else f"{speed}, perplexity {value:.3f}"


def concurrent(made: dict[str, Any]) -> Iterator[Line]:
    """032: eight askers beside one."""
    for batch, rows in made.get("askers", {}).items():
        if not isinstance(rows, dict) or not {"1", "8"} <= rows.keys():
            continue
        one, eight = (rows[n]["tokens_per_s"] for n in ("1", "8"))
        target = 5.0 if made.get("device") == "cuda" and batch == "max_batch 8" else None
        condition = batch.replace("_", " ")
        yield Line("8 askers / 1", condition, tokens(eight), f"one: {tokens(one)}", eight / one, least=target)


FOLDERS: dict[str, tuple[str, Callable[[dict[str, Any]], Iterator[Line]]]] = {
    "029": ("Decoding on a GPU, shape of Qwen2.5-7B-Instruct-1M, random weights", gpu_decode),
    "030": ("Reading, restoring and recall on a GPU, the same shape", gpu_ingest),
    "031": ("Decoding on a CPU", cpu_decode),
    "032": ("Several askers at once", concurrent),
}


def other_rows(experiments: Path) -> list[str]:
    """A section for each JSON file of these experiments that gives rows."""
    parts = []
    for number, (title, lines_of) in FOLDERS.items():
        for path in sorted(experiments.glob(f"{number}_*/*.json")):
            made = json.loads(path.read_text("utf-8"))
            lines = list(lines_of(made)) if isinstance(made, dict) and "circumstances" in made else []
            if lines:
                parts.append(
                    section(title, f"experiments/{path.parent.name}/{path.name}", made["circumstances"], lines)
                )
    return parts


def section(title: str, where: str, made: dict[str, Any], lines: list[Line]) -> str:
    """The rows of one file as a table."""
    machine = ", ".join(made.get("gpus") or []) or made.get("cpu", "")
    head = [
        f"## {title}\n",
        f"{machine}; commit {(made.get('commit') or 'unknown')[:10]}. Raw: `{where}`.\n",
        "| figure | condition | livingkv | baseline | ratio | target | met |",
        "|---|---|---|---|---|---|---|",
    ]
    return "\n".join([*head, *map(told, lines), ""])


def told(line: Line) -> str:
    """A row of the page."""
    target = f"at least {short_number(line.least)}" if line.least is not None else ""
    target = f"at most {short_number(line.most)}" if line.most is not None else target
    ratio = "" if line.ratio is None else short_number(line.ratio)
    met = {None: "", True: "yes", False: "**no**"}[line.met]
    return f"| {line.figure} | {line.condition} | {line.ours} | {line.baseline} | {ratio} | {target} | {met} |"


def tokens(speed: float) -> str:
    """Tokens/s."""
    return f"{short_number(speed)} tokens/s"


def gigabytes(size: float) -> str:
    """GB."""
    return f"{short_number(size / 1e9)} GB"


def short_number(value: float) -> str:
    """Three digits, no exponent."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
