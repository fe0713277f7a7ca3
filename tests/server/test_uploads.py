"""Bodies on their way: bounded in number, in bytes and in slowness, and counted."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from starlette.datastructures import Headers
from starlette.types import Message

from livingkv.server import receiving
from livingkv.server.api_errors import ApiError
from livingkv.server.uploads import counted
from tests.server.serving import CHAT, Served, serving, talk, wait_until


@contextmanager
def upload(served: Served, body: bytes, length: int | None = 50_000) -> Iterator[socket.socket]:
    """A request whose body is begun; length: None sends it in chunks."""
    host, port = served.client.base_url.host, served.client.base_url.port
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    sent = body if length is not None else b"%x\r\n%s\r\n" % (len(body), body)
    with socket.create_connection((host, port or 80), timeout=10) as made:
        made.sendall(head.encode() + sent)
        yield made


def answered(made: socket.socket) -> str:
    """The first line of the answer."""
    return made.recv(65536).partition(b"\r\n")[0].decode()


@pytest.fixture(scope="module", name="narrow")
def start_narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that takes two uploads at once, and 64 KiB of them."""
    with serving(
        tmp_path_factory.mktemp("narrow") / "stores", max_uploads=2, max_upload_bytes=1 << 16, max_body_bytes=1 << 16
    ) as served:
        yield served


def is_quiet(served: Served) -> bool:
    """Nothing is being received."""
    return served.count("uploads") == 0 == served.count("upload_bytes")


def test_uploads_are_counted_and_one_too_many_is_told_to_come_again(narrow: Served) -> None:
    refused = narrow.count("uploads_refused_total")
    with upload(narrow, b"{" * 1000), upload(narrow, b"{" * 500, None):
        wait_until(lambda: narrow.count("upload_bytes") == 1500)
        assert narrow.count("uploads") == 2
        answer = narrow.post({"messages": talk("Hi.")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_uploads")
        assert int(answer.headers["retry-after"]) > 0
        assert narrow.client.get("/v1/models").status_code == 200
    wait_until(lambda: is_quiet(narrow))
    assert narrow.count("uploads_refused_total") == refused + 1
    assert narrow.post({"messages": talk("Hi.")}).status_code == 200


def test_all_uploads_together_hold_so_many_bytes(narrow: Served) -> None:
    with upload(narrow, b"{" * 40_000):
        wait_until(lambda: narrow.count("upload_bytes") == 40_000)
        answer = narrow.post({"messages": talk("x" * 40_000)})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_uploads")
        assert narrow.post({"messages": talk("Hi.")}).status_code == 200
    wait_until(lambda: is_quiet(narrow))


@pytest.mark.parametrize("length", [50_000, None])
def test_a_body_that_stalls_is_cut(narrow: Served, monkeypatch: pytest.MonkeyPatch, length: int | None) -> None:
    monkeypatch.setattr(receiving, "PATIENCE_S", 0.2)
    started = time.monotonic()
    with upload(narrow, b"{" * 1000, length) as made:
        assert " 408 " in answered(made) and time.monotonic() - started < 2
    wait_until(lambda: is_quiet(narrow))


@pytest.mark.slow
def test_a_body_that_trickles_is_cut_and_one_that_is_fast_enough_is_not(
    narrow: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiving, "PATIENCE_S", 0.4)
    monkeypatch.setattr(receiving, "LEAST_BYTES", 1000)

    def slow(size: int) -> Iterator[bytes]:
        yield b'{"messages": [{"role": "user", "content": "Hi."}], "max_tokens": 2'
        for _ in range(9):
            time.sleep(0.1)
            yield b" " * size
        yield b"}"

    kind = {"Content-Type": "application/json"}
    assert narrow.client.post(CHAT, content=slow(500), headers=kind).status_code == 200
    assert narrow.client.post(CHAT, content=slow(1), headers=kind).status_code == 408
    wait_until(lambda: is_quiet(narrow))


def test_a_length_and_chunks_at_once_are_refused(narrow: Served) -> None:
    host, port = narrow.client.base_url.host, narrow.client.base_url.port
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    for framing in ("Content-Length: 2\r\nTransfer-Encoding: chunked", "Content-Length: 2\r\nContent-Length: 3"):
        with socket.create_connection((host, port or 80), timeout=10) as made:
            made.sendall(f"{head}{framing}\r\n\r\n".encode() + b"2\r\n{}\r\n0\r\n\r\n")
            assert " 400 " in answered(made)


def test_a_client_that_goes_away_while_it_sends_holds_nothing(narrow: Served, tmp_path: Path) -> None:
    with upload(narrow, b"{" * 1000):
        wait_until(lambda: narrow.count("uploads") == 1)
    wait_until(lambda: is_quiet(narrow), 2)


@pytest.mark.parametrize(("size", "is_cut"), [(1, True), (500, False)])
def test_a_body_that_is_passed_on_has_to_come_as_fast(monkeypatch: pytest.MonkeyPatch, size: int, is_cut: bool) -> None:
    monkeypatch.setattr(receiving, "PATIENCE_S", 0.2)
    monkeypatch.setattr(receiving, "LEAST_BYTES", 1000)
    left = iter(range(12))

    async def trickle() -> Message:
        await asyncio.sleep(0.05)
        return {"type": "http.request", "body": b" " * size, "more_body": next(left) < 10}

    async def received() -> int:
        receive, n_bytes = counted(Headers({}), trickle, 1 << 20), 0
        while True:
            message = await receive()
            n_bytes += len(message["body"])
            if not message["more_body"]:
                return n_bytes

    if is_cut:
        with pytest.raises(ApiError, match="too slowly"):
            asyncio.run(received())
    else:
        assert asyncio.run(received()) == 11 * size


def test_a_body_that_is_passed_on_has_a_place(narrow: Served) -> None:
    with upload(narrow, b"{" * 1000), upload(narrow, b"{" * 500, None):
        wait_until(lambda: narrow.count("uploads") == 2)
        kind = {"Content-Type": "application/octet-stream"}
        answer = narrow.client.post("/v1/import", content=b"x", headers=kind)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "too_many_uploads")
    wait_until(lambda: is_quiet(narrow))
