"""Memory beside a chat completion: what the window does not hold is recalled, of this user and of nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import livingkv.asking
import livingkv.conversation
from livingkv.server.keys import make_key
from livingkv.server.tenants import Tenant
from livingkv.settings import Settings
from tests.server.serving import CHAT, Json, Served, cached, said, serving, slowly, talk, wait_until

WINDOW = Settings(block_tokens=64, window_tokens=128, n_candidates=4)
FACT = "The code of door 3 is 1021."
ASKED = "What is the code of door 3?"
FILLER = "Nothing of note was said about the weather that day. " * 12
_USERS = count()


@pytest.fixture(scope="module", name="keys_file")
def make_keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where keys are."""
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module", name="keys")
def make_keys(keys_file: Path) -> dict[str, str]:
    """A key for each of two tenants."""
    return {name: make_key(keys_file, name, name, ["admin"]) for name in ("default", "other")}


@pytest.fixture(scope="module", name="running")
def start_once(tmp_path_factory: pytest.TempPathFactory, keys_file: Path, keys: dict[str, str]) -> Iterator[Served]:
    """A service with a narrow window."""
    with serving(tmp_path_factory.mktemp("recall") / "stores", settings=WINDOW, keys_file=keys_file) as served:
        served.client.headers["Authorization"] = f"Bearer {keys['default']}"
        yield served


@pytest.fixture(name="served")
def make_user(running: Served, monkeypatch: pytest.MonkeyPatch) -> Served:
    """The service for a user of its own; memory believes every answer."""
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    monkeypatch.setattr(livingkv.conversation, "LEAST_RANK", -99.0)
    return replace(running, user=f"user-{next(_USERS)}")


def long_talk(served: Served, fact: str = FACT, **fields: Any) -> list[str]:
    """A conversation that began with the fact, and whose window does not hold it any more."""
    texts = [fact]
    texts.append(said(served.chat(*texts, max_tokens=2, **fields)))
    texts.append(FILLER)
    texts.append(said(served.chat(*texts, max_tokens=2, **fields)))
    return texts


def texts_of(answer: Json) -> list[str]:
    """What memory answered from: the first line of each passage."""
    return [str(each["text"]).strip().partition("\n")[0] for each in answer["memory"]["evidence"]]


def test_what_was_said_before_the_window_is_recalled_and_becomes_the_reply(served: Served) -> None:
    texts = long_talk(served, session="long")
    before = {name: served.count(f"{name}_tokens_total") for name in ("prefilled", "cached", "generated")}
    answer = served.chat(*texts, ASKED, session="long", max_tokens=6)
    memory, usage = answer["memory"], answer["usage"]
    assert memory["recall"] == "session" and memory["source"] == "memory" and memory["confident"] is True
    assert texts_of(answer) == [FACT] and memory["mode"] in ("kv", "ground") and 0 <= memory["confidence"] <= 1
    evidence = memory["evidence"][0]
    assert evidence["session"] == "long" and evidence["role"] == "user" and evidence["positions"][0] < 64
    assert (
        served.client.get(f"/v1/memory/{evidence['id']}", params={"user": served.user}).json()["text"].strip() == FACT
    )
    assert said(answer) and served.stored("long").decode().endswith(ASKED + said(answer))
    spent = {name: served.count(f"{name}_tokens_total") - value for name, value in before.items()}
    asked = memory["usage"]
    assert spent["cached"] == cached(answer) + asked["prompt_tokens_details"]["cached_tokens"]
    assert spent["prefilled"] == answer["livingkv"]["prefilled_tokens"]
    assert spent["generated"] == asked["completion_tokens"] >= usage["completion_tokens"] > 0
    again = served.chat(*texts, ASKED, said(answer), "Thanks.", session="long")
    assert cached(again) == usage["total_tokens"] and again["livingkv"]["session"] == "long"


