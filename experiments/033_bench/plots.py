"""Pictures of how cost grows, from the JSON of a run: PNG and SVG beside it. Needs matplotlib.

python experiments/033_bench/plots.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt

HERE = Path(__file__).parent
PANELS = (
    ("ingest, s", "ingest s", "read s", "plain Hugging Face reads it"),
    ("restore to the first token, s", None, "read s", "plain Hugging Face reads it"),
    ("probe, ms", "probe ms", None, ""),
    ("disk, MB", "disk bytes", "cache bytes", "full cache in bf16"),
    ("peak memory, GB", "peak bytes", "cache bytes", "full cache alone"),
)
SCALE = {"disk, MB": 1e6, "peak memory, GB": 1e9}


def draw(rows: list[dict[str, Any]], device: str, out: Path) -> None:
    """One panel each, lengths and costs on logarithmic axes; hollow marks where pages are copies."""
    figure, axes = plt.subplots(1, len(PANELS), figsize=(22, 4.2), constrained_layout=True)
    for axis, (title, ours, theirs, name) in zip(axes, PANELS, strict=True):
        scale = SCALE.get(title, 1.0)
        known = [(row["facts"]["n_tokens"], value(row, ours), row["copied"]) for row in rows]
        points = [(x, y / scale, copied) for x, y, copied in known if y is not None]
        axis.plot([x for x, _, _ in points], [y for _, y, _ in points], color="C0")
        for copied, face in ((False, "C0"), (True, "white")):
            some = [(x, y) for x, y, mark in points if mark == copied]
            label = "livingkv" + (", copied pages" if copied else "")
            if some:
                axis.scatter(*zip(*some, strict=True), edgecolor="C0", facecolor=face, zorder=3, label=label)
        base = [(row["facts"]["n_tokens"], row["facts"]["baseline"][theirs]) for row in rows] if theirs else []
        base = [(x, y / scale) for x, y in base if y is not None]
        if base:
            axis.plot(*zip(*base, strict=True), "s--", color="C3", label=name)
        axis.set(title=title, xscale="log", yscale="log", xlabel="stored tokens")
        axis.grid(True, which="both", alpha=0.2)
        axis.legend(fontsize=8)
    figure.suptitle(f"How cost grows with the length of a session ({device})")
    for kind in ("png", "svg"):
        figure.savefig(out.with_suffix(f".{kind}"), dpi=110, metadata={"Date": None} if kind == "svg" else None)
    plt.close(figure)


def value(row: dict[str, Any], key: str | None) -> float | None:
    """A cost of a row: restoring is the row's own."""
    found: Any = row["ours"] if key is None else row["facts"][key]
    cost: float | None = found["median"] if isinstance(found, dict) else found
    return cost


def main() -> None:
    """Every run that has rows of growth; a full run rather than a quick one."""
    for device in ("cpu", "cuda"):
        for name in (f"{device}.json", f"{device}_quick.json"):
            path = HERE / name
            rows = (
                json.loads(path.read_text("utf-8"))["figures"].get("growth", {}).get("rows", [])
                if path.exists()
                else []
            )
            if rows:
                draw(rows, device, HERE / f"growth_{device}")
                break


if __name__ == "__main__":
    main()
