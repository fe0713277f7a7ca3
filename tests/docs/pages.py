"""The pages of documentation and what stands in them: links, code blocks, tables, words in code style."""

from __future__ import annotations

import re
from pathlib import Path

from tests.docs.modules import ROOT

PAGES = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "deploy" / "README.md",
    *sorted((ROOT / "livingkv").rglob("*.md")),
]


def read(name: str) -> str:
    """A page's text, by its path in the repository."""
    return (ROOT / name).read_text("utf-8")


def links(page: Path) -> list[str]:
    """Targets of a page's links, without those to the web, anchors cut off."""
    found = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    return [link.partition("#")[0] for link in found if not link.startswith(("http://", "https://", "#"))]


def blocks(text: str, language: str) -> list[str]:
    """The code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def code_words(text: str) -> set[str]:
    """What stands in back quotes outside of code blocks."""
    return set(re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)))


def table(text: str, first_heading: str) -> list[list[str]]:
    """The rows of the table whose first column is headed so, cells without white space and back quotes around them."""
    rows = text.partition(f"\n| {first_heading} |")[2].partition("\n\n")[0].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]
