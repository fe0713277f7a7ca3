"""Jobs that are alone with a store, beside an ingest that lets them in; limits; what is told twice."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from livingkv import home_index
from livingkv.errors import ModelDamaged
from livingkv.memory import Memory
from livingkv.server import jobs as all_jobs
from livingkv.server.keys import make_key
from tests.server.serving import Json, Served, cached, said, serving, slowly, wait_until
from tests.server.test_jobs import BOOK, SMALL, ended, ingested, job_of, left_of_texts
from tests.server.test_sessions import HELLO, shown

FACTS = "The shed is blue. The key is behind the clock. The boat leaks. The bell is cracked. The dog is called Rex.\n"


def started(served: Served, path: str, body: Json) -> Json:
    """A job that was begun."""
    answer = served.client.post(f"/v1/memory/{path}", json=body)
    assert answer.status_code == 202, answer.text
    found: Json = answer.json()["job"]
    return found


def test_the_coldest_sentences_of_a_user_go(served: Served) -> None:
    ended(served, ingested(served, FACTS, session="a"))
    before = shown(served, "a")["sentences"]
    job = ended(served, started(served, "prune", {"keep": 2, "user": served.user}))
    assert job["state"] == "done", job
    assert job["result"]["counts"]["sentences"] == before - 2
    assert shown(served, "a")["sentences"] == 2 and job["user"] == served.user


def test_other_users_sentences_stay_and_pinned_ones(served: Served) -> None:
    for session in ("a", "b"):
        ended(served, ingested(served, FACTS, session=session))
    served.client.patch("/v1/sessions/b", json={"user": served.user, "pinned": True})
    other = replace(served, user=f"{served.user}-other")
    ended(other, ingested(other, FACTS, session="a"))
    n_before = shown(served, "b")["sentences"]
    ended(served, started(served, "prune", {"below": 10.0, "user": served.user}))
    assert shown(served, "a")["sentences"] == 0 and shown(served, "b")["sentences"] == n_before
    assert shown(other, "a")["sentences"] == n_before


def test_a_pruned_conversation_is_reused_up_to_what_is_gone(served: Served) -> None:
    first = served.chat(HELLO, session="talk")
    job = ended(served, started(served, "prune", {"keep": 0, "session": "talk", "user": served.user}))
    assert job["state"] == "done" and job["session"] == "talk"
    again = served.chat(HELLO, said(first), "And the key?")
    assert cached(again) == 0


def test_vectors_are_made_anew_and_segments_moved(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        ended(served, ingested(served, FACTS * 20, session="a"))
        job = ended(served, started(served, "reembed", {"embedder": "tokens"}))
        assert job["state"] == "done" and job["result"]["sentences"] == job["done"] == job["total"] > 0
        wrong = ended(served, started(served, "reembed", {"embedder": "nothing of this name"}))
        assert wrong["state"] == "failed" and wrong["error"]["code"] == "model_not_found"
        assert "nothing of this name" in wrong["error"]["message"]
        served.client.delete("/v1/sessions/a")
        moved = ended(served, started(served, "defrag", {}))
        assert moved["state"] == "done" and moved["result"]["bytes_after"] <= moved["result"]["bytes_before"]
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        assert memory.check().problems == ()


def test_an_embedder_that_cannot_be_used_is_told_to_who_asked_for_it(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise ModelDamaged("the embedder 'some/model' cannot be used")

    served = replace(served, user="")
    served.chat(HELLO, session="a")
    monkeypatch.setattr(home_index, "make_embedder", damaged)
    job = ended(served, started(served, "reembed", {"embedder": "some/model"}))
    assert (job["state"], job["error"]["code"], job["error"]["param"]) == ("failed", "model_damaged", "embedder")


@pytest.mark.parametrize("folder", ["/etc", "~", "../model", "livingkv"])
def test_no_folder_of_the_services_machine_becomes_an_embedder(served: Served, folder: str) -> None:
    answer = served.client.post("/v1/memory/reembed", json={"embedder": folder})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "embedder"


def test_a_name_that_no_file_system_takes_is_no_embedder(served: Served) -> None:
    served = replace(served, user="")
    job = ended(served, started(served, "reembed", {"embedder": "x" * 300}))
    assert job["state"] == "failed" and job["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("body", [{}, {"keep": 1, "below": 1.0}, {"keep": -1}, {"below": "x"}, {"keep": True}])
def test_a_prune_that_is_none_is_refused(served: Served, body: Json) -> None:
    assert served.client.post("/v1/memory/prune", json=body).status_code == 400
    assert served.client.post("/v1/memory/reembed", json={}).status_code == 400


@pytest.mark.slow
def test_an_ingest_lets_those_in_that_want_to_be_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "stores", settings=SMALL) as served:
        served.chat(HELLO, session="talk")
        slowly(monkeypatch, 0.02)
        job = ingested(served, BOOK * 60, session="notes")
        wait_until(lambda: job_of(served, job["id"])["done"] > 0)
        for path in ("/v1/sessions/notes", "/v1/sessions/notes/restore"):
            refused = served.client.request("DELETE" if path.endswith("notes") else "POST", path)
            assert refused.status_code == 409 and refused.json()["error"]["code"] == "session_busy"
        assert served.client.delete("/v1/sessions/talk").json()["receipt"]["counts"]["sentences"] > 0
        renamed = served.client.patch("/v1/sessions/notes", json={"name": "other"})
        assert renamed.status_code == 409
        waiting = ingested(served, BOOK, session="later")
        for body in ({"everything": True}, {"session": "notes"}):
            assert served.client.post("/v1/memory/forget", json=body).json()["error"]["code"] == "session_busy"
        served.client.delete(f"/v1/jobs/{waiting['id']}")
        now = job_of(served, job["id"])
        assert now["state"] == "running" and now["done"] < now["total"]
        monkeypatch.undo()
        assert ended(served, job)["state"] == "done"
        assert served.stored("notes").decode() == BOOK * 60
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        assert memory.check().problems == ()


def test_requests_are_served_while_a_text_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.01)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        job = ingested(served, BOOK * 60, session="notes")
        first = served.chat(HELLO, session="talk")
        assert cached(served.chat(HELLO, said(first), "And the key?", session="talk")) == first["usage"]["total_tokens"]
        now = job_of(served, job["id"])
        assert now["state"] == "running" and now["done"] < now["total"]
        served.client.delete(f"/v1/jobs/{job['id']}")


@pytest.mark.slow
def test_a_tenant_that_is_full_is_told_why_and_keeps_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "stores", settings=SMALL, max_tenant_bytes=1 << 20) as served:
        refused = served.client.post("/v1/memory/ingest", json={"text": BOOK * 12_000})
        assert refused.status_code == 507 and refused.json()["error"]["code"] == "tenant_full"
        assert left_of_texts(served) == []
        job = ended(served, ingested(served, BOOK * 2000, session="notes"))
        assert job["state"] == "failed" and job["error"]["code"] == "tenant_full", job
        assert 0 < job["done"] < job["total"] and left_of_texts(served) == []
        stored = served.stored("notes").decode()  # what was being written when it stopped is there, too
        assert job["done"] <= len(stored) < job["total"] and (BOOK * 2000).startswith(stored)
        for path in ("/v1/sessions", "/v1/sessions/notes/fork"):
            assert served.client.post(path, json={"name": "more"}).status_code == 507


def test_too_many_wait(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_jobs, "MOST_WAITING", 0)
    refused = served.client.post("/v1/memory/ingest", json={"text": BOOK, "user": served.user})
    assert refused.status_code == 429 and refused.json()["error"]["code"] == "queue_full"
    assert left_of_texts(served) == []


def test_the_last_jobs_stay_listed(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_jobs, "MOST_ENDED", 3)
    made = [ended(served, ingested(served, f"{FACTS}{n}", session="a"))["id"] for n in range(5)]
    listed = served.client.get("/v1/jobs", params={"user": served.user}).json()["jobs"]
    assert [each["id"] for each in listed] == made[:1:-1]


def test_a_job_is_seen_by_its_user_and_tenant_only(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    named = {
        name: make_key(keys, tenant, name, [scope])
        for name, tenant, scope in [
            ("writer", "one", "write"),
            ("reader", "one", "read"),
            ("admin", "one", "admin"),
            ("other", "two", "admin"),
        ]
    }
    with serving(tmp_path / "stores", keys_file=keys) as served:

        def ask(who: str, method: str, path: str, **more: Any) -> httpx.Response:
            headers = {"Authorization": f"Bearer {named[who]}"}
            return served.client.request(method, path, headers=headers, **more)

        text = {"text": FACTS, "session": "notes", "user": "anna"}
        assert ask("reader", "POST", "/v1/memory/ingest", json=text).status_code == 403
        job = ask("writer", "POST", "/v1/memory/ingest", json=text).json()["job"]
        path = f"/v1/jobs/{job['id']}"
        assert ask("reader", "GET", path, params={"user": "anna"}).status_code == 200
        assert ask("writer", "GET", path, params={"user": "*"}).status_code == 403
        assert ask("admin", "GET", path, params={"user": "*"}).status_code == 200
        for who, query in [("writer", {}), ("writer", {"user": "bert"}), ("other", {"user": "*"})]:
            assert ask(who, "GET", path, params=query).status_code == 404
            assert ask(who, "DELETE", path, params=query).status_code == 404
            assert ask(who, "GET", "/v1/jobs", params=query).json() == {"jobs": []}
        assert ask("reader", "DELETE", path, params={"user": "anna"}).status_code == 403
        for verb, body in [("prune", {"keep": 1}), ("reembed", {"embedder": "tokens"}), ("defrag", {})]:
            assert ask("writer", "POST", f"/v1/memory/{verb}", json=body).status_code == 403
        wait_until(lambda: ask("admin", "GET", path, params={"user": "*"}).json()["state"] == "done")
        refused = ask("writer", "GET", "/v1/sessions/notes/export", params={"user": "anna", "decrypt": True})
        assert refused.status_code == 403
        assert ask("other", "GET", "/v1/sessions/notes", params={"user": "anna"}).status_code == 404


def test_what_is_sent_twice_is_done_once(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    body, answers = {"text": FACTS, "session": "a", "user": served.user}, list[httpx.Response]()

    def send(key: str, text: str = FACTS) -> httpx.Response:
        given = {**body, "text": text}
        return served.client.post("/v1/memory/ingest", json=given, headers={"Idempotency-Key": key})

    threads = [threading.Thread(target=lambda: answers.append(send("one"))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["job"]["id"] for answer in answers}) == 1
    assert send("one").json()["job"]["id"] == answers[0].json()["job"]["id"]
    other = send("one", "Quite another text.")
    assert other.status_code == 409 and other.json()["error"]["code"] == "idempotency_key_reused"
    assert send("two").json()["job"]["id"] != answers[0].json()["job"]["id"]
    assert send("x" * 300).status_code == 400
    assert send("three", "a\0b").status_code == 400 and send("three").status_code == 202
    made = [
        served.client.post("/v1/sessions", json={"name": "s", "user": served.user}, headers={"Idempotency-Key": "s"})
    ]
    made.append(
        served.client.post("/v1/sessions", json={"name": "s", "user": served.user}, headers={"Idempotency-Key": "s"})
    )
    assert [answer.status_code for answer in made] == [201, 201] and made[0].json() == made[1].json()
