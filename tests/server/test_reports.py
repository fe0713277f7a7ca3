"""What users of other services reported, over HTTP: restarts, quotas, evictions, forgetting, memory."""

from __future__ import annotations

import asyncio
import signal
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest

from livingkv.store.stats import folder_bytes
from tests.server.serving import CHAT, Json, Served, cached, said, serving, talk
from tests.server.serving_process import process

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TURN, SEARCH, FORGET = "/v1/memory/turn", "/v1/memory/search", "/v1/memory/forget"
SECRET = "Zanzibarquux"


def chat(client: httpx.Client, *texts: str, **fields: object) -> Json:
    """A turn of user and assistant, the user first."""
    body = {"messages": talk(*texts), "temperature": 0, "max_tokens": 8, **fields}
    answer: Json = client.post(CHAT, json=body).raise_for_status().json()
    return answer


def test_logits_after_a_kill_are_those_of_a_service_that_never_stopped(tmp_path: Path, tiny_folder: Path) -> None:
    """Row 4: each of the next 48 tokens, and the likeliest beside it, to the last bit that JSON tells."""
    asked = {"session": "anna", "max_tokens": 48, "logprobs": True, "top_logprobs": 5}
    last: list[Json] = []
    for name, is_killed in (("one", False), ("other", True)):
        texts = ["Hello there. " * 30]
        with process(tmp_path / name, tiny_folder, "--context", "100000") as (made, client):
            texts += [said(chat(client, *texts, session="anna")), "And then?"]
            if not is_killed:
                last.append(chat(client, *texts, **asked))
                continue
            made.send_signal(signal.SIGKILL)
            made.wait(10)
        with process(tmp_path / name, tiny_folder, "--context", "100000") as (_, client):
            last.append(chat(client, *texts, **asked))
    assert cached(last[1]) == cached(last[0]) > 100
    assert last[1]["choices"] == last[0]["choices"]


def test_a_short_session_after_a_long_one_and_back(served: Served) -> None:
    """Row 5: sessions of very different lengths by turns answer as each of them alone."""
    long, short = ["Long words of many kinds. " * 30], ["Hi."]
    for _ in range(2):
        for texts, name in ((long, "long"), (short, "short")):
            texts += [said(served.chat(*texts, session=name, max_tokens=16)), "More."]
    alone = replace(served, user=f"{served.user} alone")
    for texts, name in ((long, "long"), (short, "short")):
        for end in (1, 3):
            assert said(alone.chat(*texts[:end], session=name, max_tokens=16)) == texts[end]


def test_everything_acknowledged_is_found_after_a_kill(tmp_path: Path, tiny_folder: Path) -> None:
    """Row 6: what the index had not made durable yet is found by words all the same."""
    facts = [f"The lamp called wick{n} burns in room {n * 7}." for n in range(30)]
    with process(tmp_path / "stores", tiny_folder) as (made, client):
        for fact in facts:
            client.post(TURN, json={"messages": talk(fact)}).raise_for_status()
        made.send_signal(signal.SIGKILL)
        made.wait(10)
    with process(tmp_path / "stores", tiny_folder) as (_, client):
        for number, fact in enumerate(facts):
            hits = client.post(SEARCH, json={"query": f"Where is wick{number}?"}).raise_for_status().json()["hits"]
            assert hits[0]["text"] == fact


def test_a_quota_holds_and_is_known_after_a_restart(tmp_path: Path) -> None:
    """Rows 7 and 8: a tenant that is full is told so, at once after a restart too, and what is stored is served."""
    limit, folder = 2 << 20, tmp_path / "stores"
    kept = ["A short story. " * 30]
    with serving(folder, max_tenant_bytes=limit) as served:
        kept += [said(served.chat(*kept, session="kept")), "Go on."]
        number, more = 0, {"messages": talk("Words. " * 200)}
        while (answer := served.post({**more, "session": f"s{number}"})).status_code == 200:
            number += 1
            assert folder_bytes(folder / "default") < limit + (1 << 20)
        assert number > 1 and answer.status_code == 507
    with serving(folder, max_tenant_bytes=limit) as served:
        assert served.post({**more, "session": "new"}).status_code == 507
        assert cached(served.chat(*kept, session="kept", store=False)) > 0
        assert served.client.post(FORGET, json={"everything": True}).status_code == 200
        assert served.post({**more, "session": "new"}).status_code == 200


def test_what_was_acknowledged_can_be_evicted_at_once(tmp_path: Path) -> None:
    """Row 18: after every acknowledgement device memory and RAM are let go; all of the session is reused."""
    with serving(tmp_path / "stores") as served:
        texts, before = ["Tell me about the tower."], 0
        for _ in range(6):
            answer = served.chat(*texts, session="tower")
            assert cached(answer) == before
            asyncio.run(served.service.call("default", lambda tenant: tenant.home.let_go(), alone=True))
            before = answer["usage"]["total_tokens"]
            texts += [said(answer), "And more?"]
            assert served.stored("tower").decode() == "".join(texts[:-1])


def test_what_is_forgotten_is_in_no_file(tmp_path: Path) -> None:
    """Row 22: over HTTP, a session, a conversation and a sentence; when the receipt is given the words are gone."""
    folder = tmp_path / "stores"
    with serving(folder) as served:
        served.client.post(TURN, json={"messages": talk("Keep this."), "session": "kept"}).raise_for_status()
        turned = {"messages": talk(f"The word is {SECRET}."), "session": "turns"}
        served.client.post(TURN, json=turned).raise_for_status()
        one = served.client.post(TURN, json={"messages": talk(f"{SECRET} again."), "session": "one"}).json()["stored"]
        served.chat(f"I say {SECRET}.", session="talk")
        assert holding(folder)
        for body in ({"session": "turns"}, {"session": "talk"}, {"ids": one}):
            receipt = served.client.post(FORGET, json=body).raise_for_status().json()["receipt"]
            assert receipt["counts"]["sentences"] >= 1
        assert holding(folder) == []
        hits = served.client.post(SEARCH, json={"query": f"What about {SECRET}?"}).json()["hits"]
        assert SECRET not in str(hits)
        assert served.stored("kept") == b"Keep this."


def holding(folder: Path) -> list[str]:
    """Files in which the word stands, in whichever case the index has it."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path.name for path in files if SECRET.lower().encode() in path.read_bytes().lower()]


def test_requests_that_store_nothing_leave_memory_as_it_was(tmp_path: Path, tiny_folder: Path) -> None:
    """Row 29, over HTTP: after some hundreds of requests that are like all others nothing grows any more."""
    with process(tmp_path / "stores", tiny_folder, "--ram-budget", "8M") as (made, client):
        for number in range(20):
            client.post(TURN, json={"messages": talk(f"The lamp {number} is green.")}).raise_for_status()
        sizes = []
        for number in range(1600):
            query = {"query": f"Which colour has lamp {number % 20}?"}
            client.post(SEARCH, json=query).raise_for_status()
            chat(client, f"Lamp {number}?", store=False, max_tokens=1)
            if number % 200 == 199:
                sizes.append(psutil.Process(made.pid).memory_info().rss)
        assert sizes[-1] - sizes[1] < 24 << 20, sizes
