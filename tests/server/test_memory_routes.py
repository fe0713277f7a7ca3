"""The memory routes over a real socket: turns, search, questions whole and streamed, sentences, forgetting, counts."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livingkv.index import Entry
from livingkv.index.filling import Filling
from tests.server.serving import Json, Served, scripted, serving, slowly, talk, wait_until

FACTS = ("The key of the tower is in a tin.", "The lamp of the tower burns whale oil.", "The boat is called Petrel.")
HIT = {
    *("id", "session", "user", "text", "source", "role", "positions", "score", "lexical", "semantic"),
    *("lexical_rank", "semantic_rank", "coverage"),
}
SENTENCE = {
    *("id", "session", "user", "text", "source", "role", "positions", "weight", "recalls", "recalled_s", "created_s"),
}


def turn(served: Served, *texts: str, status: int = 200, **fields: Any) -> Json:
    """A memory turn of user and assistant, the user first."""
    body = {"messages": talk(*texts), "user": served.user, **fields}
    answer = served.client.post("/v1/memory/turn", json=body)
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


def post(served: Served, path: str, status: int = 200, **body: Any) -> Json:
    """A POST to a memory route."""
    answer = served.client.post(f"/v1/memory/{path}", json={"user": served.user, **body})
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


def get(served: Served, path: str = "", status: int = 200, **query: Any) -> Json:
    """A GET of a memory route."""
    answer = served.client.get(f"/v1/memory{path}", params={"user": served.user, **query})
    assert answer.status_code == status, answer.text
    found: Json = answer.json()
    return found


def listed(served: Served) -> list[str]:
    """Ids of all sentences."""
    return [each["id"] for each in get(served, limit=500)["sentences"]]


def events_of(text: str) -> list[tuple[str, Json]]:
    """Names and data of server-sent events."""
    blocks = [block for block in text.split("\n\n") if block and not block.startswith(":")]
    pairs = [dict(line.split(": ", 1) for line in block.split("\n")) for block in blocks]
    return [(pair["event"], json.loads(pair["data"])) for pair in pairs]


def test_a_turn_recalls_before_it_stores(served: Served) -> None:
    first = turn(served, FACTS[0])
    assert first["recalled"] == [] and first["session"] == "default" and len(first["stored"]) == 1
    second = turn(served, "Where is the key of the tower?", "In a tin.")
    assert [hit["text"] for hit in second["recalled"]] == [FACTS[0]]
    hit = second["recalled"][0]
    assert set(hit) == HIT and hit["id"] == first["stored"][0] and hit["session"] == "default"
    assert hit["user"] == served.user and hit["role"] == "user" and hit["lexical_rank"] == 1
    assert second["answer"] == FACTS[0] and second["mode"] == "extract" and len(second["stored"]) == 2
    assert second["usage"]["completion_tokens"] == 0 and second["timings_ms"]["total"] > 0
    assert served.stored("default").decode() == f"{FACTS[0]}Where is the key of the tower?In a tin."


def test_a_turn_makes_a_session_text_only_where_it_is_asked_to(served: Served) -> None:
    before = served.count("prefilled_tokens_total")
    assert turn(served, FACTS[0], kv=False)["stored"] and turn(served, FACTS[1])["stored"]
    assert served.count("prefilled_tokens_total") == before
    turn(served, FACTS[0], session="with-kv")
    assert served.count("prefilled_tokens_total") > before
    assert turn(served, FACTS[0], session="with-kv", kv=False, status=400)["error"]["param"] == "text-only"


def test_what_is_recalled_gets_warmer(served: Served) -> None:
    stored = turn(served, FACTS[0])["stored"][0]
    assert turn(served, "key tower tin", query="The key of the tower is in a tin?")["confident"]
    sentence = get(served, f"/{stored}")
    assert sentence["recalls"] == 1 and 0.9 < sentence["weight"] <= 1.0
    assert abs(sentence["created_s"] - time.time()) < 60


def test_a_turn_recalls_from_all_sessions_or_from_its_own(served: Served) -> None:
    turn(served, FACTS[0], session="one")
    asked = "Where is the key of the tower?"
    assert turn(served, asked, session="two", recall="session")["recalled"] == []
    found = turn(served, asked, session="three")["recalled"]
    assert [hit["session"] for hit in found] == ["one"]  # what was only asked, in session two, answers nothing


def test_a_turn_that_is_sent_twice_is_stored_once(served: Served) -> None:
    body = {"messages": talk(FACTS[0]), "user": served.user}
    sent = [
        served.client.post("/v1/memory/turn", json=body, headers={"Idempotency-Key": served.user}) for _ in range(2)
    ]
    assert sent[0].json() == sent[1].json() and len(listed(served)) == 1
    body["messages"] = talk(FACTS[1])
    again = served.client.post("/v1/memory/turn", json=body, headers={"Idempotency-Key": served.user})
    assert again.status_code == 409 and again.json()["error"]["code"] == "idempotency_key_reused"


def test_turns_of_one_session_come_one_after_the_other(served: Served) -> None:
    with ThreadPoolExecutor(4) as pool:
        stored = list(pool.map(lambda n: turn(served, f"Fact {n}.", "Noted.")["stored"], range(8)))
    assert sorted(each for ids in stored for each in ids) == sorted(listed(served)) and len(listed(served)) == 16


def test_a_turn_of_the_assistant_alone_asks_nothing(served: Served) -> None:
    turn(served, FACTS[0])
    body = {"messages": [{"role": "assistant", "content": "As you wish."}], "user": served.user}
    told = served.client.post("/v1/memory/turn", json=body).json()
    assert told["recalled"] == [] and told["answer"] is None and len(told["stored"]) == 1
    assert turn(served, "The key of the tower?", k=0)["recalled"] == []


def test_a_turn_may_generate(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    turn(served, *FACTS)
    scripted(monkeypatch, "In a tin.")
    names = ("prefilled_tokens_total", "cached_tokens_total", "generated_tokens_total")
    before = [served.count(name) for name in names]
    told = turn(served, "Where is the key of the tower?", mode="ground")
    after = [served.count(name) - was for name, was in zip(names, before, strict=True)]
    used = told["usage"]
    assert told["answer"] == "In a tin." and told["mode"] == "ground"
    assert used["prompt_tokens_details"]["cached_tokens"] == after[1] > 0
    assert used["prompt_tokens"] - after[1] == after[0] > 0
    assert used["completion_tokens"] == after[2] > 0


def test_search_by_source_and_role(served: Served) -> None:
    turn(served, FACTS[0], "The tower has a lamp and a key.")
    hits = post(served, "search", query="key of the tower")["hits"]
    assert {hit["role"] for hit in hits} == {"user", "assistant"} and all(set(hit) == HIT for hit in hits)
    assert [hit["score"] for hit in hits] == sorted((hit["score"] for hit in hits), reverse=True)
    assert [hit["role"] for hit in post(served, "search", query="key of the tower", role="assistant")["hits"]] == [
        "assistant"
    ]
    assert post(served, "search", query="key of the tower", source="nobody")["hits"] == []
    assert len(post(served, "search", query="key of the tower", k=1)["hits"]) == 1
    assert post(served, "search", 404, query="key", session="nowhere")["error"]["code"] == "session_not_found"


@pytest.mark.parametrize("mode", ["extract", "auto", "kv", "ground", "exact", "resume"])
def test_ask_whole_and_streamed_say_the_same(served: Served, mode: str) -> None:
    turn(served, *FACTS)
    asked: Json = {"query": "Where is the key of the tower?", "mode": mode, "session": "default", "max_tokens": 8}
    whole = post(served, "ask", **asked)
    answer = served.client.post("/v1/memory/ask", json={"user": served.user, **asked, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert events[-1][0] == "answer" and {name for name, _ in events[:-1]} <= {"text"}
    told = events[-1][1]
    assert "".join(data["text"] for _, data in events[:-1]).strip() == told["answer"]
    for each in (whole, told):
        each.pop("timings_ms")
    assert told == whole and all(set(hit) == HIT for hit in whole["evidence"])
    assert whole["mode"] == mode or mode == "auto"


def test_ask_without_a_store_or_a_session(served: Served, tmp_path: Path) -> None:
    assert post(served, "ask", 404, query="Who?", session="nowhere")["error"]["code"] == "session_not_found"
    streamed = served.client.post(
        "/v1/memory/ask", json={"user": served.user, "query": "Who?", "session": "nowhere", "stream": True}
    )
    assert streamed.status_code == 404
    assert not post(served, "ask", query="Who keeps the key?")["confident"]
    assert post(served, "ask", 400, query="Who?", mode="exact")["error"]["param"] == "session"


def test_an_error_after_the_start_is_an_event(served: Served) -> None:
    turn(served, FACTS[0])
    long = "Where is the key of the tower? " * 500
    answer = served.client.post("/v1/memory/ask", json={"user": served.user, "query": long, "stream": True})
    events = events_of(answer.text)
    assert answer.status_code == 200 and [name for name, _ in events] == ["error"]
    assert "hot window" in events[0][1]["error"]["message"]


def test_sentences_are_listed_by_pages(served: Served) -> None:
    turn(served, " ".join(FACTS), "Noted. Thanks.", session="a")
    turn(served, FACTS[0], session="b")
    texts, cursor, pages = [], None, 0
    while pages == 0 or cursor:
        page = get(served, limit=2, **({"cursor": cursor} if cursor else {}))
        assert len(page["sentences"]) <= 2 and all(set(each) == SENTENCE for each in page["sentences"])
        texts += [each["text"] for each in page["sentences"]]
        cursor, pages = page["next_cursor"], pages + 1
    assert texts == [*FACTS, "Noted.", "Thanks.", FACTS[0]] and pages == 3
    assert [each["text"] for each in get(served, session="b")["sentences"]] == [FACTS[0]]
    assert [each["text"] for each in get(served, role="assistant")["sentences"]] == ["Noted.", "Thanks."]
    assert get(served, source="nothing") == {"sentences": [], "next_cursor": None}
    assert get(served, "", 400, cursor="x")["error"]["param"] == "query.cursor"
    assert get(served, "", 404, session="nowhere")["error"]["code"] == "session_not_found"


def test_a_sentence_stands_between_its_neighbours(served: Served) -> None:
    stored = turn(served, " ".join(FACTS))["stored"]
    shown = get(served, f"/{stored[1]}")
    assert (shown["before"], shown["text"], shown["after"]) == ([FACTS[0]], FACTS[1], [FACTS[2]])
    assert set(shown) == SENTENCE | {"before", "after"} and shown["positions"][0] < shown["positions"][1]


def test_a_sentence_is_replaced(served: Served) -> None:
    stored = turn(served, " ".join(FACTS))["stored"]
    answer = served.client.patch(
        f"/v1/memory/{stored[2]}", json={"text": "The boat is called Gannet.", "user": served.user}
    )
    new = answer.json()
    assert answer.status_code == 200 and new["text"] == "The boat is called Gannet." and new["role"] == "user"
    assert new["stored"] == [new["id"]]
    get(served, f"/{stored[2]}", 404)
    assert [hit["id"] for hit in post(served, "search", query="What is the boat called?", k=1)["hits"]] == [new["id"]]
    assert b"Petrel" not in served.stored("default")


def test_a_conversations_words_stay(served: Served) -> None:
    session = served.chat("My boat is called Petrel.")["livingkv"]["session"]
    sentence = get(served, session=session, role="user")["sentences"][0]
    patch = served.client.patch(f"/v1/memory/{sentence['id']}", json={"text": "No.", "user": served.user})
    assert patch.status_code == 409 and patch.json()["error"]["code"] == "conversation"
    assert turn(served, "More.", session=session, status=400)["error"]["param"] == "session"


def test_a_sentence_is_forgotten_for_good(served: Served) -> None:
    stored = turn(served, f"{FACTS[0]} {FACTS[1]} The marker is VERMILION-9.")["stored"]
    answer = served.client.delete(f"/v1/memory/{stored[2]}", params={"user": served.user})
    receipt = answer.json()["receipt"]
    assert answer.status_code == 200 and receipt["counts"]["sentences"] == 1 and receipt["bytes"]["erased"] > 0
    assert served.client.delete(f"/v1/memory/{stored[2]}", params={"user": served.user}).status_code == 404
    files = (served.folder / "default" / "segments").iterdir()
    assert b"VERMILION" not in b"".join(path.read_bytes() for path in files)


@pytest.mark.parametrize("what", ["ids", "session", "source", "deep"])
def test_a_dry_run_counts_what_the_receipt_counts(served: Served, what: str) -> None:
    stored = turn(served, " ".join(FACTS) * 20, "Noted. " * 40, session="a")["stored"]
    turn(served, *FACTS, session="b")
    bodies: dict[str, Json] = {
        "ids": {"ids": [stored[0], stored[7]]},
        "session": {"session": "a"},
        "source": {"session": "a", "source": "chat"},
        "deep": {"ids": [stored[0]], "deep": True},
    }
    body = bodies[what]
    before = listed(served)
    counted = post(served, "forget", **body, dry_run=True)
    assert listed(served) == before
    receipt = post(served, "forget", **body)["receipt"]
    assert counted["counts"] == receipt["counts"] and counted["counts"]["sentences"] > 0
    assert counted["counts"]["pages"] > 0 and counted["bytes"]["text"] == receipt["bytes"]["text"]
    assert len(before) - len(listed(served)) == counted["counts"]["sentences"]
    assert not set(body.get("ids", [])) & set(listed(served))


def test_a_forgotten_conversation_is_not_gone_on_with(served: Served) -> None:
    first = served.chat("My boat is called Petrel. " * 8, session="talk")
    reply = first["choices"][0]["message"]["content"]
    post(served, "forget", session="talk")
    again = served.chat("My boat is called Petrel. " * 8, reply, "And the lamp?")
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_everything_of_a_user_is_forgotten(served: Served) -> None:
    turn(served, FACTS[0], session="a")
    turn(served, FACTS[1], session="b")
    other = replace(served, user=f"{served.user}-other")
    turn(other, FACTS[2])
    assert post(served, "forget", everything=True, dry_run=True)["counts"]["sentences"] == 2
    assert post(served, "forget", everything=True)["receipt"]["counts"]["sentences"] == 2
    assert get(served)["sentences"] == [] and len(get(other)["sentences"]) == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("forget", {}),
        ("forget", {"session": "a", "ids": ["1"]}),
        ("forget", {"source": "a", "everything": True}),
        ("forget", {"ids": ["x"]}),
        ("forget", {"ids": []}),
        ("search", {"query": " "}),
        ("search", {"query": "x", "k": 101}),
        ("search", {"query": "x", "k": 0}),
        ("search", {"query": "x", "role": "template"}),
        ("search", {"query": "x", "session": "a/b"}),
        ("ask", {"query": "x", "mode": "guess"}),
        ("ask", {"query": "x", "max_tokens": 1 << 20}),
        ("ask", {"query": "x" * 20_000}),
        ("turn", {"messages": []}),
        ("turn", {"messages": talk("x"), "user": "a/b"}),
        ("turn", {"messages": [{"role": "system", "content": "x"}]}),
        ("turn", {"messages": talk("x"), "user": "*"}),
        ("turn", {"messages": talk(" ")}),
        ("turn", {"messages": talk(*["x"] * 257)}),
    ],
)
def test_what_cannot_be_is_refused_in_the_envelope(served: Served, path: str, body: Json) -> None:
    error = post(served, path, 400, **body)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"


def test_ids_that_are_not_there_are_404(served: Served) -> None:
    for bad in ("0x1", "-1", "999999999999", "9" * 30, "one"):
        assert get(served, f"/{bad}", 404)["error"]["code"] == "memory_not_found"
        assert served.client.delete(f"/v1/memory/{bad}").status_code == 404
        assert served.client.patch(f"/v1/memory/{bad}", json={"text": "x"}).status_code == 404
    assert post(served, "forget", 404, ids=["999999999999"])["error"]["code"] == "memory_not_found"
    assert post(served, "forget", 404, session="nowhere")["error"]["code"] == "session_not_found"


def test_a_session_that_is_written_to_is_409(served: Served) -> None:
    stored = turn(served, FACTS[0])["stored"]
    tenant = served.service._ready().tenants.open_one("default")
    with tenant.at_work_on(f"{served.user}/default"):
        assert turn(served, "More.", status=409)["error"]["code"] == "session_busy"
        assert post(served, "forget", 409, session="default")["error"]["code"] == "session_busy"
        assert post(served, "forget", 409, ids=stored)["error"]["code"] == "session_busy"
        assert post(served, "forget", session="default", dry_run=True)["counts"]["sentences"] == 1
        assert post(served, "search", query="key of the tower")["hits"]
    assert turn(served, "More.")["stored"]


def test_stats_count(served: Served) -> None:
    turn(served, *FACTS)
    found = served.client.get("/v1/stats").json()
    assert found["sentences"] >= 3 and found["sessions"] >= 1 and found["model"] == "tiny"
    assert found["bytes"] == sum(found["bytes_by_part"].values()) > 0 and found["version"]


def test_an_empty_tenant_answers(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        assert get(served) == {"sentences": [], "next_cursor": None}
        assert post(served, "search", query="x")["hits"] == []
        assert not post(served, "ask", query="x")["confident"]
        assert served.client.get("/v1/stats").json()["sentences"] == 0
        assert get(served, "/1", 404)["error"]["code"] == "memory_not_found"
        assert post(served, "forget", everything=True)["receipt"]["counts"]["sentences"] == 0
        assert post(served, "forget", 404, session="x")["error"]["code"] == "session_not_found"
        assert not (tmp_path / "stores" / "default").exists()


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
def test_an_ask_that_is_given_up_ends_within_a_second(
    served: Served, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    turn(served, *FACTS)
    slowly(monkeypatch, 0.05)
    body = {"query": "Where is the key?", "mode": "ground", "max_tokens": 4000, "stream": stream, "user": served.user}
    cancelled = served.count("cancelled_total")
    with httpx.Client(base_url=served.url) as client:
        if stream:
            with client.stream("POST", "/v1/memory/ask", json=body, timeout=5) as answer:
                next(answer.iter_lines())
        else:
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/memory/ask", json=body, timeout=0.5)
    began = time.monotonic()
    wait_until(lambda: served.count("cancelled_total") > cancelled)
    assert time.monotonic() - began < 1.0
    monkeypatch.undo()
    assert turn(served, "More.")["stored"]
    assert served.service._ready().tenants.open_one("default").is_idle


@pytest.mark.slow
def test_others_are_served_while_much_is_forgotten(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The index is made anew, which takes time; and a client that goes away leaves it whole."""
    stored = turn(served, " ".join(f"Fact {n} is known." for n in range(1500)), kv=False)["stored"]
    plain, n_served = Filling.add, 0

    def slow(self: Filling, entries: Sequence[Entry], high_water: int) -> None:
        time.sleep(0.1)
        plain(self, entries, high_water)

    monkeypatch.setattr(Filling, "add", slow)
    tenant = served.service._ready().tenants.open_one("default")
    with httpx.Client(base_url=served.url, timeout=30) as client, pytest.raises(httpx.ReadTimeout):
        client.delete(f"/v1/memory/{stored[7]}", params={"user": served.user}, timeout=0.3)
    while not tenant.gate.is_free:
        assert served.post({"prompt": "Hi.", "max_tokens": 1}, "/v1/completions").status_code == 200
        n_served += 1
    monkeypatch.undo()
    assert n_served >= 2  # the whole takes longer than 1.5 s, a batch 0.1 s
    found = {n: post(served, "search", query=f"Fact {n} is known.", k=1)["hits"][0]["text"] for n in (7, 9, 1499)}
    assert found[7] != "Fact 7 is known." and [found[n] for n in (9, 1499)] == [
        f"Fact {n} is known." for n in (9, 1499)
    ]


