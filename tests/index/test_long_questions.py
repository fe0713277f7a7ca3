"""Long questions: only the most telling terms are looked for, and what they find stays found."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest

from livingkv.index import Entry, Index
from livingkv.index.word_search import MOST_TERMS

COMMON = [f"Sentence {number} says that the weather was as it is on most days of the year." for number in range(60)]
ASKED = " ".join(COMMON[:20]) + " Where did the zeppelin of Friedrichshafen land?"


@pytest.mark.parametrize("flushed", [True, False])
def test_a_rare_word_in_a_long_question_is_found(tmp_path: Path, flushed: bool) -> None:
    with Index.recreate(tmp_path, None) as index:
        texts = [*COMMON, "The zeppelin came down near Friedrichshafen."]
        index.add(Entry(number, 0, text) for number, text in enumerate(texts))
        index.commit(len(texts) - 1)
        if flushed:
            index.flush()
        assert index.probe(ASKED, limit=1)[0].sentence_id == len(COMMON)
        few = index.probe("Where did the zeppelin land?", limit=5)
        with patch("livingkv.index.word_search.MOST_TERMS", MOST_TERMS * 100):
            assert index.probe("Where did the zeppelin land?", limit=5) == few
