"""Requests side by side: cancelled ones, too many, long ones beside short ones, sessions that leave the device."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from torch import Tensor

from livingkv.errors import ModelError, RecordDamaged
from livingkv.hot_window import HotWindow
from livingkv.memory import Memory
from livingkv.runner import Runner
from livingkv.sampling import Sampler
from livingkv.server.api_errors import ApiError
from livingkv.server.counters import Counters
from livingkv.server.inference_thread import InferenceThread, Phase
from livingkv.server.joining import Joining
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from livingkv.server.serving import serve
from livingkv.settings import Settings
from tests.server.serving import CHAT, Served, cached, said, scripted, serving, slowly, talk, tiny_model, wait_until

LONG = "Word after word is read. " * 40


def raw_request(served: Served, body: str) -> socket.socket:
    """A request sent on a socket of its own, whose answer nobody waits for; closing it gives the request up."""
    url = httpx.URL(served.url)
    made = socket.create_connection((url.host, url.port or 80))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {url.host}\r\nContent-Type: application/json\r\n"
    made.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
    return made


@pytest.mark.parametrize("stream", ["true", "false"])
@pytest.mark.parametrize("during", ["prompt", "reply"])
def test_a_client_that_goes_away_ends_the_work_within_a_second(
    served: Served, monkeypatch: pytest.MonkeyPatch, stream: str, during: str
) -> None:
    slowly(monkeypatch, 0.05)
    scripted(monkeypatch, "and so on " * 100)
    text, until = (LONG * 2, "prefilled_tokens_total") if during == "prompt" else ("Hi.", "generated_tokens_total")
    cancelled, turns, before = (served.count(name) for name in ("cancelled_total", "turns_total", until))
    body = f'{{"messages":[{{"role":"user","content":"{text}"}}],"stream":{stream},"user":"{served.user}"}}'
    with raw_request(served, body):
        wait_until(lambda: served.count(until) > before)
    gone = time.monotonic()
    wait_until(lambda: served.count("cancelled_total") == cancelled + 1)
    assert time.monotonic() - gone < 1.0
    wait_until(lambda: served.count("running") == 0)
    assert served.count("turns_total") == turns
    with Memory.open(served.folder / "default", read_only=True) as memory:
        assert not any(row.name.startswith(f"{served.user}/") for row in memory.sessions())


def test_a_turn_that_was_given_up_leaves_its_session_as_it_was(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    first = served.chat("Hello there", session="anna")
    slowly(monkeypatch, 0.05)
    before, cancelled = served.count("generated_tokens_total"), served.count("cancelled_total")
    scripted(monkeypatch, "and so on " * 100, "Fine.")
    with served.client.stream(
        "POST", CHAT, json={"messages": talk("Hello there", said(first), "More."), "session": "anna", "stream": True,
                            "user": served.user},
    ):  # fmt: skip
        wait_until(lambda: served.count("generated_tokens_total") > before)
    wait_until(lambda: served.count("cancelled_total") == cancelled + 1)
    again = served.chat("Hello there", said(first), "More.", session="anna")
    assert cached(again) == first["usage"]["total_tokens"] and again["livingkv"]["session"] == "anna"


def test_health_answers_while_a_long_prompt_is_read(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.1)
    before = served.count("prefilled_tokens_total")
    body = f'{{"messages":[{{"role":"user","content":"{LONG * 2}"}}],"max_tokens":1,"user":"{served.user}"}}'
    with raw_request(served, body):
        wait_until(lambda: served.count("prefilled_tokens_total") > before)
        times = []
        for path in ("/health", "/v1/models", "/ready") * 5:
            started = time.monotonic()
            assert served.client.get(path).status_code == 200
            times.append(time.monotonic() - started)
        assert served.count("running") == 1 and median(times) < 0.2
    wait_until(lambda: served.count("running") == 0)


@pytest.mark.slow
def test_a_short_request_does_not_wait_for_a_long_one(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    slowly(monkeypatch, 0.15)
    before, turns = served.count("prefilled_tokens_total"), served.count("turns_total")
    body = f'{{"messages":[{{"role":"user","content":"{LONG * 2}"}}],"max_tokens":1,"user":"{served.user}-2"}}'
    with raw_request(served, body):
        wait_until(lambda: served.count("prefilled_tokens_total") > before)
        served.chat("Hi.", max_tokens=1)
        assert served.count("turns_total") == turns + 1, "the long one is still read"
    wait_until(lambda: served.count("running") == 0)


def test_turns_of_one_session_wait_for_one_another(served: Served) -> None:
    first = served.chat("Hello there", session="anna")
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda n: served.chat(f"More {n}.", memory={"session": "anna", "history": "stored"}), range(4))
        )
    assert {answer["livingkv"]["session"] for answer in answers} == {"anna"}
    text = served.stored("anna").decode()
    assert [text.count(f"More {n}.") for n in range(4)] == [1, 1, 1, 1] and text.startswith("Hello there")
    assert said(first) in text


@pytest.mark.slow
def test_too_many_requests_are_told_to_come_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "stores", n_waiting=1, n_side_by_side=1) as served:
        slowly(monkeypatch, 0.05)
        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(lambda n: served.post({"messages": talk(f"Hello {n}")}), range(8)))
        refused = [answer for answer in answers if answer.status_code == 429]
        assert refused and {answer.status_code for answer in answers} == {200, 429}
        assert all(answer.headers["retry-after"].isdecimal() for answer in refused)
        assert refused[0].json()["error"]["code"] == "queue_full"


@pytest.mark.slow
def test_idle_sessions_leave_the_device_and_nobody_notices(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", idle_s=0.1) as served:
        first = served.chat("Hello there")
        tenant = served.service._parts.tenants.open_one("default")  # type: ignore[union-attr]
        wait_until(lambda: not tenant.home._hot)
        second = served.chat("Hello there", said(first), "More.")
        assert cached(second) == first["usage"]["total_tokens"]


def thread_of(prepare: Callable[[], None], finish: Callable[[], None] = lambda: None) -> InferenceThread:
    """An inference thread without a model."""
    joining = Joining(8, lambda n_rows: None)
    return InferenceThread(
        prepare, lambda: None, finish, Counters(), joining, n_waiting=2, n_side_by_side=2, idle_s=0.05
    )


def test_a_model_that_does_not_load_is_told() -> None:
    def broken() -> None:
        raise OSError("no such file")

    thread = thread_of(broken)
    thread.start()
    wait_until(lambda: thread.phase is Phase.FAILED)
    assert isinstance(thread.error, OSError) and thread.stop(1)


def test_stopping_closes_jobs_and_then_finishes() -> None:
    done: list[str] = []
    begun = threading.Event()

    def work() -> object:
        try:
            while True:
                begun.set()
                time.sleep(0.01)
                yield None
        finally:
            done.append("closed")

    thread = thread_of(lambda: None, lambda: done.append("finished"))
    thread.start()
    wait_until(lambda: thread.phase is Phase.READY)
    thread.submit(work, lambda error: done.append(type(error).__name__))  # type: ignore[arg-type]
    assert begun.wait(5) and thread.stop(5)
    assert done == ["closed", "ApiError", "finished"]


def endless(begun: threading.Semaphore, done: list[str]) -> Callable[[], Iterator[None]]:
    """A job that goes on until it is closed, which fails."""

    def steps() -> Iterator[None]:
        begun.release()
        try:
            while True:
                time.sleep(0.01)
                yield
        finally:
            done.append("closed")
            raise OSError("it cannot be closed")

    return steps


@pytest.mark.parametrize("fails", [True, False])
def test_jobs_that_cannot_be_closed_keep_neither_the_others_nor_the_end_back(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    done: list[str] = []
    begun = threading.Semaphore(0)
    thread = thread_of(lambda: None, lambda: done.append("finished"))
    thread.start()
    wait_until(lambda: thread.phase is Phase.READY)
    for _ in range(2):
        thread.submit(endless(begun, done), lambda error: done.append(str(error)))
        assert begun.acquire(timeout=5)
    if fails:
        monkeypatch.setattr(thread, "_round", lambda: 1 // 0)
        wait_until(lambda: thread.phase is Phase.FAILED)
    assert thread.stop(5)
    told = "the service failed and ends: it has to be started again" if fails else "the service is stopping"
    assert done == ["closed", told, "closed", told, "finished"]
    assert isinstance(thread.error, ZeroDivisionError) is fails
    with pytest.raises(ApiError, match=told):
        thread.submit(endless(begun, done), lambda error: None)


def test_stores_that_cannot_be_closed_are_a_failure() -> None:
    def broken() -> None:
        raise OSError("no space left")

    thread = thread_of(lambda: None, broken)
    thread.start()
    assert thread.stop(5) and thread.phase is Phase.FAILED and isinstance(thread.error, OSError)


def test_a_service_whose_thread_fails_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Service) -> None:
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(Service, "_idle", broken)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    options = ServerOptions(
        tmp_path / "stores", port=0, idle_s=0.05, settings=Settings(block_tokens=64, window_tokens=1024)
    )
    with pytest.raises(ModelError, match="the service failed: RuntimeError"):
        serve(options, tiny_model(), lambda line: None)


def endlessly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have replies end at their limit only."""

    def generate(self: Runner, logits: Tensor, state: Any, sampler: Sampler, max_tokens: int) -> Iterator[int]:
        for _ in range(max_tokens):
            token = sampler.pick(logits[0, -1])
            yield token
            logits = self.step(token, state)

    monkeypatch.setattr(Runner, "generate", generate)


