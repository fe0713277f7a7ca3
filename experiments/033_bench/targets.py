"""The figures of the benchmark: what is compared, and what is wanted. Knows no results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Figure:
    """value: what the target speaks of: the ratio to the first baseline, or ours itself. wanted: by kind of run (cpu,
    cuda, cuda_7b; "" for every one), targets by what a condition holds, the first that it does; "" for all."""

    title: str
    value: Literal["ratio", "ours"]
    sense: Literal["at least", "at most"]
    wanted: dict[str, dict[str, float]]


FIGURES = {
    "restore": Figure(
        "cold prefill / restore and first token",
        "ratio",
        "at least",
        {"cpu": {"dropped": 100, "": 100}, "cuda_7b": {"dropped": 8, "": 20}},
    ),
    "recall": Figure(
        "everything read again / selective recall and first token",
        "ratio",
        "at least",
        {
            "cuda": {"131,072 tokens": 50, "524,288 tokens": 500},
            "cuda_7b": {"131,072 tokens": 50, "524,288 tokens": 500},
        },
    ),
    "probe": Figure("probe, ms", "ours", "at most", {"": {"50,000 sentences": 10}}),
    "flat decode": Figure("decode at 512k stored / at 32k, tokens/s", "ratio", "at least", {"": {"": 0.95}}),
    "decode / full cache": Figure(
        "decode / full cache, tokens/s", "ratio", "at least", {"": {"131,072 tokens": 1.3, "524,288 tokens": 3}}
    ),
    "flat memory": Figure("peak memory at 512k stored / at 32k", "ratio", "at most", {"": {"": 1.03}}),
    "windowed prefill": Figure(
        "windowed prefill / Hugging Face over the same window", "ratio", "at least", {"cpu": {"": 1.0}}
    ),
    "llama state": Figure("restore to the first token, llama.cpp / livingkv", "ratio", "at least", {}),
}
SCRIPTS = {
    "probe": "probe.py",
    "windowed prefill": "windowed_prefill.py",
    "restore": "restore.py",
    "flat decode": "flat_decode.py",
    "full decode": "full_decode.py",
    "flat memory": "flat_memory.py",
    "llama state": "llama_state.py",
    "growth": "growth.py",
}
"""The scripts by what --only calls them, in the order in which they are run."""


def wanted(figure: str, condition: str, kind: str) -> float | None:
    """The target of a row of such a run, None where it has none."""
    targets = FIGURES[figure].wanted
    known = targets.get(kind, targets.get("", {}))
    return next((value for part, value in known.items() if part in condition), None)


def is_met(figure: str, value: float, target: float) -> bool:
    """Whether a value is on the right side of the target."""
    return value >= target if FIGURES[figure].sense == "at least" else value <= target
