"""Jobs: texts are ingested piece by piece in the background, and can be watched and given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from livingkv.memory import Memory
from livingkv.server.job_files import WORK
from livingkv.settings import Settings
from tests.server.serving import Json, Served, serving, slowly, wait_until

BOOK = "The harbour master keeps the key of the tower in a tin. The lamp burns oil, and nobody knows why.\n"
SMALL = Settings(block_tokens=64, window_tokens=1024, commit_tokens=64)
PLAIN = {"Content-Type": "text/plain"}


def ingested(served: Served, text: str, **fields: Any) -> Json:
    """An ingest that was accepted: its job."""
    body = {"text": text, "source": "book", **({"user": served.user} if served.user else {}), **fields}
    answer = served.client.post("/v1/memory/ingest", json=body)
    assert answer.status_code == 202, answer.text
    found: Json = answer.json()["job"]
    return found


def job_of(served: Served, job_id: str, **query: str) -> Json:
    """A job as it is now."""
    answer = served.client.get(f"/v1/jobs/{job_id}", params={**({"user": served.user} if served.user else {}), **query})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def ended(served: Served, job: Json) -> Json:
    """The job, once it has ended."""
    wait_until(lambda: job_of(served, job["id"])["ended_s"] is not None)
    return job_of(served, job["id"])


def left_of_texts(served: Served) -> list[str]:
    """Files of accepted texts."""
    folder = served.folder / f"default{WORK}"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_text_is_read_in_the_background(served: Served) -> None:
    job = ingested(served, BOOK * 20, session="notes")
    assert (job["kind"], job["session"], job["source"], job["unit"]) == ("ingest", "notes", "book", "bytes")
    assert job["total"] == len(BOOK) * 20 and job["state"] in ("queued", "running", "done")
    done = ended(served, job)
    assert done["state"] == "done" and done["done"] == done["total"] and done["error"] is None
    assert done["result"]["bytes"] == len(BOOK) * 20 and done["result"]["session"] == "notes"
    assert served.stored("notes").decode() == BOOK * 20
    listed = served.client.get("/v1/jobs", params={"user": served.user}).json()["jobs"]
    assert [each["id"] for each in listed] == [job["id"]]
    assert job["id"] not in "".join(left_of_texts(served))


def test_ended_jobs_name_nothing_that_was_forgotten(served: Served) -> None:
    kept = ended(served, ingested(served, BOOK, session="kept", source="srcKEPT"))
    gone = ended(served, ingested(served, BOOK, session="sessionGONE", source="srcGONE"))
    part = ended(served, ingested(served, BOOK, session="kept", source="srcPART"))
    named = {"user": served.user}
    assert served.client.delete("/v1/sessions/sessionGONE", params=named).status_code == 200
    body = {"session": "kept", "source": "srcPART", **named}
    assert served.client.post("/v1/memory/forget", json=body).status_code == 200
    listed = served.client.get("/v1/jobs", params=named)
    assert "GONE" not in listed.text and "srcPART" not in listed.text
    jobs = {job["id"]: job for job in listed.json()["jobs"]}
    assert jobs[kept["id"]] == kept
    for job in (gone, part):
        assert jobs[job["id"]]["session"] is None and jobs[job["id"]]["result"]["bytes"] == len(BOOK)


def test_plain_text_comes_with_the_rest_in_the_query(served: Served) -> None:
    query = {"session": "plain", "user": served.user, "source": "letter", "kv": "false"}
    answer = served.client.post("/v1/memory/ingest", params=query, content="Grüße aus Bö.\n".encode(), headers=PLAIN)
    assert answer.status_code == 202, answer.text
    assert ended(served, answer.json()["job"])["result"]["source"] == "letter"
    assert served.stored("plain").decode() == "Grüße aus Bö.\n"


@pytest.mark.parametrize(
    ("content", "kind", "query", "says"),
    [
        (b"", "text/plain", {}, "source"),
        (b"  \n", "text/plain", {}, "source"),
        (b"a\0b", "text/plain", {}, "binary"),
        (b"\xff\xfe", "text/plain", {}, "UTF-16"),
        (b"\xc3(", "text/plain", {}, "UTF-8"),
        (b"Hi.", "text/plain", {"session": "a/b"}, "slash"),
        (b"Hi.", "text/plain", {"user": "a/b"}, "slash"),
        (b"Hi.", "text/plain", {"user": "*"}, "one user"),
        (b"Hi.", "text/plain", {"source": "x" * 300}, "255"),
        (b"Hi.", "text/plain", {"kv": "perhaps"}, "kv"),
        (b"{", "application/json", {}, "JSON"),
        (b"{}", "application/json", {}, "text"),
        (b'{"text": 3}', "application/json", {}, "text"),
        (b'{"text": "\\ud800"}', "application/json", {}, "JSON"),
    ],
)
def test_what_is_no_text_is_refused_in_a_line(
    served: Served, content: bytes, kind: str, query: dict[str, str], says: str
) -> None:
    answer = served.client.post(
        "/v1/memory/ingest", params={"user": served.user, **query}, content=content, headers={"Content-Type": kind}
    )
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"] and "\n" not in answer.json()["error"]["message"]
    assert served.client.get("/v1/jobs", params={"user": served.user}).json()["jobs"] == []


def test_a_body_may_be_longer_than_others_and_not_too_long(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", max_body_bytes=1024, max_ingest_bytes=4096) as served:
        assert ended(served, ingested(served, BOOK * 20))["state"] == "done"
        refused = served.client.post("/v1/memory/ingest", content=BOOK * 50, headers=PLAIN)
        assert refused.status_code == 413 and "4096" in refused.text
        other = served.client.post("/v1/memory/prune", json={"keep": 1, "x": "y" * 2000})
        assert other.status_code == 413
        wrong = served.client.post("/v1/memory/ingest", content=b"x", headers={"Content-Type": "image/png"})
        assert wrong.status_code == 415


def test_one_job_runs_at_a_time_and_can_be_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.02)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        first = ingested(served, BOOK * 40, session="a")
        second = ingested(served, BOOK, session="b")
        wait_until(lambda: job_of(served, first["id"])["done"] > 0)
        assert job_of(served, second["id"])["state"] == "queued"
        assert len(left_of_texts(served)) == 4
        for job in (second, first):
            assert served.client.delete(f"/v1/jobs/{job['id']}").status_code == 200
        assert ended(served, second)["state"] == "cancelled" and job_of(served, second["id"])["done"] == 0
        stopped = ended(served, first)
        assert stopped["state"] == "cancelled" and 0 < stopped["done"] < stopped["total"]
        assert left_of_texts(served) == []
        stored = served.stored("a").decode()
        assert stopped["done"] <= len(stored) and (BOOK * 40).startswith(stored)
        monkeypatch.undo()
        again = ended(served, ingested(served, BOOK * 40, session="a"))
        assert again["state"] == "done" and served.stored("a").decode() == BOOK * 40
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        assert memory.check().problems == ()