def test_nothing_is_put_into_the_prompt(served: Served) -> None:
    texts = long_talk(served, session="one")
    recalled = served.chat(*texts, ASKED, session="one", max_tokens=6)
    plain = served.chat(*texts, ASKED, max_tokens=6, store=False, memory={"recall": "off"})
    assert recalled["memory"]["source"] == "memory" and plain["memory"]["source"] == "model"
    assert recalled["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"]
    assert served.stored("one").decode().count(FACT) == 1


def test_a_stream_tells_the_same_token_by_token(served: Served) -> None:
    texts = long_talk(served)
    whole = served.chat(*texts, ASKED, max_tokens=6, store=False)
    body = {"messages": talk(*texts, ASKED), "max_tokens": 6, "stream": True, "stream_options": {"include_usage": True}}
    lines = [line.removeprefix("data: ") for line in served.post(body).text.split("\n\n") if line]
    chunks = [json.loads(line) for line in lines[:-1]]
    parts = [chunk["choices"][0]["delta"].get("content") for chunk in chunks if chunk["choices"]]
    last = next(chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"])
    assert "".join(part for part in parts if part) == said(whole) and len([part for part in parts if part]) > 1
    assert last["memory"]["source"] == "memory" and texts_of(last) == [FACT] == texts_of(whole)
    assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert sum("memory" in chunk for chunk in chunks) == 1


def test_what_the_window_holds_is_not_asked_of_memory(served: Served) -> None:
    first = served.chat(FACT)
    before = served.count("prefilled_tokens_total")
    answer = served.chat(FACT, said(first), ASKED)
    memory = answer["memory"]
    assert memory["source"] == "model" and memory["confident"] is None and memory["evidence"] == []
    n_read = answer["usage"]["prompt_tokens"] - cached(answer)
    assert served.count("prefilled_tokens_total") - before == n_read == answer["livingkv"]["prefilled_tokens"]


def test_what_does_not_convince_is_left_to_the_model(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = long_talk(served)
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 2.0)
    answer = served.chat(*texts, ASKED, max_tokens=6, store=False)
    plain = served.chat(*texts, ASKED, max_tokens=6, store=False, memory={"recall": "off"})
    memory = answer["memory"]
    assert (memory["source"], memory["confident"], memory["evidence"]) == ("model", False, [])
    assert said(answer) == said(plain) and memory["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("recall", ["session", "all"])
def test_other_sessions_of_the_user_answer_only_when_asked(served: Served, recall: str) -> None:
    served.chat(FACT, session="doors", max_tokens=2)
    answer = served.chat(ASKED, session="new", max_tokens=6, memory={"recall": recall})
    assert answer["memory"]["source"] == ("memory" if recall == "all" else "model"), answer["memory"]
    assert texts_of(answer) == ([FACT] if recall == "all" else [])


def test_nobody_elses_words_answer(served: Served, keys: dict[str, str]) -> None:
    served.chat(FACT.replace("3", "3 of XANTHIC"), user=f"{served.user}-else", session="doors", max_tokens=2)
    served.chat(FACT.replace("3", "3 of XANTHIC"), user="", session=f"doors-{served.user}", max_tokens=2)
    theirs = {"Authorization": f"Bearer {keys['other']}"}
    body = {"messages": talk(FACT.replace("3", "3 of XANTHIC")), "session": "doors", "user": served.user}
    assert served.client.post(CHAT, json={**body, "max_tokens": 2}, headers=theirs).status_code == 200
    for asked in (ASKED, "What are all the codes of XANTHIC?", "How many doors does XANTHIC have?"):
        answer = served.chat(asked, session="new", max_tokens=6, memory={"recall": "all"})
        assert "XANTHIC" not in json.dumps(answer["memory"])
        served.chat("Something of one's own.", session="own", max_tokens=2)


def test_what_is_encrypted_stays_where_it_is(served: Served) -> None:
    def hide(tenant: Tenant) -> None:
        tenant.home.writable_store()
        tenant.home.session_for_writing(f"{served.user}/hidden", encrypt=True)

    asyncio.run(served.service.call("default", hide, alone=True))
    texts = long_talk(served, FACT.replace("3", "3 of XANTHIC"), session="hidden")
    served.chat("Something in the clear.", session="clear", max_tokens=2)
    for asked in (ASKED, "What are all the codes of XANTHIC?"):
        answer = served.chat(asked, max_tokens=6, memory={"recall": "all"})
        assert "XANTHIC is" not in json.dumps(answer["memory"])
    own = served.chat(*texts, "What is the code of door 3 of XANTHIC?", session="hidden", max_tokens=6)
    assert own["memory"]["source"] == "memory"


def test_asked_again_it_is_answered_from_the_same_and_not_from_the_reply(served: Served) -> None:
    texts = long_talk(served, session="talk")
    first = served.chat(*texts, ASKED, session="talk", max_tokens=6)
    for recall in ("session", "all"):
        again = served.chat(*texts, ASKED, session="talk", max_tokens=6, memory={"recall": recall})
        assert said(again) == said(first) and again["memory"]["source"] == "memory"
        assert texts_of(again) == [FACT] and all(
            said(first) not in each["text"] for each in again["memory"]["evidence"]
        )


def test_what_was_edited_away_does_not_answer(served: Served) -> None:
    texts = long_talk(served)
    other = served.chat(*texts, "The code of door 4 of Marjorie is 1028.", session="talk", max_tokens=2)
    served.chat(*texts, "The code of door 4 of Marjorie is 1028.", said(other), FILLER, session="talk", max_tokens=2)
    edited = [*texts, "It rains.", "Yes.", FILLER, "Yes."]
    for asked in ("What is the code of door 4?", "What are all the codes of Marjorie?"):
        answer = served.chat(*edited, asked, max_tokens=6)
        assert answer["memory"]["recall"] == "session" and "1028" not in json.dumps(answer["memory"])


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"memory": {"recall": "off"}}, "off"),
        ({"tools": [TOOL]}, "tools"),
        ({"logprobs": True}, "logprobs"),
    ],
)
def test_where_memory_is_not_asked_the_answer_says_why(served: Served, fields: Json, told: str) -> None:
    texts = long_talk(served)
    answer = served.chat(*texts, ASKED, max_tokens=4, store=False, **fields)
    assert answer["memory"]["source"] == "model" and told in answer["memory"]["reason"]
    assert answer["memory"]["recall"] == "off" and answer["memory"]["usage"]["total_tokens"] == 0