def rows_of(served: Served) -> tuple[float, float]:
    return served.count("batch_rows_sum"), served.count("batch_rows_count")


def test_replies_share_passes_and_are_what_they_are_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    endlessly(monkeypatch)
    texts = [f"Tell me about the {word}." for word in ("harbour", "lamp", "tower", "tin")]
    alone = [said(served.chat(text, user=f"{served.user}-a{n}", max_tokens=24)) for n, text in enumerate(texts)]
    slowly(monkeypatch, 0.02)
    rows, passes = rows_of(served)
    with ThreadPoolExecutor(4) as pool:
        together = list(
            pool.map(lambda n: said(served.chat(texts[n], user=f"{served.user}-b{n}", max_tokens=24)), range(4))
        )
    assert together == alone
    more_rows, more_passes = rows_of(served)
    assert more_rows - rows > 1.2 * (more_passes - passes)


@pytest.mark.slow
def test_one_that_goes_away_in_a_shared_pass_leaves_the_others_as_they_were(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    endlessly(monkeypatch)
    alone = said(served.chat("Hello there", user=f"{served.user}-1", max_tokens=32))
    slowly(monkeypatch, 0.02)
    cancelled, generated = served.count("cancelled_total"), served.count("generated_tokens_total")
    body = f'{{"messages":[{{"role":"user","content":"Hi."}}],"max_tokens":2000,"user":"{served.user}-2"}}'
    with ThreadPoolExecutor(1) as pool:
        with raw_request(served, body):
            wait_until(lambda: served.count("generated_tokens_total") > generated)
            rows, passes = rows_of(served)
            staying = pool.submit(served.chat, "Hello there", user=f"{served.user}-3", max_tokens=32)
            wait_until(lambda: served.count("batch_rows_sum") - rows > served.count("batch_rows_count") - passes + 3)
        wait_until(lambda: served.count("cancelled_total") == cancelled + 1)
        assert said(staying.result()) == alone


@pytest.mark.slow
def test_a_damaged_page_under_one_reply_does_not_end_the_others(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = said(served.chat("Hello there", user=f"{served.user}-1", max_tokens=24))
    attend, bad = HotWindow.attend, list[int]()

    def damaged(self: HotWindow, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if query.shape[2] > 60:
            bad.append(id(self))  # the long prompt's
        if query.shape[2] == 1 and id(self) in bad:
            raise RecordDamaged("a page cannot be read")
        return attend(self, layer, query, key, value, scale)

    monkeypatch.setattr(HotWindow, "attend", damaged)
    slowly(monkeypatch, 0.02)
    with ThreadPoolExecutor(2) as pool:
        long = pool.submit(served.post, {"messages": talk(LONG), "max_tokens": 24, "user": f"{served.user}-2"})
        short = pool.submit(served.chat, "Hello there", user=f"{served.user}-3", max_tokens=24)
        assert said(short.result()) == alone
        assert long.result().status_code == 500
