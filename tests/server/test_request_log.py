"""Every answer carries an id, and the log has a line for each request, as text or as JSON, without any content."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import httpx
import pytest

from livingkv.server.keys import make_key
from livingkv.server.request_log import formatter, start_logging
from livingkv.server.service import Service
from tests.server.serving import CHAT, Served, serving, talk, wait_until

MADE = re.compile(r"[0-9a-f]{32}")


@pytest.fixture(name="lines")
def logged_lines() -> Iterator[StringIO]:
    """What the service logs from now on, as JSON."""
    stream = StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("json"))
    log = logging.getLogger("livingkv")
    before = log.level
    log.setLevel(logging.INFO)  # and not the attribute alone: loggers remember what they refused
    log.addHandler(handler)
    yield stream
    log.removeHandler(handler)
    log.setLevel(before)


def parsed(lines: StringIO) -> list[dict[str, Any]]:
    """The lines as they stand."""
    return [json.loads(line) for line in lines.getvalue().splitlines()]


def line_of(answer: httpx.Response, lines: StringIO) -> dict[str, Any]:
    """The line about a request, which is written after its answer was sent."""
    request_id = answer.headers["x-request-id"]

    def found() -> list[dict[str, Any]]:
        return [line for line in parsed(lines) if line.get("request_id") == request_id]

    wait_until(found)
    (line,) = found()
    return line


@pytest.mark.parametrize("given", ["a", "req-1.2:3", "0f8fad5b-d9cb-469f-a165-70867728950e", "x" * 64])
def test_an_id_of_the_client_comes_back(served: Served, given: str) -> None:
    for answer in (
        served.client.get("/health", headers={"X-Request-Id": given}),
        served.client.get("/nothing", headers={"X-Request-Id": given}),
        served.post({"messages": []}, X_Request_Id=given),
        served.post({"messages": talk("Hello"), "stream": True}, X_Request_Id=given),
    ):
        assert answer.headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "x" * 65, "a b", "-a", "lkv_0a1b2c_secret", "a\tb", 'a"b', "é"])
def test_another_id_is_made_anew(served: Served, given: str) -> None:
    headers = {b"X-Request-Id": given.encode("latin-1")}
    first, second = (served.client.get("/health", headers=headers) for _ in range(2))
    ids = [answer.headers["x-request-id"] for answer in (first, second)]
    assert all(MADE.fullmatch(each) for each in ids) and ids[0] != ids[1]


def test_refusals_of_the_guard_and_failures_carry_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: StringIO
) -> None:
    make_key(tmp_path / "keys.json", "anna", "", ["admin"])
    allowed = ("https://a.example",)
    with serving(tmp_path / "stores", keys_file=tmp_path / "keys.json", allowed_origins=allowed) as served:
        key = make_key(tmp_path / "keys.json", "anna", "", ["admin"])
        headers = {"Authorization": f"Bearer {key}", "Origin": "https://a.example"}
        monkeypatch.setattr(Service, "exposition", None)  # an error that nobody expects
        answers = [
            served.client.get("/v1/models"),
            served.client.get("/v1/models", headers={"Host": "b.example"}),
            served.client.post(CHAT, content="x", headers=headers | {"Content-Type": "text/plain"}),
            served.client.get("/metrics", headers=headers),
            served.client.get("/v1/models", headers=headers),
        ]
    assert [answer.status_code for answer in answers] == [401, 403, 415, 500, 200]
    ids = [answer.headers["x-request-id"] for answer in answers]
    requests = [line for line in parsed(lines) if line["message"] == "request"]
    assert len(requests) == len(set(ids)) == len(ids)
    assert {line["request_id"]: line["status"] for line in requests} == dict(
        zip(ids, [401, 403, 415, 500, 200], strict=True)
    )
    for answer in answers[-3:]:
        assert "X-Request-Id" in answer.headers["access-control-expose-headers"]


def test_a_line_of_json_has_no_content(served: Served, lines: StringIO) -> None:
    first = line_of(served.post({"messages": talk("XANTHIC is secret"), "session": "XANTHIC"}), lines)
    second = line_of(served.client.get("/v1/models/XANTHIC?XANTHIC=1"), lines)
    assert set(first) == {"time", "level", "logger", "message", "request_id", "method", "route", "status", "ms"}
    assert (first["method"], first["route"], first["status"]) == ("POST", CHAT, 200) and first["ms"] > 0
    assert second["route"] == "/v1/models/{model:path}" and second["status"] == 404
    assert "XANTHIC" not in lines.getvalue()


def test_an_error_is_one_line_of_json_without_values(
    served: Served, lines: StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("".join(["XAN", "THIC"]))

    monkeypatch.setattr("livingkv.server.placing.Placing._find", broken)
    answer = served.post({"messages": talk("Hello")})
    assert answer.status_code == 500 and line_of(answer, lines)["status"] == 500
    errors = [line for line in parsed(lines) if line["level"] == "error"]
    assert len(errors) == 1 and "RuntimeError" in errors[0]["traceback"] and "XANTHIC" not in lines.getvalue()


@pytest.mark.parametrize(("form", "first"), [("json", "{"), ("text", "2")])
def test_the_log_goes_to_standard_error(monkeypatch: pytest.MonkeyPatch, form: Any, first: str) -> None:
    stream = StringIO()
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(logging.getLogger("mcp"), "level", logging.NOTSET)
    start_logging(form)
    logging.getLogger("mcp.server").error("what somebody said")
    logging.getLogger("livingkv.test").info("a word\nand more")
    logging.getLogger("other").warning("W")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith(first) and "a word" in lines[0]
    assert len(lines) == (2 if form == "json" else 3)
