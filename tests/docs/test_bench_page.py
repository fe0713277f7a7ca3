"""docs/BENCH.md is what the report makes of the committed JSON; a row is told with its target and whether it is met."""

from __future__ import annotations

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.docs.modules import ROOT
from tests.docs.pages import read

FOLDER = ROOT / "experiments" / "033_bench"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module; what it finds beside itself is forgotten again."""
    import importlib
    import sys

    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    yield importlib.import_module("report")
    for name in set(sys.modules) - before:
        if name in ("report", "others", "targets"):
            del sys.modules[name]


def summary(median: float, n: int = 1) -> dict[str, float]:
    return {"n": n, "median": median, "low": median / 2, "high": median * 2}


def made(tmp_path: Path, figure: str, condition: str, ratio: float, **more: Any) -> Path:
    """A folder with one result that has one row."""
    row = {
        "figure": figure, "condition": condition, "unit": "s", "ours": summary(2.0, 3),
        "baselines": {"the rival": summary(4.0)}, "ratios": {"the rival": summary(ratio)}, "missing": {},
        "copied": False, "facts": {},
    } | more  # fmt: skip
    versions = {"torch": "2.13", "transformers": "5.24"}
    about = {"gpus": [], "cpu": "a CPU", "n_cores": 2, "versions": versions, "commit": "0123456789abcdef"}
    result = {"circumstances": about, "device": "cpu", "quick": True, "figures": {figure: {"rows": [row]}}}
    (tmp_path / "cpu.json").write_text(json.dumps(result), "utf-8")
    return tmp_path


def test_the_page_is_made_of_the_committed_results(report: ModuleType) -> None:
    assert read("docs/BENCH.md") == report.page()
    for picture in re.findall(r"\]\(\.\./([^)]+)\)", read("docs/BENCH.md")):
        assert (ROOT / picture).is_file()


@pytest.mark.parametrize(("ratio", "verdict"), [(120.0, "yes"), (99.0, "**no**")])
def test_a_target_is_met_or_not(report: ModuleType, tmp_path: Path, ratio: float, verdict: str) -> None:
    text = report.page(made(tmp_path, "restore", "16,384 tokens", ratio), tmp_path)
    line = next(line for line in text.splitlines() if "16,384 tokens" in line)
    want = f"| cold prefill / restore and first token | 16,384 tokens | 2 (1 to 4) s | the rival: 4 s | {ratio:.3g} |"
    assert line == f"{want} at least 100 | {verdict} |"


@pytest.mark.parametrize(("cpu", "is_kept"), [("a CPU", True), ("another", False)])
@pytest.mark.usefixtures("report")
def test_figures_of_another_machine_are_not_kept(tmp_path: Path, cpu: str, is_kept: bool) -> None:
    out = made(tmp_path, "probe", "50,000 sentences", 1.0) / "cpu.json"
    here = {"cpu": cpu, "n_cores": 2, "gpus": []}
    script = runpy.run_path(str(FOLDER / "run.py"))
    figures = script["kept"](out, here)["figures"]
    assert ("probe" in figures) == is_kept


def test_copies_and_what_is_missing_are_told(report: ModuleType, tmp_path: Path) -> None:
    folder = made(tmp_path, "decode / full cache", "4,096 tokens", 1.0, copied=True, missing={"hqq": "not installed"})
    text = report.page(folder, tmp_path)
    assert "| 4,096 tokens, *copied* |" in text and "- decode / full cache, without hqq: not installed" in text


OTHERS: dict[str, dict[str, Any]] = {
    "029_one": {
        "bandwidth": {"limit_tokens_per_s": 200.0},
        "huggingface": [
            {"n_cached": 4112, "tokens_per_s": 10.0, "cudnn_attention": True},
            {"n_cached": 4112, "tokens_per_s": 30.0, "cudnn_attention": False},
            {"error": "out of memory"},
        ],
        "plain": [
            {"n_stored": 32_768, "recorded": True, "tokens_per_s": 150.0, "peak_bytes": 10 << 30},
            {"n_stored": 524_288, "recorded": True, "tokens_per_s": 141.0, "peak_bytes": 10 << 30},
            {"n_stored": 524_288, "recorded": False, "tokens_per_s": 20.0, "peak_bytes": 10 << 30},
        ],
    },
    "030_two": {
        "prefill": {"n_tokens": 9, "document": {"tokens_per_s": 40_000.0, "share_of_limit": 0.4}},
        "plain": {"131072": {"seconds": 30.0}},
        "restore": {"131072": {"ratios": {"kv_warm": {"seconds": 0.5, "plain_prefill_over_it": 60.0}}}},
    },
    "031_three": {
        "quality": {"perplexity": {"int8": 11.5}},
        "speed": [
            {"tokens_stored": 4096, "tokens_per_s": {"int8": 30.0, "llama.cpp": 20.0}, "median_ratio": {"int8": 1.5}}
        ],
    },
    "032_four": {
        "device": "cuda",
        "askers": {"max_batch 8": {"1": {"tokens_per_s": 100.0}, "8": {"tokens_per_s": 600.0}}},
    },
}


def test_results_of_other_experiments_are_told_with_their_targets(report: ModuleType, tmp_path: Path) -> None:
    for name, made_there in OTHERS.items():
        (tmp_path / name).mkdir()
        document = made_there | {"circumstances": {"gpus": ["A GPU"], "commit": None}}
        (tmp_path / name / "result.json").write_text(json.dumps(document), "utf-8")
        (tmp_path / name / "raw.json").write_text("[]", "utf-8")
    text = report.page(tmp_path, tmp_path)
    for row in (
        "| 32,768 stored | 150 tokens/s | bandwidth / weight bytes: 200 tokens/s | 0.75 | at least 0.6 | yes |",
        "| Hugging Face eager, as it comes, 4,112 in its cache: 10 tokens/s | 15 |  |  |",
        "| Hugging Face eager, without cuDNN's attention, 4,112 in its cache: 30 tokens/s | 5 | at least 3 | yes |",
        "| 524,288 stored / 32,768 | 141 tokens/s | 150 tokens/s | 0.94 | at least 0.95 | **no** |",
        "| 40,000 tokens/s | the matrix limit | 0.4 | at least 0.5 | **no** |",
        "| 131,072 tokens, page cache warm | 0.5 s | Hugging Face reads it: 30 s | 60 | at least 50 | yes |",
        "| int8: 30 tokens/s, perplexity 11.500 | llama.cpp Q4_K_M: 20 tokens/s | 1.5 | at least 1 | yes |",
        "| 8 askers / 1 | max batch 8 | 600 tokens/s | one: 100 tokens/s | 6 | at least 5 | yes |",
    ):
        assert row in text
