"""What was accepted goes on by itself: after a stop, and after the process was killed in the middle."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx
import pytest

from livingkv.errors import StoreLocked
from livingkv.memory import Memory
from livingkv.server.inference_thread import Phase
from livingkv.server.job_files import WORK, Accepted, JobFiles, digest_of
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from livingkv.store.writer_lock import WriterLock
from tests import tiny
from tests.server.serving import Json, serving, slowly, tiny_model, wait_until
from tests.server.serving_process import process
from tests.server.test_jobs import BOOK, SMALL, ended, ingested, job_of, left_of_texts
from tests.server.test_sessions import made, shown


def test_a_stopped_ingest_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.02)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        first, second = (ingested(served, BOOK * 40, session=name) for name in ("a", "b"))
        wait_until(lambda: job_of(served, first["id"])["done"] > 0)
        files = [served.folder / f"default{WORK}" / name for name in left_of_texts(served)]
        assert len(files) == 4 and {path.stat().st_mode & 0o777 for path in files} == {0o600}
        assert files[0].parent.stat().st_mode & 0o777 == 0o700
    assert len(left_of_texts(served)) == 4
    monkeypatch.undo()
    with serving(tmp_path / "stores", settings=SMALL) as served:
        for job in (first, second):
            assert ended(served, job)["state"] == "done"
            assert job_of(served, job["id"])["created_s"] == pytest.approx(job["created_s"], abs=1)
        assert served.stored("a").decode() == served.stored("b").decode() == BOOK * 40
        assert left_of_texts(served) == []


@pytest.mark.slow
def test_the_text_of_an_encrypted_session_is_sealed_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(monkeypatch, 0.02)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        made(served, "secret", encrypt=True)
        job = ingested(served, BOOK * 40, session="secret", source="the diary of Anna")
        wait_until(lambda: job_of(served, job["id"])["done"] > 0)
    for path in (tmp_path / "stores").rglob("*"):
        if path.is_file():
            assert b"harbour master" not in path.read_bytes() and b"diary" not in path.read_bytes(), path
    monkeypatch.undo()
    with serving(tmp_path / "stores", settings=SMALL) as served:
        assert ended(served, job)["state"] == "done" and job_of(served, job["id"])["source"] == "the diary of Anna"
        assert shown(served, "secret")["bytes"] == len(BOOK) * 40


def accepted(number: int, data: bytes) -> Accepted:
    """An ingest that was accepted."""
    return Accepted(f"job-{number:024x}", "", "notes", "book", True, len(data), digest_of(data), number)


def test_remains_of_what_was_never_accepted_are_removed(tmp_path: Path) -> None:
    folder = tmp_path / f"default{WORK}"
    files = JobFiles(folder)
    assert files.unfinished() == []
    for number in (3, 1, 2):
        files.keep(accepted(number, b"text"), b"text")
    assert [each.created_ms for each in files.unfinished()] == [1, 2, 3]
    (folder / f"job-{1:024x}.json").unlink()
    (folder / f"job-{9:024x}.draft").write_bytes(b'{"version": 1, "us')
    (folder / f"job-{2:024x}.json").write_bytes(b"{}")
    assert [each.created_ms for each in files.unfinished()] == [3]
    assert not (folder / f"job-{1:024x}.text").exists() and not (folder / f"job-{9:024x}.draft").exists()
    assert (folder / f"job-{2:024x}.text").exists()  # damaged, and left to a person
    files.remove(f"job-{3:024x}")
    assert files.unfinished() == []


def test_a_text_that_was_changed_fails_its_job(tmp_path: Path) -> None:
    files = JobFiles(tmp_path / "stores" / f"default{WORK}")
    files.keep(one := accepted(1, b"A text.\n"), b"A text.\n")
    next(path for path in (tmp_path / "stores" / f"default{WORK}").glob("*.text")).write_bytes(b"B text.\n")
    with serving(tmp_path / "stores") as served:
        job = ended(served, {"id": one.job_id})
        assert job["state"] == "failed" and job["error"]["code"] == "internal" and left_of_texts(served) == []


def test_a_folder_that_cannot_be_read_stops_no_other_tenant(tmp_path: Path) -> None:
    (tmp_path / "stores").mkdir()
    (tmp_path / "stores" / f"another{WORK}").mkdir()
    (tmp_path / "stores" / f"another{WORK}" / f"job-{1:024x}.json").mkdir()
    files = JobFiles(tmp_path / "stores" / f"default{WORK}")
    files.keep(accepted(1, b"A text.\n"), b"A text.\n")
    with serving(tmp_path / "stores") as served:
        assert ended(served, {"id": f"job-{1:024x}"})["state"] == "done"


def test_what_is_over_is_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / f"default{WORK}"
    files = JobFiles(folder)
    files.keep(accepted(1, b"secret text"), b"secret text")
    (text,) = folder.glob("*.text")
    (tmp_path / "other name").hardlink_to(text)
    files.remove(accepted(1, b"").job_id)
    assert list(folder.iterdir()) == [] and (tmp_path / "other name").read_bytes() == bytes(len(b"secret text"))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_killed_ingest_goes_on_and_nothing_is_doubled(tmp_path: Path, tiny_folder: Path) -> None:
    text = "".join(f"{n}: {BOOK}" for n in range(600))
    folder, job_id, done = tmp_path / "stores", "", 0
    for _ in range(3):
        with process(folder, tiny_folder) as (killed, client):
            if not job_id:
                answer = client.post("/v1/memory/ingest", json={"text": text, "session": "notes", "source": "book"})
                assert answer.status_code == 202, answer.text
                job_id = answer.json()["job"]["id"]
            now = awaited(client, job_id, more_than=done)
            assert now["state"] == "running" and done < now["done"] < len(text.encode()), "it was killed in the middle"
            done = now["done"]
            killed.send_signal(signal.SIGKILL)
            assert killed.wait(10) != 0
    with process(folder, tiny_folder) as (_, client):
        assert awaited(client, job_id, more_than=len(text.encode()))["state"] == "done"
    assert list((folder / f"default{WORK}").iterdir()) == []
    with Memory.open(folder / "default", read_only=True) as memory:
        assert memory.text("notes").decode() == text and memory.check().problems == ()


def awaited(client: httpx.Client, job_id: str, *, more_than: int) -> Json:
    """The job, once more than that is done, or it has ended. The process' log is not read, so that few are asked."""
    while True:
        answer = client.get(f"/v1/jobs/{job_id}")
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        if found["done"] > more_than or found["ended_s"] is not None:
            return found
        time.sleep(0.2)


