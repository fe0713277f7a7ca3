"""A long text is split with a call in between now and then, and into the same sentences."""

from __future__ import annotations

import pytest

from livingkv import text as pace
from livingkv.text import split_sentences

PROSE = "The harbour master keeps the key of the tower in a tin. The lamp burns oil, and nobody knows why.\n"


@pytest.mark.slow
@pytest.mark.parametrize("text", [PROSE * 6000, ("Der Hafenmeister geht über die Brücke. " * 30 + "\n\n") * 300])
def test_others_get_a_turn_while_a_long_text_is_split(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_PACE_S", 0.0)
    calls = list[None]()
    spans = split_sentences(text.encode(), between=lambda: calls.append(None))
    assert spans == split_sentences(text.encode())
    assert len(calls) > 100
