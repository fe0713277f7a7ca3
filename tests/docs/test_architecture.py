"""ARCHITECTURE.md names every module once and nothing that is not there; decisions are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.modules import PACKAGE, ROOT, files, relative

ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
LIST = ARCHITECTURE.partition("## Files")[2].partition("## Layers")[0]
LIVES = [f"## The life of a {what}" for what in ("write", "question", "request", "token that needs experts")]
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))


def test_every_module_has_one_line() -> None:
    named = re.findall(r"^- `([^`]+)`: \S.*[.?]$", LIST, re.MULTILINE)
    assert sorted(named) == sorted(relative(module) for module in files())


def test_every_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`([\w/]+\.(?:py|md))`", ARCHITECTURE))
    assert [name for name in sorted(named) if not ((PACKAGE / name).is_file() or (ROOT / name).is_file())] == []


@pytest.mark.parametrize("heading", LIVES)
def test_a_life_has_at_most_ten_steps(heading: str) -> None:
    section = ARCHITECTURE.partition(heading + "\n")[2].partition("\n## ")[0]
    numbers = [int(number) for number in re.findall(r"^(\d+)\. ", section, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1)) and 5 <= len(numbers) <= 10


def test_decisions_are_numbered_without_gaps() -> None:
    assert [int(path.name[:4]) for path in DECISIONS] == list(range(1, len(DECISIONS) + 1))


@pytest.mark.parametrize("path", DECISIONS, ids=lambda path: path.stem)
def test_a_decision_fits_a_page(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 40
    assert text.startswith(f"# {path.name[:4]} ")
    assert "## Decision" in text or "## Rule" in text
