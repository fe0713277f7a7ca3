"""Calls of the library inside of a running service: side by side, given up, alone, in the background."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from livingkv.errors import UnsupportedModel
from livingkv.memory import Memory
from livingkv.server.api_errors import ApiError
from livingkv.server.counters import Counters
from livingkv.server.inference_thread import InferenceThread
from livingkv.server.joining import Joining
from livingkv.server.service import Made
from livingkv.server.tenants import Tenant
from tests.server.serving import Served, serving

TEXT = b"The harbour master keeps the key of the tower in a tin. The lamp burns oil.\n" * 30


def ingest(tenant: Tenant, name: str) -> int:
    return tenant.memory.ingest("book", text=TEXT, session=name).n_tokens


def ask(tenant: Tenant, session: str | None = None) -> tuple[str, int]:
    answer = tenant.memory.ask("Where is the key of the tower?", mode="kv", session=session, max_tokens=8)
    return answer.answer, answer.prefilled_tokens


def test_what_is_called_in_steps_is_what_the_library_gives(served: Served, tmp_path: Path) -> None:
    async def both() -> tuple[object, object]:
        await served.service.call("calls", lambda tenant: ingest(tenant, "a"))
        alone = await served.service.call("calls", ask)
        beside = await asyncio.gather(*(served.service.call("calls", ask) for _ in range(4)))
        assert all(each == alone for each in beside)  # counts of passes included
        return alone, beside

    alone, _ = asyncio.run(both())
    with Memory.open(served.folder / "calls", read_only=True, model=served.service._ready().model) as memory:
        answer = memory.ask("Where is the key of the tower?", mode="kv", max_tokens=8)
    assert alone == (answer.answer, answer.prefilled_tokens)


def test_texts_come_as_they_are_made(served: Served) -> None:
    async def follow() -> list[str | Made[int]]:
        def work(tenant: Tenant, tell: object) -> int:
            assert callable(tell)
            tell("one")
            tell("two")
            return 3

        return [each async for each in served.service.follow("follow", work)]

    assert asyncio.run(follow()) == ["one", "two", Made(3)]


def test_errors_are_told_as_to_clients(served: Served) -> None:
    with pytest.raises(ApiError) as told:
        asyncio.run(served.service.call("none", lambda tenant: tenant.memory.session("nobody")))
    assert told.value.status == 404


def test_what_is_given_up_leaves_the_tenant_usable(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:

        async def give_up() -> int:
            work = asyncio.ensure_future(served.service.call("t", lambda tenant: ingest(tenant, "a")))
            await asyncio.sleep(0.05)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            return await served.service.call("t", lambda tenant: ingest(tenant, "a"))

        assert asyncio.run(give_up()) > 0
        assert served.service._ready().tenants.open_one("t").gate.is_free


def refusing() -> None:
    raise UnsupportedModel("m: it has no experts")


def breaking() -> None:
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(("prepare", "has_traceback"), [(refusing, False), (breaking, True)])
def test_a_model_that_is_refused_is_logged_without_a_traceback(
    prepare: Callable[[], None], has_traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    joining = Joining(8, lambda n_rows: None)
    thread = InferenceThread(
        prepare, lambda: None, lambda: None, Counters(), joining, n_waiting=8, n_side_by_side=1, idle_s=60.0
    )
    thread.start()
    while thread.phase.value == "starting":
        pass
    assert thread.stop(60.0) and type(thread.error) in (UnsupportedModel, ZeroDivisionError)
    (logged,) = [one for one in caplog.records if "inference thread failed" in one.getMessage()]
    assert bool(logged.exc_info) is has_traceback


def test_background_work_goes_on_beside_requests() -> None:
    """Requests are served while two long jobs of the background fill its places."""
    done: list[str] = []
    counters, ended = Counters(), threading.Event()
    thread = InferenceThread(
        lambda: None,
        lambda: None,
        lambda: None,
        counters,
        Joining(8, lambda n_rows: None),
        n_waiting=8,
        n_side_by_side=1,
        idle_s=60.0,
    )

    def steps(name: str, n_steps: int) -> Iterator[None]:
        for _ in range(n_steps):
            yield
        done.append(name)
        if len(done) == 4:
            ended.set()

    def failed(error: Exception) -> None:
        raise AssertionError(error)

    thread.start()
    while thread.phase.value == "starting":
        pass
    for name in ("background 0", "background 1"):
        thread.submit(partial(steps, name, 2000), failed, background=True)
    for name in ("request 0", "request 1"):
        thread.submit(partial(steps, name, 3), failed)
    assert ended.wait(10.0)
    thread.stop(1.0)
    assert done[:2] == ["request 0", "request 1"]
