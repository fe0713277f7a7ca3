"""What was stored under an Idempotency-Key is stored once, though the first answer was lost: the service was killed
behind the commit, or failed between the commit and the answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from livingkv.home_index import HomeIndex
from livingkv.server.remembering import STORED_BEFORE
from tests.server.serving import Served, serving
from tests.server.test_jobs import ended, ingested
from tests.server.test_sessions import made

TURN = "/v1/memory/turn"
SAID = "The harbour master keeps a green lamp. It burns all night."


def turn(served: Served, text: str = SAID, key: str = "key 1", **more: Any) -> httpx.Response:
    """A turn under a key."""
    body = {"session": "notes", "messages": [{"role": "user", "content": text}], **more}
    return served.client.post(TURN, json=body, headers={"Idempotency-Key": key})


def test_a_turn_that_is_sent_again_after_a_restart_is_stored_once(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        first = turn(served, query="What colour has the lamp?").json()
        assert len(first["stored"]) == 2
    with serving(tmp_path / "stores") as served:
        again = turn(served, query="What colour has the lamp?")
        told = again.json()
        assert again.status_code == 200 and told["stored"] == first["stored"] and told.keys() == first.keys()
        assert told["recalled"] == [] and told["answer"] is None and told["reason"] == STORED_BEFORE
        assert told["usage"]["total_tokens"] == 0
        other = turn(served, "Something else.")
        assert (other.status_code, other.json()["error"]["code"]) == (409, "idempotency_key_reused")
        assert turn(served, user="ada").json()["stored"] != first["stored"]
        assert turn(served, "And one more.", "key 2").status_code == 200
        assert served.stored("notes").decode().count(SAID) == served.stored("ada/notes").decode().count(SAID) == 1


def test_a_turn_that_failed_behind_its_commit_is_stored_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: HomeIndex) -> None:
        raise RuntimeError("behind the commit")

    with serving(tmp_path / "stores") as served:
        with monkeypatch.context() as patched:
            patched.setattr(HomeIndex, "feed_if_possible", fail)
            assert turn(served).status_code == 500
        assert turn(served).status_code == 200
        assert served.stored("notes").decode().count(SAID) == 1


def test_sessions_forks_imports_and_ingests_are_made_once(tmp_path: Path) -> None:
    def all_of_them(served: Served, file: bytes) -> list[httpx.Response]:
        def post(path: str, key: str, **sent: Any) -> httpx.Response:
            binary = {"Content-Type": "application/octet-stream"} if "content" in sent else {}
            return served.client.post(path, headers={"Idempotency-Key": key, **binary}, **sent)

        return [
            post("/v1/sessions", "a", json={"name": "made", "kv": False}),
            post("/v1/sessions/origin/fork", "b", json={"name": "forked"}),
            post("/v1/import?name=brought", "c", content=file),
        ]

    with serving(tmp_path / "stores") as served:
        made(served, "origin")
        turn(served, session="origin")
        job = ingested(served, SAID, session="read", source="book")
        assert ended(served, job)["state"] == "done"
        file = served.client.get("/v1/sessions/origin/export").content
        first = all_of_them(served, file)
        assert [answer.status_code for answer in first] == [201, 201, 201], [answer.text for answer in first]
    with serving(tmp_path / "stores") as served:
        again = all_of_them(served, file)
        assert [answer.status_code for answer in again] == [201, 201, 201], [answer.text for answer in again]
        assert [answer.json()["name"] for answer in again] == ["made", "forked", "brought"]
        assert ended(served, ingested(served, SAID, session="read", source="book"))["state"] == "done"
        assert served.stored("read").decode().count(SAID) == 1
        assert served.client.delete("/v1/sessions/made").status_code == 200
        assert all_of_them(served, file)[0].status_code == 201  # answered as before: the answer was kept
