"""docs/BENCH.md is what the report makes of the committed JSON; a row is told with its target and whether it is met."""

from __future__ import annotations

import json
import re
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


def test_copies_and_what_is_missing_are_told(report: ModuleType, tmp_path: Path) -> None:
    folder = made(tmp_path, "decode / full cache", "4,096 tokens", 1.0, copied=True, missing={"hqq": "not installed"})
    text = report.page(folder, tmp_path)
    assert "| 4,096 tokens, *copied* |" in text and "- decode / full cache, without hqq: not installed" in text


def test_rows_of_other_experiments_are_told_beside(report: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "029_graphs").mkdir()
    rows = [{"figure": "decode", "ours": 1234.5, "baseline": "eager", "ratio": 3.456, "target": 3, "met": True}]
    document = {"circumstances": {"gpus": ["A GPU"], "commit": None}, "bench": rows}
    (tmp_path / "029_graphs" / "result.json").write_text(json.dumps(document), "utf-8")
    (tmp_path / "029_graphs" / "raw.json").write_text("[]", "utf-8")
    text = report.page(tmp_path, tmp_path)
    assert "## Decoding on a GPU" in text and "| decode |  | 1,234 | eager | 3.46 | 3 | yes |" in text
