"""The service as a process: ready, stopped by SIGTERM, killed, started again; LangChain as its client."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from livingkv.memory import Memory
from tests.server.serving import CHAT, cached, said, talk
from tests.server.serving_process import CODE, process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ [\w.]+: ")


def turn(client: httpx.Client, *texts: str, **fields: Any) -> Any:
    """One greedy turn."""
    answer = client.post(CHAT, json={"messages": talk(*texts), "temperature": 0, "max_tokens": 12, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def stopped(made: subprocess.Popen[str]) -> int:
    """Tell it to stop; the exit code, within 10 s."""
    made.send_signal(signal.SIGTERM)
    return made.wait(10)


def prefilled(client: httpx.Client) -> float:
    """What the counter says."""
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("livingkv_prefilled_tokens_total"))


def test_ready_stopped_and_started_again(tmp_path: Path, tiny_folder: Path) -> None:
    with process(tmp_path / "stores", tiny_folder) as (made, client):
        assert client.get("/ready").status_code == 200
        first = turn(client, "Hello there")
        assert stopped(made) == 0
    with process(tmp_path / "stores", tiny_folder) as (made, client):
        second = turn(client, "Hello there", said(first), "And now?")
        assert cached(second) == first["usage"]["total_tokens"]
        assert prefilled(client) == second["usage"]["prompt_tokens"] - cached(second)
        assert stopped(made) == 0


def test_answers_on_a_connection_that_is_kept_open_are_not_held_back(tmp_path: Path, tiny_folder: Path) -> None:
    """Without TCP_NODELAY the kernel waits with a body for the client's ACK of its headers, which takes 40 ms."""
    took = []
    with process(tmp_path / "stores", tiny_folder) as (_, client):
        for _ in range(60):
            started = time.perf_counter()
            assert client.get("/health").status_code == 200
            took.append(time.perf_counter() - started)
    assert min(took[30:]) < 0.03


def test_a_stream_that_is_cut_by_a_stop_leaves_no_half_turn(tmp_path: Path, tiny_folder: Path) -> None:
    with process(tmp_path / "stores", tiny_folder, "--context", "1000000", "--window", "16384") as (made, client):
        first = turn(client, "Hello there", session="anna")
        body = {
            "messages": talk("Hello there", said(first), "Speak. " * 20000),
            "session": "anna", "stream": True, "max_tokens": 16384,
        }  # fmt: skip
        with client.stream("POST", CHAT, json=body) as stream:
            lines = stream.iter_lines()
            assert '"role":"assistant"' in next(lines)
            started = time.monotonic()
            assert stopped(made) == 0
            assert time.monotonic() - started < 10
            with pytest.raises(httpx.RemoteProtocolError):
                assert "data: [DONE]" not in list(lines)
            assert made.stderr is not None
            told = made.stderr.read().splitlines()
            assert told and all(LOG_LINE.match(line) for line in told), told
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        assert memory.session("anna").n_turns == 1 and memory.check().ok


def test_unfinished_uploads_are_cut_by_a_stop_without_a_trace(tmp_path: Path, tiny_folder: Path) -> None:
    with process(tmp_path / "stores", tiny_folder) as (made, client), ExitStack() as uploads:
        host, port = client.base_url.host, client.base_url.port or 80
        for framing in ("Content-Length: 100000", "Transfer-Encoding: chunked"):
            sending = uploads.enter_context(socket.create_connection((host, port), timeout=15))
            head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
            sending.sendall(head.encode())
        time.sleep(0.5)
        started = time.monotonic()
        assert stopped(made) == 0 and time.monotonic() - started < 10
        assert b" 503 " in sending.recv(4096)
        assert made.stderr is not None
        lines = made.stderr.read().splitlines()
    assert lines and all(LOG_LINE.match(line) for line in lines), lines


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path, tiny_folder: Path) -> None:
    texts = ["Hello there"]
    for n in range(3):
        with process(tmp_path / "stores", tiny_folder) as (made, client):
            answer = turn(client, *texts, session="anna")
            texts += [said(answer), f"Turn {n}."]
            with client.stream(
                "POST", CHAT, json={"messages": talk(*texts), "session": "anna", "stream": True, "max_tokens": 500}
            ):
                made.send_signal(signal.SIGKILL)
                made.wait(10)
    with Memory.open(tmp_path / "stores" / "default", read_only=True) as memory:
        text = memory.text("anna").decode()
        assert memory.check().ok and all(text.count(said_once) == 1 for said_once in texts[:-1] if said_once)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--host", "0.0.0.0"], "without --keys"),
        (["--keys", "/nowhere/missing.json"], "keys file"),
        (["--host", "256.0.0.1"], "host"),
        (["--window", "100"], "window_tokens"),
    ],
)
def test_what_cannot_be_served_is_one_line(tmp_path: Path, tiny_folder: Path, options: list[str], told: str) -> None:
    argv = [sys.executable, "-c", CODE, "serve", str(tmp_path / "s"), "--model", str(tiny_folder), *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and told in done.stderr.splitlines()[-1] and "Traceback" not in done.stderr


def test_a_model_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", CODE, "serve", str(tmp_path / "s"), "--model", str(tmp_path / "no"), "--port", "0"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("livingkv: ")


def test_langchain(tmp_path: Path, tiny_folder: Path) -> None:
    from langchain_openai import ChatOpenAI  # seconds to import, which only this test shall take

    with process(tmp_path / "stores", tiny_folder) as (_, client):
        chat = ChatOpenAI(
            base_url=f"{str(client.base_url).rstrip('/')}/v1",
            api_key=SecretStr("none"),
            model=tiny_folder.name,
            max_completion_tokens=8,
            temperature=0,
        )
        with closing(chat.root_client):
            whole = chat.invoke("Hello there")
            told = "".join(str(chunk.text) for chunk in chat.stream("Hello there"))
            more = chat.invoke([("user", "Hello there"), ("assistant", str(whole.text)), ("user", "More.")])
    assert whole.usage_metadata is not None and more.usage_metadata is not None
    assert whole.usage_metadata["output_tokens"] == 8 and told == whole.text
    assert more.usage_metadata["input_token_details"]["cache_read"] == whole.usage_metadata["total_tokens"]