def test_a_side_task_asks_nothing_of_memory(served: Served) -> None:
    served.chat(FACT, session="doors", max_tokens=2)
    task = f"### Task:\n{ASKED}\n### Guidelines:\n- Short.\n### Output:\nJSON"
    answer = served.chat(task, memory={"recall": "all"})
    assert answer["memory"]["recall"] == "off" and "task" in answer["memory"]["reason"]


def test_a_message_that_is_longer_than_the_window_is_not_asked(served: Served) -> None:
    texts = long_talk(served)
    answer = served.chat(*texts, FILLER * 3 + ASKED, max_tokens=4)
    assert "longer than the window" in answer["memory"]["reason"]


def test_an_unknown_place_is_refused(served: Served) -> None:
    answer = served.post({"messages": talk("Hi."), "memory": {"recall": "everywhere"}})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "memory.recall"


def test_a_client_that_goes_away_while_memory_is_asked_leaves_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = long_talk(served, session="talk")
    stored, turns = served.stored("talk"), served.count("turns_total")
    cancelled = served.count("cancelled_total")
    slowly(monkeypatch, 0.05)
    body = {"messages": talk(*texts, ASKED), "session": "talk", "stream": True, "user": served.user, "max_tokens": 64}
    with served.client.stream("POST", CHAT, json=body) as stream:
        assert stream.status_code == 200
    wait_until(lambda: served.count("cancelled_total") == cancelled + 1, 3)
    assert served.stored("talk") == stored and served.count("turns_total") == turns
