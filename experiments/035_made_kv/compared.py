"""Sides of answers.py compared with the one whose KV was read, and whose answers were generated, in bf16.

Knows raw rows only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from livingkv.confidence import MOST_LIFT

BASELINE = "bf16 read, asked by bf16"
SIGNS = ("rest_gain", "behind", "names", "found", "bound", "lift")
Row = dict[str, Any]


def decision(row: Row) -> str:
    """What mode auto says: a right or wrong answer, or that nothing is stored."""
    given = [way for way in row["ways"] if way["confident"]]
    if not given:
        return "refused"
    return "right" if given[0]["right"] else "wrong"


def report(rows: Sequence[Row]) -> dict[str, Any]:
    """Every side's decisions by kind of question, and its differences from the baseline."""
    sides: dict[str, dict[str, Row]] = {}
    for row in rows:
        sides.setdefault(row["side"], {})[row["text"]] = row
    own = sides[BASELINE]
    return {
        "decisions": {name: decisions(each) for name, each in sides.items()},
        "against the baseline": {name: apart(own, each) for name, each in sides.items() if name != BASELINE},
    }


def decisions(rows: dict[str, Row]) -> dict[str, Any]:
    """Counts by kind: those of mode auto, and right answers of mode resume."""
    kinds: dict[str, Counter[str]] = {}
    for row in rows.values():
        kind = kinds.setdefault(row["kind"], Counter())
        kind.update(["n", decision(row)])
        if "resume" in row:
            kind.update({"right in mode resume": int(row["resume"]["right"])})
    return {kind: dict(sorted(counts.items())) for kind, counts in sorted(kinds.items())}


def apart(own: dict[str, Row], other: dict[str, Row]) -> dict[str, Any]:
    """Decisions that flip, and how signs of the first way differ, on questions that both were asked."""
    pairs = [(own[text], row) for text, row in other.items() if text in own]
    flips = Counter(f"{decision(a)} to {decision(b)}" for a, b in pairs if decision(a) != decision(b))
    resumed = [(a["resume"], b["resume"]) for a, b in pairs if "resume" in a]
    resume_flips = Counter(f"{a['right']} to {b['right']}" for a, b in resumed if a["right"] != b["right"])
    firsts = [(a["ways"][0], b["ways"][0]) for a, b in pairs if a["ways"] and b["ways"]]
    alike = [(a, b) for a, b in firsts if a["tokens"] == b["tokens"] and seen(a) == seen(b)]
    return {
        "n_questions": len(pairs),
        "n_flips": sum(flips.values()),
        "flips": dict(flips),
        "n_flips_in_mode_resume": sum(resume_flips.values()),
        "same_words_in_mode_resume": [sum(a["answer"] == b["answer"] for a, b in resumed), len(resumed)],
        "n_first_ways": len(firsts),
        "same_hit_and_mode": sum(seen(a) == seen(b) for a, b in firsts),
        "same_tokens_too": len(alike),
        "lift, same tokens": spread([b["lift"] - a["lift"] for a, b in alike]),
        "lift at its bound on both sides": sum(a["lift"] == b["lift"] == MOST_LIFT for a, b in alike),
        "lift without its bound, same tokens": spread(
            [(b["nats"] - a["nats"]) / max(1, len(a["tokens"])) for a, b in alike]
        ),
        "confidence, same tokens": spread([b["confidence"] - a["confidence"] for a, b in alike]),
        "confidence, all first ways": spread([b["confidence"] - a["confidence"] for a, b in firsts]),
        "signs that moved most": {name: most(alike, name) for name in SIGNS},
    }


def seen(way: Row) -> tuple[Any, ...]:
    """What a way showed the model."""
    return way["mode"], way["grown"], way["first_hit"]


def most(pairs: Sequence[tuple[Row, Row]], sign: str) -> float:
    """The largest change of a sign."""
    return max((abs(b[sign] - a[sign]) for a, b in pairs), default=0.0)


def spread(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation, some quantiles and the most."""
    if not values:
        return {"n": 0}
    found = np.array(values)
    quantiles = dict(zip(("p05", "p50", "p95"), np.quantile(found, (0.05, 0.5, 0.95)).tolist(), strict=True))
    told = {"n": len(values), "mean": float(found.mean()), "deviation": float(found.std()), **quantiles}
    return told | {"most": float(np.abs(found).max())}