@pytest.mark.slow
def test_an_accepted_text_waits_for_a_store_that_another_process_writes_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(monkeypatch, 0.02)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        job = ingested(served, BOOK * 40, session="a")
        wait_until(lambda: job_of(served, job["id"])["done"] > 0)
    monkeypatch.undo()
    lock = WriterLock(tmp_path / "stores" / "default")
    with serving(tmp_path / "stores", settings=SMALL) as served:
        time.sleep(0.5)
        assert job_of(served, job["id"])["state"] in ("queued", "running") and len(left_of_texts(served)) == 2
        lock.release()
        assert ended(served, job)["state"] == "done"
        assert served.stored("a").decode() == BOOK * 40 and left_of_texts(served) == []


@pytest.mark.slow
def test_an_accepted_text_outlives_a_start_with_another_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.02)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        jobs = [ingested(served, BOOK * 40, session=name) for name in ("a", "b")]
        wait_until(lambda: job_of(served, jobs[0]["id"])["done"] > 0)
    monkeypatch.undo()
    with serving(tmp_path / "stores", tiny.tiny_model("llama"), settings=SMALL) as served:
        wait_until(lambda: served.count("background") == 0)
        assert [job_of(served, job["id"])["state"] for job in jobs] == ["queued", "queued"]
        assert len(left_of_texts(served)) == 4
        cancelled = served.client.delete(f"/v1/jobs/{jobs[1]['id']}").json()
        assert cancelled["state"] == "cancelled" and len(left_of_texts(served)) == 2
    with serving(tmp_path / "stores", settings=SMALL) as served:
        assert ended(served, jobs[0])["state"] == "done"


def test_a_second_service_on_the_folder_ends_and_leaves_the_first_its_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly(monkeypatch, 0.02)
    with serving(tmp_path / "stores", settings=SMALL) as served:
        job = ingested(served, BOOK * 10, session="a")
        second = Service(ServerOptions(tmp_path / "stores"), tiny_model())
        second.start()
        wait_until(lambda: second.phase is Phase.FAILED)
        assert isinstance(second.error, StoreLocked) and second.stop(5)
        assert ended(served, job)["state"] == "done"
