"""Who gets to the web page: keys, cookies, tokens of forms, scopes; and what headers every page has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.datastructures import Headers

from livingkv.server.keys import KeyRing, make_key, read_keys, revoke_key
from livingkv.server.page.access import COOKIE, PageAccess
from livingkv.server.page.rendering import PAGE_HEADERS
from tests.server.serving import Served, serving
from tests.server.visiting import Html, Visitor, visiting

PAGES = ("/", "/page/ask", "/page/keys", "/page/nowhere")
Keys = dict[str, str]


@pytest.fixture(scope="module", name="keys_file")
def make_keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the keys are."""
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module", name="keys")
def make_keys(keys_file: Path) -> Keys:
    """A key of each scope."""
    made = {scope: make_key(keys_file, "anna", scope, [scope]) for scope in ("read", "write", "admin")}
    return made | {"bert": make_key(keys_file, "bert", "bert's", ["admin"])}


@pytest.fixture(scope="module", name="locked")
def start_locked(tmp_path_factory: pytest.TempPathFactory, keys_file: Path, keys: Keys) -> Iterator[Served]:
    """A service with keys."""
    assert keys
    with serving(tmp_path_factory.mktemp("locked") / "stores", keys_file=keys_file) as served:
        yield served


@pytest.fixture(name="visitor")
def visit(served: Served) -> Iterator[Visitor]:
    """At a page without keys."""
    with visiting(served) as visitor:
        yield visitor


@pytest.fixture(name="stranger")
def visit_locked(locked: Served) -> Iterator[Visitor]:
    """At a page with keys."""
    with visiting(locked) as visitor:
        yield visitor


@pytest.mark.parametrize("path", PAGES)
def test_every_page_has_the_strict_headers(visitor: Visitor, stranger: Visitor, path: str) -> None:
    for answer in (visitor.get(path), stranger.get(path), stranger.get("/page/login")):
        assert {name: answer.headers.get(name) for name in PAGE_HEADERS} == PAGE_HEADERS
        policy = answer.headers["content-security-policy"]
        assert "default-src 'self'" in policy and "unsafe" not in policy and "http" not in policy


def test_without_keys_the_page_opens_and_there_is_no_login(visitor: Visitor) -> None:
    assert visitor.get("/page/ask").status_code == 200
    assert visitor.get("/page/login").headers["location"].startswith("/")
    assert "runs without keys" in visitor.page("/page/keys").text


@pytest.mark.parametrize("path", ["/", "/page/sessions", "/page/keys", "/page/memory/1", "/page/series"])
def test_with_keys_a_stranger_is_asked_for_one(stranger: Visitor, path: str) -> None:
    answer = stranger.get(path)
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/login")
    part = stranger.get(path, part=True)
    assert (part.status_code, part.headers["hx-redirect"]) == (204, "/page/login")


def test_a_strangers_body_is_not_received(stranger: Visitor) -> None:
    answer = stranger.client.post("/page/ingest/file", content=b"x" * 100, headers={"Content-Type": "image/png"})
    assert answer.headers["location"] == "/page/login"
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    assert stranger.client.post("/page/login", content=b"key=" + b"x" * 5000, headers=kind).status_code == 413


def test_a_key_never_reaches_the_browser_again(stranger: Visitor, keys: Keys) -> None:
    before = stranger.get("/page/login").cookies[COOKIE]
    entered = stranger.enter(keys["write"])
    assert (entered.status_code, entered.headers["location"]) == (303, "/")
    cookie = entered.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie and "Secure" not in cookie and "Path=/" in cookie
    assert keys["write"] not in cookie and before not in cookie, "signing in makes a new id"
    page = stranger.get("/page/keys")
    assert page.status_code == 200 and keys["write"] not in page.text and keys["write"][17:] not in page.text


def test_a_wrong_key_is_refused_in_words(stranger: Visitor) -> None:
    answer = stranger.enter("lkv_000000000000_" + "x" * 43)
    assert answer.status_code == 401 and "not known" in answer.text
    assert stranger.get("/page/ask").headers["location"] == "/page/login"


def test_the_cookie_is_secure_behind_https(stranger: Visitor) -> None:
    stranger.client.headers["X-Forwarded-Proto"] = "https"
    assert "Secure" in stranger.get("/page/login").headers["set-cookie"]


def test_signing_out_ends_the_visit(stranger: Visitor, keys: Keys) -> None:
    stranger.enter(keys["read"])
    old = stranger.client.cookies[COOKIE]
    assert stranger.post("/page/logout").headers["location"] == "/page/login"
    stranger.client.cookies.set(COOKIE, old)
    assert stranger.get("/page/ask").status_code == 303


