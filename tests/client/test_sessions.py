"""Sessions and their files through the client, against a service that runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from livingkv.client import AsyncClient, Client, Conflict, NotFound
from tests.server.serving import Served

FACT = "The code of the garage is 4471."


def test_the_life_of_a_session(client: Client, served: Served, tmp_path: Path) -> None:
    made = client.create_session("trip")
    assert (made.name, made.user, made.tokens) == ("trip", served.user, 0)
    with pytest.raises(Conflict):
        client.create_session("trip")
    client.turn(FACT, session="trip")
    shown = client.session("trip")
    assert shown.sentences == 1 and shown.timeline[0].sentences == 1 and shown.sources
    assert client.save("trip").tokens == shown.tokens
    restored = client.restore("trip")
    assert restored.tokens == shown.tokens == restored.reused_tokens + restored.prefilled_tokens
    assert client.fork("trip", "other").tokens == shown.tokens
    assert client.change_session("other", new_name="third", pinned=True).pinned
    assert {one.name for one in client.sessions(limit=1)} == {"trip", "third"}
    size = client.export("trip", tmp_path / "trip.lkv")
    assert size == (tmp_path / "trip.lkv").stat().st_size > 0
    assert client.import_file(tmp_path / "trip.lkv", name="back").sentences == 1
    assert {hit.session for hit in client.search("What is the code of the garage?")} == {"trip", "third", "back"}
    counted = client.would_forget_session("third")
    assert client.forget_session("third").counts == counted and counted.sentences == 1
    with pytest.raises(NotFound):
        client.session("third")


def test_a_session_goes_to_a_file_and_back_awaited(served: Served, tmp_path: Path) -> None:
    async def life() -> None:
        async with AsyncClient(served.url, user=served.user) as client:
            await client.turn(FACT)
            size = await client.export("default", tmp_path / "s.lkv", kv=False)
            assert size == (tmp_path / "s.lkv").stat().st_size
            assert (await client.import_file(tmp_path / "s.lkv", name="copy")).sentences == 1
            assert {one.name async for one in client.sessions()} == {"default", "copy"}

    asyncio.run(life())
