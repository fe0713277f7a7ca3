"""A long text is split with a call in between now and then, and into the same sentences."""

from __future__ import annotations

from time import perf_counter

import pytest

from livingkv.text import split_sentences

PROSE = "The harbour master keeps the key of the tower in a tin. The lamp burns oil, and nobody knows why.\n"


@pytest.mark.parametrize("text", [PROSE * 6000, ("Der Hafenmeister geht über die Brücke. " * 30 + "\n\n") * 300])
def test_others_get_a_turn_while_a_long_text_is_split(text: str) -> None:
    calls, started = list[float](), perf_counter()
    spans = split_sentences(text.encode(), between=lambda: calls.append(perf_counter()))
    took = perf_counter() - started
    assert spans == split_sentences(text.encode())
    assert len(calls) > 2 and took / len(calls) < 0.5