@pytest.mark.slow
def test_the_kv_of_a_turn_counts_before_it_is_read(tmp_path: Path) -> None:
    long = talk("Word. " * 10_000)  # 60 kB of text, and about two MB of KV
    with serving(tmp_path / "stores", max_tenant_bytes=1 << 20, context_tokens=1 << 16) as served:
        for body in ({"session": "a"}, {"session": "b", "recall": "session"}):
            answer = served.client.post("/v1/memory/turn", json={"messages": long, **body})
            assert (answer.status_code, answer.json()["error"]["code"]) == (507, "tenant_full")
        answer = served.post({"messages": talk("Word. " * 5000), "session": "c"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "tenant_full")
        assert served.count("prefilled_tokens_total") == 0
        answer = served.client.post("/v1/memory/turn", json={"messages": long, "session": "d", "kv": False})
        assert answer.status_code == 200


@pytest.mark.slow
def test_limits_of_a_tenant_hold_for_turns(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", max_sessions=1, max_tenant_bytes=1 << 20) as served:
        turn(served, FACTS[0], session="a")
        assert turn(served, FACTS[0], session="b", status=507)["error"]["code"] == "too_many_sessions"
        body = {"messages": talk("Word. " * 2000), "session": "a"}
        while (answer := served.client.post("/v1/memory/turn", json=body)).status_code == 200:
            pass
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "tenant_full")


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["user", "*", "a/b", "\ud800", "default", "extract", "auto", "0", "1", "session", "all"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["role", "content", "x"]), inner)
    ),
    max_leaves=5,
)
FIELDS = (
    *("messages", "query", "mode", "k", "max_tokens", "recall", "session", "user", "source", "role", "stop", "stream"),
    *("ids", "everything", "deep", "dry_run", "text"),
)
VALID: dict[str, Json] = {
    "/v1/memory/turn": {"messages": talk("The lamp burns."), "session": "fuzz"},
    "/v1/memory/search": {"query": "lamp"},
    "/v1/memory/ask": {"query": "Which lamp burns?", "max_tokens": 2, "mode": "extract"},
    "/v1/memory/forget": {"session": "fuzz", "dry_run": True},
    "/v1/memory/1": {"text": "A lamp."},
}


