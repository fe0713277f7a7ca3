"""Who may ask what: hosts, origins, keys, scopes, tenants, limits; and what the log does not say."""

from __future__ import annotations

import json
import logging
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from livingkv.errors import InputError
from livingkv.server.api_errors import ApiError
from livingkv.server.app import create_app
from livingkv.server.keys import make_key, read_keys, revoke_key
from livingkv.server.limits import Rate
from livingkv.server.options import ServerOptions, is_loopback
from livingkv.server.service import Service
from livingkv.store import Store
from tests.server.serving import CHAT, Served, cached, said, serving, talk, tiny_model

HELLO = "The marker of anna is AQUAMARINE-7. " * 6


@pytest.fixture(scope="module", name="keys_file")
def make_keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the keys are."""
    return tmp_path_factory.mktemp("keys") / "keys.json"


@pytest.fixture(scope="module", name="keys")
def make_keys(keys_file: Path) -> dict[str, str]:
    """A key for each purpose."""
    return {
        "anna": make_key(keys_file, "anna", "laptop", ["write"]),
        "bert": make_key(keys_file, "bert", "phone", ["write"]),
        "reader": make_key(keys_file, "anna", "reader", ["read"]),
        "admin": make_key(keys_file, "anna", "admin", ["admin"]),
        "proxy": make_key(keys_file, "house", "open-webui", ["write"], forwards_users=True),
    }


@pytest.fixture(scope="module", name="locked")
def start_locked(tmp_path_factory: pytest.TempPathFactory, keys_file: Path, keys: dict[str, str]) -> Iterator[Served]:
    """A service with keys."""
    assert keys
    with serving(tmp_path_factory.mktemp("locked") / "stores", tiny_model(), keys_file=keys_file) as served:
        yield served


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"Authorization": f"Bearer {key}"}


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8345", "127.0.0.1.evil.example", ""])
def test_a_foreign_host_is_refused_on_loopback(served: Served, host: str) -> None:
    assert served.client.get("/v1/models", headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1:8345", "[::1]:8345"])
def test_names_of_this_machine_are_served(served: Served, host: str) -> None:
    assert served.client.get("/v1/models", headers={"Host": host}).status_code == 200


def test_web_pages_of_other_origins_are_refused_and_get_no_cors(served: Served) -> None:
    answer = served.post({"messages": talk("Hi.")}, Origin="https://evil.example")
    assert answer.status_code == 403 and "access-control-allow-origin" not in answer.headers
    asked = served.client.options(
        CHAT, headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    )
    assert "access-control-allow-origin" not in asked.headers
    assert served.post({"messages": talk("Hi.")}, Origin=served.url).status_code == 200


PAGE = "https://page.example"
PREFLIGHT = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "Authorization"}


@pytest.fixture(scope="module", name="paged")
def start_paged(
    tmp_path_factory: pytest.TempPathFactory, keys_file: Path, keys: dict[str, str]
) -> Iterator[TestClient]:
    """A client of a service without a model that web pages of one origin may use, with keys and a rate."""
    assert keys
    options = ServerOptions(
        tmp_path_factory.mktemp("paged"), keys_file=keys_file, allowed_origins=(PAGE,), requests_per_minute=6
    )
    with TestClient(create_app(Service(options, tiny_model())), base_url="http://localhost") as client:
        yield client


def test_what_a_browser_asks_before_passes_the_guard(paged: TestClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "livingkv")
    answer = paged.options(CHAT, headers=PREFLIGHT)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
    assert "OPTIONS (no route) 200" in caplog.text
    assert paged.options(CHAT, headers={**PREFLIGHT, "Host": "evil.example"}).status_code == 403
    assert paged.options(CHAT, headers={**PREFLIGHT, "Origin": "https://evil.example"}).status_code == 403
    assert 429 in [paged.options(CHAT, headers=PREFLIGHT).status_code for _ in range(7)]


def test_what_browsers_ask_before_counts_for_the_address_that_it_comes_from_and_for_no_key(
    tmp_path: Path, keys_file: Path, keys: dict[str, str]
) -> None:
    options = ServerOptions(tmp_path, keys_file=keys_file, allowed_origins=(PAGE,), requests_per_minute=3)
    app = create_app(Service(options, tiny_model()))

    def client(address: str) -> TestClient:
        return TestClient(app, base_url="http://localhost", client=(address, 1))

    with client("10.0.0.1") as one, client("10.0.0.2") as other:
        assert [one.options(CHAT, headers=PREFLIGHT).status_code for _ in range(4)] == [200, 200, 200, 429]
        assert other.options(CHAT, headers=PREFLIGHT).status_code == 200
        asked = [one.get("/version", headers=bearer(keys["reader"])).status_code for _ in range(4)]
        assert asked == [200, 200, 200, 429]


def test_a_page_that_is_allowed_reads_why_it_is_refused(paged: TestClient) -> None:
    answer = paged.get("/v1/models", headers={"Origin": PAGE})
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, PAGE)
    assert "access-control-allow-origin" not in paged.get("/v1/models").headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_that_a_web_page_could_send_unasked_is_refused(served: Served, kind: str) -> None:
    answer = served.client.post(CHAT, content=json.dumps({"messages": talk("Hi.")}), headers={"Content-Type": kind})
    assert answer.status_code == 415


@pytest.mark.parametrize("key", [None, "none", "lkv_000000000000_" + "A" * 43])
def test_without_a_valid_key_nothing_is_said(locked: Served, key: str | None) -> None:
    headers = {} if key is None else bearer(key)
    for method, path in (("GET", "/v1/models"), ("POST", CHAT), ("GET", "/metrics"), ("GET", "/openapi.json")):
        answer = locked.client.request(method, path, headers=headers)
        assert answer.status_code == 401 and answer.json()["error"]["code"] == "invalid_api_key"
    assert locked.client.get("/health").status_code == 200


def test_scopes(locked: Served, keys: dict[str, str]) -> None:
    turn = {"messages": talk("Hi.")}
    assert locked.post(turn, **bearer(keys["reader"])).status_code == 403
    assert locked.post({**turn, "store": False}, **bearer(keys["reader"])).status_code == 200
    assert locked.client.get("/v1/models", headers=bearer(keys["reader"])).status_code == 200
    assert locked.client.get("/metrics", headers=bearer(keys["anna"])).status_code == 403
    assert locked.client.get("/metrics", headers=bearer(keys["admin"])).status_code == 200


def test_tenants_share_nothing_whatever_the_body_says(locked: Served, keys: dict[str, str]) -> None:
    first = locked.post({"messages": talk(HELLO), "session": "talk"}, **bearer(keys["anna"])).json()
    texts = (HELLO, said(first), "More.")
    fields = {"session": "talk", "tenant": "anna", "user": ""}
    other = locked.post({"messages": talk(*texts), **fields}, **bearer(keys["bert"])).json()
    assert cached(other) == 0 and other["livingkv"]["session"] == "talk"
    own = locked.post({"messages": talk(*texts), "session": "talk"}, **bearer(keys["anna"])).json()
    assert cached(own) == first["usage"]["total_tokens"]
    assert {"anna", "bert"} <= {path.name for path in locked.folder.iterdir()}
    reader = locked.post({"messages": talk("x"), "session": "talk"}, **bearer(keys["reader"]))
    assert reader.status_code == 403


def test_a_proxy_says_for_whom_it_asks_and_nobody_else_does(locked: Served, keys: dict[str, str]) -> None:
    turn = {"messages": talk(HELLO)}
    named = {"X-OpenWebUI-User-Id": "u1", "X-OpenWebUI-Chat-Id": "c1"}
    assert locked.post(turn, **bearer(keys["proxy"]), **named).headers["x-session-id"] == "c1"
    beside = locked.post(turn, **bearer(keys["proxy"]), **{**named, "X-OpenWebUI-User-Id": "u2"}).json()
    assert cached(beside) == 0
    assert locked.post(turn, **bearer(keys["bert"]), **named).headers["x-session-id"] != "c1"


def test_a_revoked_key_lets_nobody_in_at_once(locked: Served, keys_file: Path) -> None:
    key = make_key(keys_file, "carl", "old", ["read"])
    assert locked.client.get("/v1/models", headers=bearer(key)).status_code == 200
    revoke_key(keys_file, read_keys(keys_file)[-1].key_id)
    assert locked.client.get("/v1/models", headers=bearer(key)).status_code == 401


def test_the_keys_file_holds_no_key_and_is_nobody_elses(keys_file: Path, keys: dict[str, str]) -> None:
    text = keys_file.read_text()
    assert all(key not in text and key.split("_", 2)[2] not in text for key in keys.values())
    assert stat.S_IMODE(keys_file.stat().st_mode) == 0o600


def test_a_service_without_a_key_to_open_it_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "keys.json"
    with pytest.raises(InputError, match="keys file"), serving(tmp_path / "stores", keys_file=file):
        pass
    make_key(file, "anna", "", ["write"])
    revoke_key(file, read_keys(file)[0].key_id)
    with pytest.raises(InputError, match="at least one key"), serving(tmp_path / "stores", keys_file=file):
        pass


def test_a_body_that_is_too_large_is_refused(served: Served) -> None:
    limit = served.service.options.max_body_bytes
    assert served.post({"messages": talk("x" * limit)}).status_code == 413

    def endless() -> Iterator[bytes]:
        for _ in range(limit // 65536 + 2):
            yield b" " * 65536

    answer = served.client.post(CHAT, content=endless(), headers={"Content-Type": "application/json"})
    assert answer.status_code == 413 and answer.json()["error"]["code"] == "body_too_large"


def test_a_rate_is_kept_for_each_key() -> None:
    now = [0.0]
    rate = Rate(60, lambda: now[0])
    for _ in range(60):
        rate.take("anna")
    with pytest.raises(ApiError) as caught:
        rate.take("anna")
    assert caught.value.status == 429 and caught.value.retry_after_s == 2
    rate.take("bert")
    now[0] += 1.0
    rate.take("anna")


def test_a_rate_does_not_remember_who_asked_long_ago() -> None:
    now = [0.0]
    rate = Rate(60, lambda: now[0])
    for n in range(30_000):
        rate.take(f"10.0.{n}")
        now[0] += 0.01
    assert len(rate) < 20_000


@pytest.mark.slow
def test_limits_of_a_tenant(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", max_sessions=1, requests_per_minute=4) as served:
        first = served.chat("One.")
        assert served.chat("One.", said(first), "More.")["livingkv"]["session"] == first["livingkv"]["session"]
        refused = served.post({"messages": talk("Two.")})
        assert refused.status_code == 507 and refused.json()["error"]["code"] == "too_many_sessions"
        codes = [served.post({"messages": talk("Two.")}).status_code for _ in range(3)]
        assert codes[-1] == 429


@pytest.mark.slow
def test_a_tenant_that_is_full_and_a_store_in_use_are_told(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", max_tenant_bytes=1 << 20) as served:
        while (answer := served.post({"messages": talk("Word. " * 250)})).status_code == 200:
            pass
        assert (answer.status_code, answer.json()["error"]["code"]) == (507, "tenant_full")
    with serving(tmp_path / "stores") as served, Store.open(tmp_path / "stores" / "default", mode="write"):
        answer = served.post({"messages": talk("Hi.")})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_locked")


def test_the_log_says_nothing_of_what_was_said(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "livingkv")
    served.chat("The marker is XANTHIC-9.", session="secret-name")
    served.client.get("/v1/XANTHIC-9?q=XANTHIC-9")
    served.post({"messages": [{"role": "XANTHIC-9", "content": ""}]})
    assert "POST /v1/chat/completions 200" in caplog.text
    assert "XANTHIC" not in caplog.text and "secret-name" not in caplog.text


def test_a_fault_is_told_and_logged_without_content(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from livingkv.server.placing import Placing

    def broken(self: Placing, said: object, *, follows: bool) -> object:
        raise RuntimeError("-".join(["XANTHIC", "9"]))

    monkeypatch.setattr(Placing, "_find", broken)
    failed = served.count("failed_total")
    answer = served.post({"messages": talk("XANTHIC-9")})
    assert answer.status_code == 500 and "XANTHIC" not in answer.text
    assert served.count("failed_total") == failed + 1
    assert "RuntimeError" in caplog.text and "XANTHIC-9" not in caplog.text


def test_another_host_needs_keys(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without --keys"):
        ServerOptions(tmp_path, host="0.0.0.0")
    assert ServerOptions(tmp_path, host="0.0.0.0", keys_file=tmp_path / "keys.json").host == "0.0.0.0"
    assert [is_loopback(host) for host in ("localhost", "127.0.0.9", "::1", "0.0.0.0", "10.0.0.1", "example.org")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_store_is_not_a_folder_of_stores(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InputError, match="this is a store"):
        ServerOptions(tmp_path)


def test_folders_of_tenants_are_nobody_elses(served: Served) -> None:
    served.chat("Hello there")
    assert stat.S_IMODE(served.folder.stat().st_mode) == 0o700
    assert replace(served).folder == served.folder