def test_a_revoked_key_ends_its_visits(stranger: Visitor, keys_file: Path, keys: Keys) -> None:
    key = make_key(keys_file, "anna", "short-lived", ["read"])
    stranger.enter(key)
    assert stranger.get("/page/ask").status_code == 200
    revoke_key(keys_file, key.split("_")[1])
    assert stranger.get("/page/ask").status_code == 303


def test_a_visit_ends_when_nobody_comes_for_long(keys_file: Path, keys: Keys) -> None:
    now = 0.0
    access = PageAccess(KeyRing(keys_file), lambda: now)
    visit_id = access.enter(keys["read"])
    assert visit_id is not None and access.enter("nonsense") is None
    headers = Headers({"cookie": f"{COOKIE}={visit_id}"})
    now = 11 * 3600
    assert access.caller(headers) is not None
    now = 22 * 3600
    assert access.caller(headers) is not None, "it was seen since"
    now = 40 * 3600
    assert access.caller(headers) is None


def test_an_api_key_in_a_header_does_not_open_the_page_nor_a_cookie_the_api(stranger: Visitor, keys: Keys) -> None:
    bearer = {"Authorization": f"Bearer {keys['admin']}"}
    assert stranger.client.get("/page/ask", headers=bearer).status_code == 303
    stranger.enter(keys["admin"])
    assert stranger.client.get("/v1/models").status_code == 401


@pytest.mark.parametrize("path", ["/page/forget", "/page/keys", "/page/session", "/page/ingest", "/page/ask"])
@pytest.mark.parametrize("token", ["", "0" * 48, "é"])
def test_a_form_without_its_token_does_nothing(visitor: Visitor, path: str, token: str) -> None:
    answer = visitor.post(path, csrf=token, ids="1", text="x", q="x", name="x", verb="pin")
    assert answer.status_code == 403 and "out of date" in answer.text


def test_the_token_of_another_visit_does_nothing(visitor: Visitor, served: Served) -> None:
    with visiting(served) as other:
        assert visitor.post("/page/ask", csrf=other.token(), q="x").status_code == 403


def test_pages_of_other_origins_cannot_send_forms(visitor: Visitor) -> None:
    token = visitor.token()
    for origin in ("https://evil.example", "null"):
        answer = visitor.client.post("/page/ask", data={"csrf": token, "q": "x"}, headers={"Origin": origin})
        assert answer.status_code == 403, origin


def test_what_the_guard_refuses_is_a_page_too(visitor: Visitor, stranger: Visitor) -> None:
    kind = {"Content-Type": "application/x-www-form-urlencoded"}
    large = stranger.client.post("/page/login", content=b"x" * 5000, headers=kind)
    foreign = visitor.client.get("/page/ask", headers={"Origin": "https://evil.example", "HX-Request": "true"})
    for answer in (large, foreign, visitor.client.get("/", headers={"Host": "<b>.example"})):
        assert {name: answer.headers.get(name) for name in PAGE_HEADERS} == PAGE_HEADERS
        assert answer.status_code in (403, 413) and 'role="alert"' in answer.text and "<b>" not in answer.text
    assert "<html" in large.text and "<html" not in foreign.text


CHANGES = {
    "/page/forget": {"session": "notes", "confirm": "yes"},
    "/page/session": {"name": "notes", "verb": "rename", "new_name": "mine"},
    "/page/ingest": {"text": "Something new."},
    "/page/memory/1": {"text": "Something else."},
}


def test_what_a_key_does_not_allow_is_neither_shown_nor_done(locked: Served, stranger: Visitor, keys: Keys) -> None:
    body = {"messages": [{"role": "user", "content": "The lamp burns oil."}], "session": "notes"}
    bearer = {"Authorization": f"Bearer {keys['write']}"}
    stored = locked.client.post("/v1/memory/turn", json=body, headers=bearer).json()["stored"]
    stranger.enter(keys["read"])
    for path in ("/", "/page/memories", f"/page/memory/{stored[0]}", "/page/session?name=notes", "/page/status"):
        page = Html(stranger.client.get(path).text)
        assert {form["action"] for form in page.all("form", method="post")} == {"/page/logout"}, path
        assert not page.all("a", href="/page/add")
    for path, form in CHANGES.items():
        assert stranger.post(path, **form).status_code == 403, path
    assert "The lamp burns oil." in stranger.page("/page/memories").text
    stranger.post("/page/logout")
    stranger.enter(keys["write"])
    assert stranger.post("/page/defrag").status_code == 403
    assert stranger.post("/page/forget", everything="yes", confirm="yes").status_code == 403
    assert stranger.get("/page/memories", user="*").status_code == 403
    assert "The lamp burns oil." in stranger.page("/page/memories").text


