"""Requests as they are sent, answers as they are read, errors, repeated calls: with a service that is not there."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from livingkv.client import (
    ApiError,
    BadRequest,
    Busy,
    Client,
    ClientError,
    Conflict,
    Job,
    JobFailed,
    JobUnfinished,
    NoConnection,
    NotAllowed,
    NotFound,
    Retries,
    ServiceFailed,
    StorageFull,
    TimedOut,
    UnexpectedAnswer,
)
from tests.client.answering import ASKED, HIT, JOB, async_client_of, client_of, no_sleep, refused
from tests.docs.modules import ROOT

TURN = {"stored": ["1"], "session": "default", "recalled": [HIT]}


def body_of(request: httpx.Request) -> Any:
    """The JSON that was sent."""
    return json.loads(request.content)


@pytest.mark.slow
def test_importing_it_loads_nothing_else_of_livingkv() -> None:
    code = (
        "import sys, livingkv.client\n"
        "own = [name for name in sys.modules if name.startswith('livingkv') and '.client' not in name]\n"
        "assert own == ['livingkv'], own\n"
        "assert not {'torch', 'transformers', 'numpy', 'fastapi', 'pydantic'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_a_search_as_sent_and_read() -> None:
    client, service = client_of({"hits": [HIT]}, user="anna", api_key="lkv_x")
    (hit,) = client.search("Which code?", k=3)
    assert (hit.id, hit.positions, hit.lexical, hit.semantic) == ("7", (3, 9), 1.0, None)
    (request,) = service.asked
    assert (request.method, request.url.path) == ("POST", "/v1/memory/search")
    assert body_of(request) == {"query": "Which code?", "k": 3, "user": "anna"}
    assert request.headers["authorization"] == "Bearer lkv_x" and "idempotency-key" not in request.headers


def test_the_user_of_a_call_comes_before_that_of_the_client() -> None:
    client, service = client_of({"jobs": []}, user="anna")
    client.jobs()
    client.jobs(user="ben")
    assert [dict(request.url.params) for request in service.asked] == [{"user": "anna"}, {"user": "ben"}]


def test_address_and_key_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIVINGKV_URL", "http://elsewhere:1/v1/")
    monkeypatch.setenv("LIVINGKV_API_KEY", "lkv_secret")
    with Client() as client:
        assert repr(client) == "Client('http://elsewhere:1', user=None)"
    with Client("http://other", user="anna") as client:
        assert repr(client) == "Client('http://other', user='anna')"


@pytest.mark.parametrize("url", ["localhost:8345", "ftp://there", "http://", "http://there:x", "there"])
def test_what_is_no_address_is_told_in_a_line(url: str) -> None:
    with pytest.raises(ClientError, match=r"url: .* is none"):
        Client(url)


def test_a_key_is_taken_without_the_white_space_around_it() -> None:
    client, service = client_of({"jobs": []}, api_key=" lkv_x\n")
    client.jobs()
    assert service.asked[0].headers["authorization"] == "Bearer lkv_x"
    with pytest.raises(ClientError, match="api_key"):
        Client("http://there", api_key="lkv_\u00e4")


def test_names_are_parts_of_a_path() -> None:
    client, service = client_of(JOB)
    client.cancel("a/../b?c")
    assert service.asked[0].url.raw_path == b"/v1/jobs/a%2F..%2Fb%3Fc"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, BadRequest),
        (413, BadRequest),
        (401, NotAllowed),
        (403, NotAllowed),
        (404, NotFound),
        (409, Conflict),
        (418, ApiError),
        (429, Busy),
        (503, Busy),
        (507, StorageFull),
        (500, ServiceFailed),
        (502, ServiceFailed),
    ],
)
def test_a_refusal_is_told_by_its_kind(status: int, kind: type[ApiError]) -> None:
    client, _ = client_of(refused(status, "it cannot be", retry_after="7"), retries=Retries(0))
    with pytest.raises(kind) as caught:
        client.search("x")
    error = caught.value
    assert type(error) is kind and str(error) == error.message == "it cannot be"
    assert (error.status, error.code, error.param, error.retry_after_s) == (status, "why", "query", 7.0)


def test_an_error_of_something_between_is_told_too() -> None:
    client, _ = client_of(httpx.Response(502, text="<html>Bad gateway"))
    with pytest.raises(ServiceFailed, match=r"^the service answered 502$"):
        client.stats()


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (httpx.Response(200, text="hello"), "not JSON"),
        (httpx.Response(200, json=[]), "has no hits"),
        (httpx.Response(200, json={"hits": 3}), "a list is expected"),
        (httpx.Response(200, json={"hits": [{**HIT, "positions": [1]}]}), r"hits\[0\]: positions: a list"),
        (httpx.Response(200, json={"hits": [{**HIT, "score": True}]}), "score: float is expected"),
        (httpx.Response(200, json={"hits": [{"id": "7"}]}), "has no session"),
        (httpx.Response(307, headers={"Location": "http://evil"}), "redirection"),
    ],
)
def test_what_is_no_answer_is_told_in_a_line(answer: httpx.Response, told: str) -> None:
    client, service = client_of(answer)
    with pytest.raises(UnexpectedAnswer, match=told):
        client.search("x")
    assert len(service.asked) == 1


def test_a_busy_service_is_asked_again_with_the_same_key(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(time, "sleep", no_sleep(waits))
    client, service = client_of(refused(429, retry_after="3"), refused(503), TURN, retries=Retries(2, 0.5))
    assert client.turn("Hello").stored == ("1",)
    keys = {request.headers["idempotency-key"] for request in service.asked}
    assert len(service.asked) == 3 and len(keys) == 1
    assert waits[0] == 3 and 0.5 <= waits[1] <= 1
    client.turn("Hello")
    assert service.asked[-1].headers["idempotency-key"] not in keys


def test_it_gives_up_in_time() -> None:
    client, service = client_of(refused(503))
    with pytest.raises(Busy):
        client.search("x")
    assert len(service.asked) == 3
    client, service = client_of(refused(429, retry_after="3600"))
    with pytest.raises(Busy) as caught:
        client.search("x")
    assert len(service.asked) == 1 and caught.value.retry_after_s == 3600


def test_nothing_else_is_sent_again() -> None:
    for answer in (refused(500), httpx.ReadError("it broke"), httpx.ReadTimeout("late"), httpx.ConnectError("nobody")):
        client, service = client_of(answer)
        with pytest.raises((ServiceFailed, NoConnection)):
            client.turn("Hello")
        assert len(service.asked) == 1


def test_a_lost_answer_says_what_to_repeat_it_with() -> None:
    client, service = client_of(httpx.ReadError("it broke"), TURN)
    with pytest.raises(NoConnection, match=r"^POST /v1/memory/turn: ReadError: it broke$") as caught:
        client.turn("Hello")
    client.turn("Hello", idempotency_key=caught.value.idempotency_key)
    first, second = service.asked
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert first.content == second.content


def test_a_timeout_is_one_of_its_own() -> None:
    client, _ = client_of(httpx.ReadTimeout("late"))
    with pytest.raises(TimedOut) as caught:
        client.search("x")
    assert caught.value.idempotency_key is None


def test_a_list_is_followed_to_its_end() -> None:
    one = {
        "id": "1",
        "session": "s",
        "user": "",
        "text": "T.",
        "source": "t",
        "role": "user",
        "positions": [0, 2],
        "weight": 1,
        "recalls": 0,
        "created_s": 1,
    }
    pages = {"sentences": [one, one], "next_cursor": "c2"}, {"sentences": [one], "next_cursor": None}
    client, service = client_of(*pages)
    assert len(list(client.sentences(session="s", limit=2))) == 3
    assert dict(service.asked[1].url.params) == {"session": "s", "limit": "2", "cursor": "c2"}
    waiting, service = async_client_of(*pages)

    async def every() -> int:
        async with waiting:
            return len([one async for one in waiting.sentences(limit=2)])

    assert asyncio.run(every()) == 3


def test_waiting_for_a_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", no_sleep([]))
    done = {**JOB, "state": "done", "done": 3}
    client, _ = client_of(JOB, JOB, done)
    seen: list[Job] = []
    assert client.wait("j1", progress=seen.append).state == "done"
    assert [(job.state, job.done) for job in seen] == [("running", 1), ("done", 3)]
    client, _ = client_of({**JOB, "state": "failed", "error": {"message": "no room"}})
    with pytest.raises(JobFailed, match=r"^the ingest job j1 failed: no room$"):
        client.wait("j1")
    client, _ = client_of(JOB)
    with pytest.raises(JobUnfinished, match=r"^the ingest job j1 is running after 0 s: 1 of 3$") as caught:
        client.wait(seen[0], timeout_s=0)
    assert caught.value.job.id == "j1"


STREAM = (
    ": keepalive\n\n"
    'event: text\r\ndata: {"text": "44\u2028"}\r\n\r\n'
    'event: text\ndata: {"text": "71"}\n\n'
    "event: later\ndata: 1\n\n"
    f"event: answer\ndata: {json.dumps(ASKED)}\n\n"
)


def pieces_of(text: str, size: int) -> httpx.Response:
    """A stream that comes in pieces of so many bytes."""
    whole = text.encode()

    class Bytes(httpx.SyncByteStream, httpx.AsyncByteStream):
        def __iter__(self) -> Any:
            yield from (whole[at : at + size] for at in range(0, len(whole), size))

        async def __aiter__(self) -> Any:
            for piece in self:
                yield piece

    return httpx.Response(200, stream=Bytes())


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_streamed_answer(size: int) -> None:
    client, service = client_of(pieces_of(STREAM, size))
    with client.ask_stream("Which code?") as stream:
        assert list(stream) == ["44\u2028", "71"]
        assert stream.answer.usage.cached_tokens == 4 and stream.answer.evidence[0].id == "7"
    assert body_of(service.asked[0])["stream"] is True


def test_a_streamed_answer_is_awaited() -> None:
    async def both() -> tuple[list[str], str]:
        waiting, _ = async_client_of(pieces_of(STREAM, 5))
        async with waiting, waiting.ask_stream("Which code?") as stream:
            texts = [text async for text in stream]
        waiting, _ = async_client_of(pieces_of(STREAM, 5))
        async with waiting, waiting.ask_stream("Which code?") as stream:
            return texts, (await stream.answer()).answer

    assert asyncio.run(both()) == (["44\u2028", "71"], "4471")


def test_a_stream_that_breaks_or_fails_says_so() -> None:
    client, _ = client_of(pieces_of(STREAM[:60], 9))
    with client.ask_stream("x") as stream, pytest.raises(UnexpectedAnswer, match="ended before its answer"):
        list(stream)
    failed = 'event: error\ndata: {"error": {"message": "the service failed", "code": "internal"}}\n\n'
    client, _ = client_of(pieces_of(failed, 9))
    with client.ask_stream("x") as stream, pytest.raises(ServiceFailed, match="the service failed"):
        list(stream)
    client, service = client_of(refused(503), refused(404))
    with pytest.raises(NotFound), client.ask_stream("x"):
        raise AssertionError("it is refused before")
    assert len(service.asked) == 2


def test_an_export_is_whole_or_not_there(tmp_path: Path) -> None:
    client, service = client_of(pieces_of("bytes of a session", 4))
    assert client.export("s", tmp_path / "s.lkv", kv=False) == 18
    assert (tmp_path / "s.lkv").read_text() == "bytes of a session"
    assert dict(service.asked[0].url.params) == {"kv": "false"}

    class Broken(httpx.SyncByteStream):
        def __iter__(self) -> Any:
            yield b"half"
            raise httpx.ReadError("it broke")

    client, _ = client_of(httpx.Response(200, stream=Broken()))
    with pytest.raises(NoConnection):
        client.export("s", tmp_path / "t.lkv")
    assert [path.name for path in tmp_path.iterdir()] == ["s.lkv"]


def test_an_import_sends_the_file_as_it_is(tmp_path: Path) -> None:
    session = {
        "name": "s",
        "user": "",
        "kind": "document",
        "tokens": 1,
        "bytes": 2,
        "sentences": 1,
        "turns": 0,
        "created_s": 1,
        "updated_s": 1,
    }
    (tmp_path / "s.lkv").write_bytes(bytes(range(256)) * 2000)
    client, service = client_of(refused(503), session)
    assert client.import_file(tmp_path / "s.lkv", name="copy").name == "s"
    for request in service.asked:
        assert request.content == (tmp_path / "s.lkv").read_bytes()
        assert request.headers["content-length"] == "512000" and "transfer-encoding" not in request.headers
        assert request.headers["content-type"] == "application/octet-stream"
        assert dict(request.url.params) == {"name": "copy", "kv": "true"}
