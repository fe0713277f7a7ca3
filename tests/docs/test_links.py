"""Links between pages lead to files, and files named in decisions exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.modules import PACKAGE, ROOT
from tests.docs.pages import PAGES, code_words, links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_named_in_a_page_exist(page: Path) -> None:
    named = {word for word in code_words(page.read_text("utf-8")) if re.fullmatch(r"[\w./-]+\.(py|md|toml)", word)}
    places = (ROOT, PACKAGE, page.parent)
    assert [name for name in sorted(named) if not any((place / name).is_file() for place in places)] == []