def test_an_admin_sees_every_user_and_each_row_leads_to_its_own(locked: Served, stranger: Visitor, keys: Keys) -> None:
    bearer = {"Authorization": f"Bearer {keys['write']}"}
    for user in ("carl", "dora", ""):
        said = {"role": "user", "content": f"The words of {user or 'nobody'} are here."}
        body = {"messages": [said], "session": "star", **({"user": user} if user else {})}
        assert locked.client.post("/v1/memory/turn", json=body, headers=bearer).status_code == 200
    stranger.enter(keys["admin"])
    for path in ("/page/memories", "/page/sessions", "/"):
        page = stranger.page(path, user="*")
        links = {link["href"] for link in page.all("a") if "name=star" in link["href"]}
        assert {"/page/session?user=carl&name=star", "/page/session?user=dora&name=star"} <= links, path
        assert "/page/session?name=star" in links
        assert all(stranger.client.get(link).status_code == 200 for link in links)


def test_other_tenants_see_nothing_of_it(locked: Served, stranger: Visitor, keys: Keys) -> None:
    body = {"messages": [{"role": "user", "content": "Anna's alone."}], "session": "own"}
    bearer = {"Authorization": f"Bearer {keys['write']}"}
    stored = locked.client.post("/v1/memory/turn", json=body, headers=bearer).json()["stored"]
    stranger.enter(keys["bert"])
    assert stranger.get(f"/page/memory/{stored[0]}").status_code == 404
    assert stranger.get("/page/session", name="own").status_code == 404
    assert stranger.post("/page/forget", ids=stored[0], confirm="yes").status_code == 404
    for path in ("/", "/page/memories", "/page/sessions", "/page/activity", "/?q=alone"):
        assert "Anna&#39;s alone" not in stranger.client.get(path).text


def test_a_form_is_a_form(visitor: Visitor) -> None:
    token = visitor.token()
    kinds = {"text/plain": b"csrf=" + token.encode(), "application/json": b"{}"}
    for kind, body in kinds.items():
        assert visitor.client.post("/page/forget", content=body, headers={"Content-Type": kind}).status_code == 415
    wrong = visitor.client.post(
        "/page/forget", content=b"csrf=%ff", headers={"Content-Type": "application/x-www-form-urlencoded"}
    )
    assert wrong.status_code == 400 and "UTF-8" in wrong.text


def test_keys_are_made_shown_once_and_revoked(stranger: Visitor, keys: Keys, keys_file: Path) -> None:
    stranger.enter(keys["admin"])
    made = stranger.post("/page/keys", key_name="<b>new</b>", scope="read")
    assert made.status_code == 201 and "<b>new" not in made.text
    shown = Html(made.text)
    new = next(key for key in read_keys(keys_file) if key.name == "<b>new</b>")
    assert f"lkv_{new.key_id}_" in shown.text and (new.tenant, new.scopes) == ("anna", ("read",))
    assert f"lkv_{new.key_id}_" not in stranger.page("/page/keys").text
    asked = stranger.post("/page/keys/revoke", key_id=new.key_id)
    assert asked.status_code == 200 and "Revoke <b>new</b>?" in Html(asked.text).text
    assert new in read_keys(keys_file), "it was asked for only"
    assert stranger.post("/page/keys/revoke", key_id=new.key_id, confirm="yes").status_code == 303
    assert new not in read_keys(keys_file)


def test_keys_of_other_tenants_are_not_there(stranger: Visitor, keys: Keys, keys_file: Path) -> None:
    stranger.enter(keys["admin"])
    berts = keys["bert"].split("_")[1]
    assert berts not in stranger.get("/page/keys").text
    assert stranger.post("/page/keys/revoke", key_id=berts, confirm="yes").status_code == 404
    own = keys["admin"].split("_")[1]
    assert stranger.post("/page/keys/revoke", key_id=own, confirm="yes").status_code == 409
    assert {berts, own} <= {key.key_id for key in read_keys(keys_file)}


@pytest.mark.parametrize("scope", ["read", "write"])
def test_only_an_admin_changes_keys(stranger: Visitor, keys: Keys, keys_file: Path, scope: str) -> None:
    stranger.enter(keys[scope])
    page = stranger.page("/page/keys")
    assert not page.all("form", action="/page/keys") and not page.all("form", action="/page/keys/revoke")
    assert keys[scope].split("_")[1] in page.text and keys["admin"].split("_")[1] not in page.text
    before = read_keys(keys_file)
    assert stranger.post("/page/keys", key_name="x", scope="admin").status_code == 403
    assert stranger.post("/page/keys/revoke", key_id=keys["read"].split("_")[1], confirm="yes").status_code == 403
    assert read_keys(keys_file) == before
