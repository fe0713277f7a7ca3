"""Sessions over the wire: made, listed, shown, changed, forgotten, checked and restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from livingkv.server.job_files import WORK
from livingkv.store import Store
from tests.server.serving import Json, Served, cached, said, serving
from tests.server.test_jobs import BOOK, ended, ingested

HELLO = "The shed is blue, and its code is 4471. " * 6


def made(served: Served, name: str, **fields: Any) -> Json:
    """A session that was made."""
    answer = served.client.post("/v1/sessions", json={"name": name, "user": served.user, **fields})
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


def shown(served: Served, name: str) -> Json:
    """A session as it is."""
    answer = served.client.get(f"/v1/sessions/{name}", params={"user": served.user})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def did(served: Served, session: str, verb: str, **fields: Any) -> Json:
    """What saving, restoring or forking answered."""
    answer = served.client.post(f"/v1/sessions/{session}/{verb}", json={"user": served.user, **fields})
    assert answer.status_code in (200, 201), answer.text
    found: Json = answer.json()
    return found


def test_a_session_is_made_once(served: Served) -> None:
    one = made(served, "notes", kv=False)
    assert (one["name"], one["user"], one["kind"]) == ("notes", served.user, "document")
    assert one["text_only"] and not one["encrypted"] and one["tokens"] == 0 and one["state"] == "stored"
    again = served.client.post("/v1/sessions", json={"name": "notes", "user": served.user})
    assert again.status_code == 409 and again.json()["error"]["code"] == "session_exists"


def test_an_encrypted_session_is_made_read_and_listed(served: Served) -> None:
    assert made(served, "secret", encrypt=True)["encrypted"]
    job = ended(served, ingested(served, BOOK * 4, session="secret"))
    assert job["state"] == "done" and job["source"] == "book"
    assert shown(served, "secret")["sources"][0]["name"] == "book"


def test_sessions_are_listed_in_pages_newest_first(served: Served) -> None:
    names = [f"session-{n}" for n in range(7)]
    for name in names:
        made(served, name)
    found, cursor = [], None
    while True:
        query = {"user": served.user, "limit": "3", **({"cursor": cursor} if cursor else {})}
        page = served.client.get("/v1/sessions", params=query).json()
        found += [each["name"] for each in page["sessions"]]
        cursor = page["next_cursor"]
        if cursor is None:
            break
    assert found == names[::-1]
    everybody = served.client.get("/v1/sessions", params={"user": "*", "limit": 1000}).json()["sessions"]
    assert {each["name"] for each in everybody if each["user"] == served.user} == set(names)
    for wrong in ({"cursor": "x"}, {"limit": 0}, {"limit": 5000}, {"cursor": "9" * 40}):
        assert served.client.get("/v1/sessions", params=wrong).status_code == 400


def test_a_session_is_shown_with_its_sources_and_timeline(served: Served) -> None:
    ended(served, ingested(served, BOOK * 40, session="notes"))
    ended(served, ingested(served, "Another letter.\n", session="notes", source="letter"))
    one = shown(served, "notes")
    assert [(each["name"], each["complete"]) for each in one["sources"]] == [("book", True), ("letter", True)]
    book, letter = one["timeline"]
    assert (book["source"], book["role"], book["bytes"]) == ("book", "document", len(BOOK) * 40)
    assert book["tokens"] == [0, letter["tokens"][0]] and letter["tokens"][1] == one["tokens"]
    assert book["sentences"] + letter["sentences"] == one["sentences"]
    served.chat(HELLO, session="talk")
    talk = shown(served, "talk")
    assert talk["kind"] == "conversation" and talk["turns"] == 1
    assert {each["role"] for each in talk["timeline"]} >= {"user", "template"}


def test_a_session_gets_another_name_and_is_pinned(served: Served) -> None:
    first = served.chat(HELLO, session="old")
    answer = served.client.patch("/v1/sessions/old", json={"user": served.user, "name": "new", "pinned": True})
    assert answer.status_code == 200 and answer.json()["name"] == "new" and answer.json()["pinned"]
    assert served.client.get("/v1/sessions/old", params={"user": served.user}).status_code == 404
    goes_on = served.chat(HELLO, said(first), "And the key?", session="new")
    assert cached(goes_on) == first["usage"]["total_tokens"]
    made(served, "taken")
    taken = served.client.patch("/v1/sessions/new", json={"user": served.user, "name": "taken"})
    assert taken.status_code == 409
    nothing = served.client.patch("/v1/sessions/new", json={"user": served.user})
    assert nothing.status_code == 400 and "name or pinned" in nothing.text


def test_a_forgotten_conversation_is_never_reused(served: Served) -> None:
    first = served.chat(HELLO, session="talk")
    query = {"user": served.user}
    counted = served.client.delete("/v1/sessions/talk", params={**query, "dry_run": "true"})
    assert counted.status_code == 200, counted.text
    assert counted.json()["counts"]["tokens"] == shown(served, "talk")["tokens"]
    receipt = served.client.delete("/v1/sessions/talk", params=query).json()["receipt"]
    assert receipt["counts"] == counted.json()["counts"] and receipt["bytes"]["text"] > 0
    assert served.client.delete("/v1/sessions/talk", params=query).status_code == 404
    again = served.chat(HELLO, said(first), "And the key?")
    assert cached(again) == 0


def test_a_fork_goes_on_by_itself(served: Served) -> None:
    first = served.chat(HELLO, session="talk")
    assert did(served, "talk", "fork", name="other")["tokens"] == shown(served, "talk")["tokens"]
    goes_on = served.chat(HELLO, said(first), "And the key?", session="other")
    assert goes_on["livingkv"]["session"] == "other"
    assert cached(goes_on) == first["usage"]["total_tokens"]
    assert shown(served, "talk")["turns"] == 1 and shown(served, "other")["turns"] == 2
    found = served.chat(HELLO, said(first), "And the key?", said(goes_on), "Why?")
    assert found["livingkv"]["session"] == "other"


def test_saving_reads_every_page(served: Served) -> None:
    ended(served, ingested(served, BOOK * 40, session="notes"))
    one = did(served, "notes", "save")
    assert one["tokens"] == shown(served, "notes")["tokens"] and one["pages_checked"] == one["tokens"] // 64
    assert one["pages_missing"] == 0 and one["bytes"] > len(BOOK) * 40 and one["ms"] > 0
    assert one["tier"] in ("device", "ram", "disk") and one["fingerprint"]["page_tokens"] == 64


def test_damage_is_told_in_one_line(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        served.chat(HELLO * 3, session="talk")
    with Store.open(tmp_path / "stores" / "default", mode="read") as store:
        row = store.session("talk")
        place = store.locate_pages(row.session_id, [1])[0].location
    file = next(path for path in (tmp_path / "stores" / "default" / "segments").glob(f"*{place.segment}.seg"))
    data = bytearray(file.read_bytes())
    data[place.offset + 80] ^= 1
    file.write_bytes(data)
    with serving(tmp_path / "stores") as served:
        for verb in ("save", "export"):
            path = f"/v1/sessions/talk/{verb}"
            answer = served.client.get(path) if verb == "export" else served.client.post(path)
            assert answer.status_code == 500 and answer.json()["error"]["code"] == "session_damaged"
            assert "page 1: stop the service and run `livingkv repair`" in answer.json()["error"]["message"]
        assert list((tmp_path / "stores" / f"default{WORK}").iterdir()) == []


def restored_is_reused(served: Served, first: Json) -> None:
    """Restore a conversation, and have the next turn prove it."""
    before = served.count("prefilled_tokens_total")
    one = did(served, "talk", "restore")
    assert served.count("prefilled_tokens_total") == before and one["prefilled_tokens"] == 0
    assert one["reused_tokens"] == one["tokens"] == first["usage"]["total_tokens"] and not one["rebuilt"]
    assert shown(served, "talk")["state"] == "device"
    assert did(served, "talk", "restore")["tier"] == "device"
    second = served.chat(HELLO, said(first), "And the key?", session="talk")
    assert cached(second) == one["reused_tokens"]
    n_new = second["usage"]["prompt_tokens"] - cached(second)
    assert served.count("prefilled_tokens_total") - before == second["livingkv"]["prefilled_tokens"] == n_new


def test_what_is_restored_is_reused(served: Served) -> None:
    first = served.chat(HELLO, session="talk")
    served.chat("Something else.", session="other")
    restored_is_reused(served, first)


def test_what_is_restored_is_reused_after_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        first = served.chat(HELLO, session="talk")
    with serving(tmp_path / "stores") as served:
        assert shown(served, "talk")["state"] == "stored"
        restored_is_reused(served, first)


def test_what_had_to_be_read_again_is_not_called_reused(tmp_path: Path) -> None:
    with serving(tmp_path / "stores") as served:
        first = served.chat(HELLO, session="talk")
    with Store.open(tmp_path / "stores" / "default", mode="write") as store:
        row = store.session("talk")
        store.drop_pages(row.session_id, [1, 2])
    with serving(tmp_path / "stores") as served:
        before = served.count("prefilled_tokens_total")
        one = did(served, "talk", "restore")
        assert one["rebuilt"] and one["prefilled_tokens"] == 2 * 64
        assert served.count("prefilled_tokens_total") - before == 2 * 64
        assert one["reused_tokens"] == one["tokens"] - 2 * 64
        second = served.chat(HELLO, said(first), "And the key?", session="talk")
        assert cached(second) == one["tokens"]


def test_a_document_is_restored_as_it_goes_on(served: Served) -> None:
    ended(served, ingested(served, BOOK * 40, session="notes"))
    served.chat(HELLO, session="talk")
    one = did(served, "notes", "restore")
    assert one["prefilled_tokens"] == 0 and one["reused_tokens"] == one["tokens"] > one["attended_tokens"] > 0
    made(served, "plain", kv=False)
    ended(served, ingested(served, BOOK, session="plain", kv=False))
    assert did(served, "plain", "restore")["reused_tokens"] == 0


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/sessions/mine"),
        ("DELETE", "/v1/sessions/mine"),
        ("PATCH", "/v1/sessions/mine"),
        ("POST", "/v1/sessions/mine/save"),
        ("POST", "/v1/sessions/mine/restore"),
        ("POST", "/v1/sessions/mine/fork"),
        ("GET", "/v1/sessions/mine/export"),
    ],
)
def test_what_is_another_users_is_not_there(served: Served, method: str, path: str) -> None:
    made(served, "mine")
    body = {"name": "new", "user": "somebody"} if method in ("POST", "PATCH") else None
    answer = served.client.request(method, path, params={"user": "somebody"}, json=body)
    assert answer.status_code == 404, answer.text
    assert answer.json()["error"]["code"] == "session_not_found"
    for wrong in ("*", "a/b"):
        body = {**body, "user": wrong} if body is not None else None
        assert served.client.request(method, path, params={"user": wrong}, json=body).status_code == 400
    assert shown(served, "mine")["tokens"] == 0
