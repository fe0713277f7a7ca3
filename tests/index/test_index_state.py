"""The state of an index as JSON: there and back, and IndexDamaged for whatever is no state."""

from __future__ import annotations

import json

import pytest

from livingkv.errors import IndexDamaged
from livingkv.index.state import IndexState

STATE = IndexState(high_water=4, last_id=9, n_sentences=5, n_terms=20, embedder_id="w", dimension=8, vector_file="v")


def test_there_and_back() -> None:
    assert IndexState.from_json(STATE.to_json()) == STATE
    assert IndexState.from_json(IndexState().to_json()) == IndexState()


@pytest.mark.parametrize("line", ["", "no json", "[]", "null", "[" * 100_000, "7" * 5000, "{}"])
def test_what_is_no_state(line: str) -> None:
    with pytest.raises(IndexDamaged, match="rebuild it from the store"):
        IndexState.from_json(line)


@pytest.mark.parametrize("name", sorted(json.loads(STATE.to_json())))
def test_every_field_has_its_type(name: str) -> None:
    bad: list[object] = [True, [], 1.5, -1, 10**400, {}]
    for value in bad:
        with pytest.raises(IndexDamaged, match="rebuild it from the store") as caught:
            IndexState.from_json(json.dumps(json.loads(STATE.to_json()) | {name: value}))
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 300