@pytest.mark.slow
@pytest.mark.timeout(300)
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(path=st.sampled_from(sorted(VALID)), over=st.booleans(), body=st.dictionaries(st.sampled_from(FIELDS), VALUES))
def test_no_body_is_a_fault(served: Served, path: str, over: bool, body: Json) -> None:
    sent = {**VALID[path], **body} if over else body
    method = "PATCH" if path.endswith("/1") else "POST"
    answer = served.client.request(
        method, path, content=json.dumps(sent).encode(), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 200 or 400 <= answer.status_code < 500, (sent, answer.text)
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def test_a_turn_that_is_sent_again_quotes_nothing_that_was_forgotten(served: Served) -> None:
    turn(served, "The vault's number is PERISHED seven.", session="a")
    body = {"session": "b", "messages": talk("What is the vault's number?"), "user": served.user}
    first, second = (served.post(body, "/v1/memory/turn", Idempotency_Key="turn-1").json() for _ in range(2))
    assert first == second and "PERISHED" in str(first["recalled"])
    post(served, "forget", session="a")
    again = served.post(body, "/v1/memory/turn", Idempotency_Key="turn-1").json()
    assert "PERISHED" not in str(again) and again["recalled"] == [] and again["answer"] is None
    assert again["stored"] == first["stored"]
