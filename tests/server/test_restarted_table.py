"""The table of conversations is made again in steps, so that nobody waits for all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.server import conversations
from livingkv.server.conversations import Conversations
from livingkv.store import Store
from tests.server.serving import cached, said, serving


def test_what_was_stored_is_known_after_steps_of_bounded_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "stores") as served:
        first = [served.chat(f"Talk {n} about the shed.", session=f"talk-{n}") for n in range(5)]
    monkeypatch.setattr(conversations, "_PAUSE_S", 0.0)
    with Store.open(tmp_path / "stores" / "default", mode="read") as store:
        table = Conversations(store)
        assert len(table) == 0
        one, other = table.fill(store), table.fill(store)
        next(one), next(other)
        assert len(table) == 2
        table.drop(store.session("talk-3").session_id)
        assert len(list(one)) == 2 and list(other) == [] and len(table) == 4
        assert list(table.fill(store)) == []
    with serving(tmp_path / "stores") as served:
        again = served.chat("Talk 4 about the shed.", said(first[4]), "And now?")
        assert again["livingkv"]["session"] == "talk-4" and cached(again) == first[4]["usage"]["total_tokens"]
