"""Conversations are recognised, only what is new is read, edits lose nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv.memory import Memory
from livingkv.server import conversations, segments
from livingkv.settings import Settings
from tests.server.serving import CHAT, Served, cached, said, scripted, serving, talk
from tests.tiny import tiny_tokenizer

HELLO = "The shed is blue, and its code is 4471. " * 6


def test_the_next_turn_reads_its_own_words_and_nothing_else(served: Served) -> None:
    first = served.chat(HELLO)
    before = served.count("prefilled_tokens_total")
    second = served.chat(HELLO, said(first), "And the key?")
    usage = second["usage"]
    assert second["livingkv"]["session"] == first["livingkv"]["session"]
    assert cached(second) == first["usage"]["total_tokens"]
    assert usage["prompt_tokens"] - cached(second) == second["livingkv"]["prefilled_tokens"]
    assert served.count("prefilled_tokens_total") - before == second["livingkv"]["prefilled_tokens"] < 40


@pytest.mark.slow
def test_a_restarted_service_answers_as_one_that_never_stopped(tmp_path: Path) -> None:
    with serving(tmp_path / "one") as served:
        first = said(served.chat(HELLO))
        whole = [said(served.chat(HELLO, first, "And the key?", max_tokens=32))]
        whole.append(said(served.chat(HELLO, first, "And the key?", whole[0], "Why?", max_tokens=32)))
    with serving(tmp_path / "other") as served:
        assert said(served.chat(HELLO)) == first
    parts: list[str] = []
    for texts in ([], ["Why?"]):
        with serving(tmp_path / "other") as served:
            parts.append(said(served.chat(HELLO, first, "And the key?", *parts, *texts, max_tokens=32)))
    assert parts == whole


@pytest.mark.slow
def test_after_a_restart_every_session_goes_on(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        first = served.chat(HELLO)
        named = served.chat("Hello.", session="anna")
    with serving(tmp_path / "stores") as served:
        again = served.chat(HELLO, said(first), "And the key?")
        assert cached(again) == first["usage"]["total_tokens"]
        assert served.count("prefilled_tokens_total") == again["usage"]["prompt_tokens"] - cached(again)
        more = served.chat("Hello.", said(named), "Again.", session="anna")
        assert more["livingkv"]["session"] == "anna" and cached(more) == named["usage"]["total_tokens"]


def test_generated_ids_go_on_though_the_text_would_be_cut_otherwise(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, "the other", spelled=True)
    first = served.chat("Hello.", max_tokens=12)
    assert first["usage"]["completion_tokens"] == len("the other") > len(tiny_tokenizer().encode(said(first)))
    assert cached(served.chat("Hello.", said(first), "More.")) == first["usage"]["total_tokens"]


def test_a_collision_of_digests_reuses_nothing_wrong(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversations, "chain", lambda found, salt: [b"same"] * (len(list(found)) + 1))
    served.chat(HELLO)
    other = served.chat("Quite another thing. " * 12)
    assert other["livingkv"]["session"] is not None and cached(other) == 0
    assert segments.chain([], b"") != [b"same"]


def test_an_edit_in_the_middle_is_a_new_session_and_the_old_one_stays(served: Served) -> None:
    first = served.chat(HELLO)
    second = served.chat(HELLO, said(first), "And the key?")
    other = served.chat(HELLO, said(first), "And the lock?")
    assert other["livingkv"]["session"] != second["livingkv"]["session"]
    assert 0 < cached(other) <= first["usage"]["total_tokens"] and cached(other) % 64 == 0
    goes_on = served.chat(HELLO, said(first), "And the key?", said(second), "Thanks.")
    assert goes_on["livingkv"]["session"] == second["livingkv"]["session"]
    assert cached(goes_on) == second["usage"]["total_tokens"]
    assert b"And the lock?" in served.stored(other["livingkv"]["session"])
    assert b"And the key?" in served.stored(second["livingkv"]["session"])


def test_an_answer_asked_for_again_is_a_new_session(served: Served) -> None:
    first = served.chat(HELLO)
    again = served.chat(HELLO)
    assert said(again) == said(first) and again["livingkv"]["session"] != first["livingkv"]["session"]
    assert cached(again) == first["usage"]["prompt_tokens"] // 64 * 64


def test_a_named_session_that_goes_another_way_keeps_its_past_under_another_name(served: Served) -> None:
    first = served.chat("Hello.", session="anna")
    served.chat("Hello.", said(first), "Red.", session="anna")
    other = served.chat("Hello.", said(first), "Green.", session="anna")
    assert other["livingkv"]["session"] == "anna"
    assert b"Red." in served.stored("anna~2") and b"Green." in served.stored("anna")


def test_new_messages_alone_go_on_where_the_history_is_stored(served: Served) -> None:
    first = served.chat("Hello.", memory={"session": "anna"})
    second = served.chat("And now?", memory={"session": "anna", "history": "stored"})
    assert cached(second) == first["usage"]["total_tokens"]
    whole = served.chat("Hello.", said(first), "And now?", said(second), "End.", session="anna")
    assert cached(whole) == second["usage"]["total_tokens"]


@pytest.mark.parametrize("way", ["header", "session", "memory"])
def test_a_session_is_named_in_three_ways(served: Served, way: str) -> None:
    body = {"messages": talk("Hello.")}
    if way == "header":
        answer = served.post(body, X_Session_Id="anna")
    else:
        answer = served.post({**body, **({"session": "anna"} if way == "session" else {"memory": {"session": "anna"}})})
    assert answer.headers["x-session-id"] == "anna" and answer.json()["livingkv"]["session"] == "anna"


def test_two_names_at_once_are_refused(served: Served) -> None:
    answer = served.post({"messages": talk("Hello."), "session": "bert"}, X_Session_Id="anna")
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "session"


def test_users_of_one_tenant_share_nothing(served: Served) -> None:
    first = served.chat(HELLO, user="anna", session="talk")
    other = served.chat(HELLO, user="bert", session="talk")
    assert cached(other) == 0
    assert cached(served.chat(HELLO, said(first), "More.", user="carl")) == 0
    assert cached(served.chat(HELLO, said(first), "More.", user="anna")) == first["usage"]["total_tokens"]


@pytest.mark.parametrize(
    "fields",
    [{"store": False}, {"memory": {"keep": False}}],
    ids=["store", "keep"],
)
def test_what_is_not_to_be_kept_is_not(served: Served, fields: dict[str, object]) -> None:
    before = served.count("turns_total")
    assert served.chat(HELLO, **fields)["livingkv"]["session"] is None
    first = served.chat(HELLO)
    assert cached(first) == 0
    beside = served.chat(HELLO, said(first), "More.", **fields)
    assert cached(beside) == first["usage"]["total_tokens"] // 64 * 64
    assert served.count("turns_total") == before + 1


def test_side_tasks_of_open_webui_are_not_remembered(served: Served) -> None:
    task = "### Task:\nGenerate a title.\n### Guidelines:\n- Short.\n### Output:\nJSON"
    assert served.chat(task)["livingkv"]["session"] is None
    assert served.chat("### Task: water the plants")["livingkv"]["session"] is not None


def test_a_stop_string_is_not_part_of_what_goes_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "One two three. STOP and more", "Four.")
    first = served.chat("Count.", stop=[" STOP"], max_tokens=64)
    assert said(first) == "One two three." and first["choices"][0]["finish_reason"] == "stop"
    second = served.chat("Count.", "One two three.", "Go on.")
    assert second["livingkv"]["session"] == first["livingkv"]["session"]
    assert second["usage"]["prompt_tokens"] - cached(second) < 30


def test_a_reply_that_never_became_a_character_is_nothing(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "👍")
    first = served.chat("Hello.", max_tokens=2)
    assert said(first) == "" and first["usage"]["completion_tokens"] == 2
    second = served.chat("Hello.", "", "And now?")
    assert second["livingkv"]["session"] == first["livingkv"]["session"]
    assert cached(second) == first["usage"]["prompt_tokens"]


def test_a_stop_string_inside_of_a_token(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, "of the end", "Good.")
    first = served.chat("Count.", stop="he", max_tokens=64)
    assert said(first) == "of t"
    second = served.chat("Count.", "of t", "Go on.")
    assert second["livingkv"]["session"] == first["livingkv"]["session"]
    assert b"of tGo on." in served.stored(first["livingkv"]["session"])


@pytest.mark.slow
def test_a_document_is_not_continued_as_a_conversation(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        served.chat("Hello.", session="anna")
        model = served.service._parts.model  # type: ignore[union-attr]
    with Memory.open(tmp_path / "stores" / "default", model=model) as memory:
        memory.ingest("log", text=b"A log.", session="log")
    with serving(tmp_path / "stores", model) as served:
        answer = served.post({"messages": talk("Hello."), "session": "log"})
        assert answer.status_code == 400 and "log" in answer.json()["error"]["message"]


def test_what_is_said_is_whole_in_the_store_and_found_by_it(served: Served) -> None:
    served.chat("The key of the boat hangs behind the clock.", session="anna")
    assert served.client.post(CHAT, json={}).status_code == 400
    with Memory.open(served.folder / "default", read_only=True) as memory:
        assert memory.check().problems == ()
        found = memory.ask("Where does the key of the boat hang?", session=f"{served.user}/anna", mode="extract")
    assert "behind the clock" in found.answer


@pytest.mark.slow
def test_a_conversation_longer_than_the_window_goes_on_and_tells_what_is_attended(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", settings=Settings(block_tokens=64, window_tokens=128)) as served:
        first = served.chat("Many words are said here. " * 30)
        assert first["usage"]["prompt_tokens"] > 300
        second = served.chat("Many words are said here. " * 30, said(first), "More.")
        assert cached(second) == first["usage"]["total_tokens"]
        assert second["livingkv"]["attended_tokens"] < 128 + 64 + 64


def test_everybody_is_no_user_of_a_conversation(served: Served) -> None:
    answer = served.post({"messages": talk("hello"), "user": "*", "session": "a"})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "user"
