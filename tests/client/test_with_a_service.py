"""Every method of the client against a service that runs, over a real socket."""

from __future__ import annotations

import asyncio
import inspect
from pathlib import Path
from typing import Any

import httpx
import pytest

from livingkv.client import AskResult, AsyncClient, Client, Conflict, Job, NoConnection, NotAllowed, NotFound
from livingkv.server.keys import make_key
from tests.server.serving import Served, scripted, serving, slowly, wait_until

FACT = "The code of the garage is 4471."
QUESTION = "What is the code of the garage?"


def test_turns_are_stored_and_found(client: Client, served: Served) -> None:
    first = client.turn(FACT, session="home")
    assert len(first.stored) == 1 and first.session == "home" and first.recalled == ()
    second = client.turn(
        [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": "It is 4471."}], session="home", k=3
    )
    assert second.recalled[0].text == FACT and second.recalled[0].id == first.stored[0]
    assert second.confident is not None and second.usage is not None and second.timings_ms
    (hit,) = client.search(QUESTION, k=1)
    assert (hit.session, hit.user, hit.role, hit.positions[0] < hit.positions[1]) == ("home", served.user, "user", True)
    assert client.search(QUESTION, role="assistant")[0].text == "It is 4471."
    assert served.stored("home").startswith(FACT.encode())


def test_questions_whole_and_streamed(client: Client) -> None:
    client.turn(FACT)
    whole = client.ask(QUESTION, mode="extract")
    assert isinstance(whole, AskResult) and "4471" in whole.answer and whole.evidence[0].text
    with client.ask_stream(QUESTION, mode="extract") as stream:
        texts = list(stream)
        assert "".join(texts) == whole.answer == stream.answer.answer
    with client.ask_stream(QUESTION, mode="ground", max_tokens=4) as stream:
        assert stream.answer.mode == "ground"
    with pytest.raises(NotFound), client.ask_stream(QUESTION, session="nowhere"):
        raise AssertionError("it is refused before")


def test_sentences_listed_shown_replaced_and_forgotten(client: Client) -> None:
    ids = [client.turn(f"Lamp {number} is blue.").stored[0] for number in range(5)]
    assert [one.id for one in client.sentences(limit=2)] == ids
    shown = client.sentence(ids[2])
    assert shown.text.strip() == "Lamp 2 is blue." and shown.before[-1].strip() == "Lamp 1 is blue."
    assert shown.after[0].strip() == "Lamp 3 is blue." and shown.weight >= 0
    new = client.edit(ids[2], "Lamp 2 is red.")
    assert new.text == "Lamp 2 is red." and new.id != ids[2]
    with pytest.raises(NotFound):
        client.sentence(ids[2])
    assert client.forget_sentence(ids[0]).counts.sentences == 1
    assert client.would_forget(ids=ids[3:]).sentences == 2
    receipt = client.forget(ids=ids[3:])
    assert receipt.counts.sentences == 2 and receipt.bytes.text > 0
    left = [one.text.strip() for one in client.sentences()]
    assert left == ["Lamp 1 is blue.", "Lamp 2 is red."]
    counted = client.would_forget(session="default")
    assert client.forget(session="default").counts == counted
    assert list(client.sentences()) == []


def test_a_text_is_ingested_as_a_job(client: Client) -> None:
    text = " ".join(f"Line {number} of the book is here." for number in range(60))
    job = client.ingest(text, source="book", session="library")
    seen: list[Job] = []
    done = client.wait(job, timeout_s=20, progress=seen.append)
    assert done.state == "done" and done.kind == "ingest" and seen[-1] == done and done.ended_s is not None
    assert client.jobs()[0].id == job.id and client.job(job.id) == done
    assert client.search("Line 7 of the book", source="book")[0].session == "library"
    assert client.cancel(job.id).state == "done"
    with pytest.raises(NotFound):
        client.job("job-of-nobody")


def test_work_on_the_whole_store(client: Client) -> None:
    client.turn([{"role": "user", "content": f"Fact {number} is kept."} for number in range(6)], session="facts")
    assert client.wait(client.prune(keep=2, session="facts"), timeout_s=20).state == "done"
    assert len(list(client.sentences(session="facts"))) == 2
    assert client.wait(client.defrag(), timeout_s=20).state == "done"
    assert client.wait(client.reembed("states"), timeout_s=20).state == "done"


def test_what_the_service_says_of_itself(client: Client) -> None:
    client.turn(FACT)
    assert client.stats().everything["sentences"] >= 1 and client.version()


def test_the_same_awaited(served: Served) -> None:
    async def life() -> None:
        async with AsyncClient(served.url, user=served.user) as client:
            stored = (await client.turn(FACT)).stored
            assert (await client.search(QUESTION))[0].id == stored[0]
            async with client.ask_stream(QUESTION, mode="extract") as stream:
                texts = [text async for text in stream]
                assert "".join(texts) == (await stream.answer()).answer
            seen: list[Job] = []
            job = await client.ingest("One. Two. Three.", source="numbers")
            assert (await client.wait(job, timeout_s=20, progress=seen.append)).state == "done" and seen
            assert len([one async for one in client.sentences(limit=1)]) == 4
            many = await asyncio.gather(*(client.search(QUESTION) for _ in range(8)))
            assert len({hits[0].id for hits in many}) >= 1
            with pytest.raises(NotFound):
                await client.sentence("999999999")

    asyncio.run(life())


def test_leaving_a_stream_ends_the_work(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with Client(served.url, user=served.user) as client:
        client.turn(FACT)
    scripted(monkeypatch, "and so on " * 200)
    slowly(monkeypatch, 0.05)
    before = served.count("cancelled_total")
    with Client(served.url, user=served.user) as client:
        with client.ask_stream(QUESTION, mode="ground", max_tokens=500) as stream:
            assert next(iter(stream))
        wait_until(lambda: served.count("cancelled_total") == before + 1)

        async def leave() -> None:
            async with (
                AsyncClient(served.url, user=served.user) as waiting,
                waiting.ask_stream(QUESTION, mode="ground", max_tokens=500) as stream,
            ):
                async for text in stream:
                    assert text
                    break

        asyncio.run(leave())
        wait_until(lambda: served.count("cancelled_total") == before + 2)


def test_both_clients_have_the_same_methods() -> None:
    def named(kind: type[Any]) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert named(Client) == named(AsyncClient)
    blocking, awaited = Client("http://there"), AsyncClient("http://there")
    for name in named(Client):
        assert getattr(Client, name).__doc__ and getattr(AsyncClient, name).__doc__
        one, other = inspect.signature(getattr(blocking, name)), inspect.signature(getattr(awaited, name))
        assert list(one.parameters) == list(other.parameters)


class Losing(httpx.BaseTransport):
    """Loses the first answer, after the service gave it."""

    def __init__(self) -> None:
        self._real = httpx.HTTPTransport()
        self.n_sent = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.n_sent += 1
        answer = self._real.handle_request(request)
        if self.n_sent == 1:
            answer.read()
            answer.close()
            raise httpx.ReadError("the connection broke")
        return answer

    def close(self) -> None:
        self._real.close()


def test_a_turn_whose_answer_was_lost_is_not_stored_twice(served: Served) -> None:
    with Client(served.url, user=served.user, transport=Losing()) as client:
        with pytest.raises(NoConnection) as caught:
            client.turn(FACT)
        again = client.turn(FACT, idempotency_key=caught.value.idempotency_key)
        assert [one.id for one in client.sentences()] == list(again.stored)
        with pytest.raises(Conflict):
            client.turn("Something else.", idempotency_key=caught.value.idempotency_key)


def test_nobody_there_is_told_in_a_line() -> None:
    with Client("http://127.0.0.1:1") as client, pytest.raises(NoConnection) as caught:
        client.search("x")
    assert str(caught.value).startswith(
        "POST /v1/memory/search: nobody answers at http://127.0.0.1:1: start `livingkv serve`"
    )
    assert "\n" not in str(caught.value)


def test_keys_and_rates(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    reader = make_key(keys, "one", "r", ["read"])
    with serving(tmp_path / "stores", keys_file=keys, requests_per_minute=600) as served:
        with Client(served.url, api_key="lkv_wrong") as client, pytest.raises(NotAllowed) as caught:
            client.search("x")
        assert caught.value.status == 401
        with Client(served.url, api_key=reader) as client:
            assert client.search("x") == ()
            with pytest.raises(NotAllowed, match="this needs write"):
                client.turn("x")
