"""Headers that must not be ambiguous: given once, and names in them in percent-encoded UTF-8."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers

from livingkv.errors import InputError
from livingkv.server.request_headers import name_in, shown_name
from livingkv.store import check_session_name
from tests.server.serving import CHAT, Served, talk

TURN = {"messages": talk("Hi."), "max_tokens": 2}


def _is_name(text: str) -> bool:
    try:
        check_session_name(text)
    except InputError:
        return False
    return "/" not in text


NAMES = st.text(min_size=1, max_size=40).filter(_is_name)


@pytest.mark.parametrize(
    "header",
    ["X-Session-Id", "X-OpenWebUI-User-Id", "X-OpenWebUI-Chat-Id", "Authorization", "Idempotency-Key", "Origin"],
)
@pytest.mark.parametrize("values", [("a", "b"), ("a", "a"), ("", "a")])
def test_a_header_that_is_given_twice_is_refused(served: Served, header: str, values: tuple[str, str]) -> None:
    answer = served.client.post(CHAT, json=TURN, headers=[(header, value) for value in values])
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "header_repeated", header.lower())
    assert "once" in error["message"] and "\n" not in error["message"]


def test_a_content_type_that_is_given_twice_is_refused(served: Served) -> None:
    kinds = [("Content-Type", "text/plain"), ("Content-Type", "application/json")]
    answer = served.client.post(CHAT, content=b"{}", headers=kinds)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "header_repeated")


def test_a_user_without_a_name_is_refused(served: Served) -> None:
    answer = served.client.post(CHAT, json=TURN, headers={"X-OpenWebUI-User-Id": ""})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "x-openwebui-user-id")


@pytest.mark.parametrize("name", ["anna", "日本語 Grüße", "50%", "100%41", " a ", "👍🏽", 'a"b;c'])
def test_a_session_of_any_name_comes_back_as_it_was_given(served: Served, name: str) -> None:
    first = served.post({**TURN, "session": name})
    assert first.status_code == 200 and first.json()["livingkv"]["session"] == name
    header = first.headers["x-session-id"]
    again = served.post({**TURN, "messages": talk("Hi.", "x", "More.")}, X_Session_Id=header)
    assert again.json()["livingkv"]["session"] == name and again.headers["x-session-id"] == header


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(NAMES)
@example("50%")
@example("%41")
@example(" a ")
def test_every_name_survives_a_header(name: str) -> None:
    shown = shown_name(name)
    assert shown.isascii() and shown.isprintable() and shown == shown.strip()
    assert name_in(Headers({"x-session-id": shown}), "x-session-id") == name


@pytest.mark.parametrize("name", ["anna", "chat-0f", "a b", "a@b.example", "x~2"])
def test_a_plain_name_stands_as_it_is(name: str) -> None:
    assert shown_name(name) == name


@pytest.mark.parametrize("value", ["50%", "%", "%4", "%zz", "%FF", "%C3", "%C3%28", "Gr\xfc\xdfe"])
def test_what_is_no_encoded_name_is_refused(served: Served, value: str) -> None:
    answer = served.client.post(CHAT, json=TURN, headers=[(b"X-Session-Id", value.encode("latin-1"))])
    error = answer.json()["error"]
    assert answer.status_code == 400 and "percent-encoded" in error["message"] and error["param"] == "x-session-id"


def test_an_encoded_name_cannot_be_what_no_session_may_be_called(served: Served) -> None:
    for value in ("a%2Fb", "%00", "%0A", "a%20" * 200):
        assert served.post(TURN, X_Session_Id=value).status_code == 400
