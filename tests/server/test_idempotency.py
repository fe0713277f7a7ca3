"""Answers by key: kept a day, so many of them, errors never."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest
from starlette.requests import Request
from starlette.responses import Response

from livingkv.server.api_errors import ApiError
from livingkv.server.idempotency import KEPT_S, Idempotency, Make
from livingkv.store import IdempotencyKey


def request_of(key: str, body: bytes = b"x", path: str = "/v1/x") -> Request:
    """A request with a key."""

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": body, "more_body": False}

    headers = [(b"idempotency-key", key.encode()), (b"host", b"h")]
    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": headers}
    return Request(scope, receive)


def counting(calls: list[int]) -> Make:
    """What counts how often it is made."""

    async def make(key: IdempotencyKey | None) -> Response:
        calls.append(1)
        await asyncio.sleep(0)
        return Response(str(len(calls)))

    return make


def test_a_key_holds_for_one_tenant_user_and_path_and_for_a_day() -> None:
    async def run() -> None:
        now, calls = [0.0], list[int]()
        once = Idempotency(now=lambda: now[0])
        first = await once.once(request_of("k"), "t", "u", counting(calls))
        assert await once.once(request_of("k"), "t", "u", counting(calls)) is first
        for tenant, user, path in (("s", "u", "/v1/x"), ("t", "v", "/v1/x"), ("t", "u", "/v1/y")):
            assert await once.once(request_of("k", path=path), tenant, user, counting(calls)) is not first
        assert len(calls) == 4
        now[0] = KEPT_S + 1
        assert await once.once(request_of("k", b"another"), "t", "u", counting(calls)) is not first

    asyncio.run(run())


def test_so_many_are_kept_the_newest() -> None:
    async def run() -> None:
        calls = list[int]()
        once = Idempotency(most=3)
        for name in ("a", "b", "c", "d", "d", "b", "a"):
            await once.once(request_of(name), "t", "", counting(calls))
        assert len(calls) == 5

    asyncio.run(run())


def test_an_error_is_told_to_who_waits_and_not_kept() -> None:
    async def run() -> None:
        once, calls = Idempotency(), list[int]()

        async def fail(key: IdempotencyKey | None) -> Response:
            await asyncio.sleep(0.01)
            raise ApiError(507, "full")

        both = (once.once(request_of("k"), "t", "", make) for make in (fail, counting(calls)))
        told = await asyncio.gather(*both, return_exceptions=True)
        assert [str(each) for each in told] == ["full", "full"] and not calls
        assert (await once.once(request_of("k"), "t", "", counting(calls))).body == b"1"

    asyncio.run(run())


def test_it_goes_on_though_who_asked_first_is_gone() -> None:
    async def run() -> None:
        once, calls = Idempotency(), list[int]()
        first = asyncio.ensure_future(once.once(request_of("k"), "t", "", counting(calls)))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await once.once(request_of("k"), "t", "", counting(calls))).body == b"1"

    asyncio.run(run())


def test_what_was_forgotten_is_not_told_again() -> None:
    async def run() -> None:
        once, go_on = Idempotency(), asyncio.Event()

        async def slow(key: IdempotencyKey | None) -> Response:
            await go_on.wait()
            return Response("quoted")

        async def quick(key: IdempotencyKey | None) -> Response:
            return Response("quoted")

        def ask(key: str, tenant: str, make: Make) -> Awaitable[Response]:
            return once.once(request_of(key), tenant, "", make, unquoted=lambda answer: Response("left"))

        for tenant in ("t", "s"):
            assert (await ask("k", tenant, quick)).body == b"quoted"
        under_way = asyncio.ensure_future(ask("l", "t", slow))
        await asyncio.sleep(0.01)
        await asyncio.to_thread(once.forgotten, "t")
        await asyncio.sleep(0)
        go_on.set()
        assert (await under_way).body == b"quoted"  # who waited from the start
        assert (await ask("k", "t", quick)).body == (await ask("l", "t", slow)).body == b"left"
        assert (await ask("k", "s", quick)).body == b"quoted"

    asyncio.run(run())
