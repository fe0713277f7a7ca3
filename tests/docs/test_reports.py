"""docs/REPORTS.md: every report has its row, every row names tests, and every named test exists and is collected."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.modules import ROOT
from tests.docs.pages import read, table

ROWS = table(read("docs/REPORTS.md"), "#")
SERVICE = table(read("docs/REPORTS.md"), "of a service")
SERVICE_NUMBERS = [1, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 17, 18, 19]
MEMORY = table(read("docs/REPORTS.md"), "of a memory")
NUMBERS = [1, 2, 4, 5, 6, 7, 8, 10, 11, 12, 13, 15, 16, 17, 18, 19, 22, 23, 25, 26, 27, 29, 30, 33, 34]
"""The rows of the collection; the numbers between them were never given."""


def functions(file: str) -> set[str]:
    """The names of a test file's functions."""
    path = ROOT / file
    if not path.is_file():
        return set()
    return {node.name for node in ast.parse(path.read_text("utf-8")).body if isinstance(node, ast.FunctionDef)}


def test_every_report_has_its_row() -> None:
    assert [int(row[0]) for row in ROWS] == NUMBERS
    assert [int(row[0]) for row in SERVICE] == SERVICE_NUMBERS
    assert [int(row[0]) for row in MEMORY] == list(range(1, len(MEMORY) + 1))
    assert all(len(row) == 5 and all(row) for row in [*ROWS, *SERVICE, *MEMORY])


@pytest.mark.parametrize("row", [*ROWS, *SERVICE, *MEMORY], ids=lambda row: f"row {row[0]}")
def test_every_named_test_exists(row: list[str]) -> None:
    named = re.findall(r"[^`\s]+", row[4])
    assert named
    assert all(re.fullmatch(r"tests/\w+/test_\w+\.py::test_\w+", name) for name in named)
    assert [name for name in named if name.partition("::")[2] not in functions(name.partition("::")[0])] == []
