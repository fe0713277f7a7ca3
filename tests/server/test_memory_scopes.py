"""Whose memories a key and a user reach: nothing of another tenant or user is found, counted, shown or forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from livingkv.memory import Memory
from livingkv.server.keys import make_key
from livingkv.settings import Settings
from tests.server.serving import Json, Served, serving, talk, tiny_model

MARKERS = {"u1": "AQUAMARINE", "u2": "BERYL", "": "CITRINE"}
QUESTIONS = ("What is the code of Delta Gate?", "What are all the codes of Delta Gate?", "How many codes are there?")


class House(NamedTuple):
    """A service with keys. ids: of the sentences of each user."""

    served: Served
    keys: dict[str, str]
    ids: dict[str, list[str]]

    def send(self, key: str, method: str, path: str, **sent: Any) -> httpx.Response:
        """A request with one of the keys."""
        headers = {"Authorization": f"Bearer {self.keys[key]}", **sent.pop("headers", {})}
        return self.served.client.request(method, f"/v1{path}", headers=headers, **sent)


def codes(user: str) -> str:
    """What a user says."""
    return " ".join(f"The code number {n} of Delta Gate is {MARKERS[user]}-{n}." for n in range(3))


@pytest.fixture(scope="module", name="house")
def build(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """Two tenants; in the first three users with the same sessions, each with a marker."""
    folder = tmp_path_factory.mktemp("house")
    file = folder / "keys.json"
    keys = {
        "write": make_key(file, "anna", "", ["write"]),
        "read": make_key(file, "anna", "", ["read"]),
        "admin": make_key(file, "anna", "", ["admin"]),
        "proxy": make_key(file, "anna", "", ["write"], forwards_users=True),
        "other": make_key(file, "bert", "", ["admin"]),
    }
    with serving(folder / "stores", keys_file=file) as served:
        house = House(served, keys, {})
        for user in MARKERS:
            body = {"messages": talk(codes(user)), "user": user or None}
            house.ids[user] = house.send("write", "POST", "/memory/turn", json=body).json()["stored"]
        yield house


@pytest.mark.parametrize(
    "mode", ["extract", pytest.param("auto", marks=pytest.mark.slow), pytest.param("ground", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("user", ["u1", ""])
def test_every_answer_is_of_the_user_alone(house: House, user: str, mode: str) -> None:
    others = [marker for name, marker in MARKERS.items() if name != user]
    for question in QUESTIONS:
        body: Json = {"query": question, "user": user, "mode": mode, "max_tokens": 4}
        told = [
            house.send("read", "POST", "/memory/ask", json=body),
            house.send("read", "POST", "/memory/ask", json={**body, "stream": True}),
            house.send("read", "POST", "/memory/search", json=body),
            house.send("write", "POST", "/memory/turn", json={**body, "messages": talk("Hm."), "session": "new"}),
            house.send("read", "GET", "/memory", params={"user": user, "limit": 100}),
        ]
        for answer in told:
            assert answer.status_code == 200 and not any(marker in answer.text for marker in others)
        assert {hit["user"] or "" for hit in told[2].json()["hits"]} == {user}


def test_ids_of_others_are_not_there(house: House) -> None:
    foreign = house.ids["u2"][0]
    for key, user in (("write", "u1"), ("write", ""), ("other", "u2"), ("other", "*")):
        named = {"user": user}
        answers = [
            house.send(key, "GET", f"/memory/{foreign}", params=named),
            house.send(key, "DELETE", f"/memory/{foreign}", params=named),
            house.send(key, "PATCH", f"/memory/{foreign}", json={"text": "No.", **named}),
            house.send(key, "POST", "/memory/forget", json={"ids": [*house.ids["u1"][:1], foreign], **named}),
            house.send(key, "POST", "/memory/forget", json={"ids": [foreign], "dry_run": True, **named}),
        ]
        assert [answer.status_code for answer in answers] == [404] * 5
        assert {answer.json()["error"]["code"] for answer in answers} == {"memory_not_found"}
    shown = house.send("read", "GET", f"/memory/{foreign}", params={"user": "u2"}).json()
    assert "BERYL" in shown["text"] and house.ids["u1"][0] in [
        each["id"] for each in house.send("read", "GET", "/memory", params={"user": "u1"}).json()["sentences"]
    ]


def test_another_tenant_has_nothing(house: House) -> None:
    assert house.send("other", "GET", "/memory", params={"user": "*"}).json()["sentences"] == []
    assert (
        house.send("other", "POST", "/memory/search", json={"query": "Delta Gate", "user": "u1"}).json()["hits"] == []
    )
    assert house.send("other", "GET", "/stats").json()["sentences"] == 0
    answer = house.send("other", "POST", "/memory/forget", json={"session": "default", "user": "u1"})
    assert answer.status_code == 404


def test_everybody_is_for_admins(house: House) -> None:
    search = {"query": "code of Delta Gate", "user": "*", "k": 100}
    assert house.send("write", "POST", "/memory/search", json=search).status_code == 403
    found = house.send("admin", "POST", "/memory/search", json=search).json()["hits"]
    assert {hit["user"] for hit in found} == {"u1", "u2", None}
    listed = house.send("admin", "GET", "/memory", params={"user": "*", "limit": 100}).json()["sentences"]
    assert {each["user"] for each in listed} == {"u1", "u2", None}
    counted = house.send("admin", "POST", "/memory/forget", json={"everything": True, "user": "*", "dry_run": True})
    assert counted.json()["counts"]["sentences"] == house.send("read", "GET", "/stats").json()["sentences"]
    for body in ({"messages": talk("x"), "user": "*"}, {"messages": talk("x"), "user": "*", "session": "a"}):
        assert house.send("admin", "POST", "/memory/turn", json=body).status_code == 400
    assert house.send("admin", "GET", f"/memory/{house.ids['u2'][0]}", params={"user": "*"}).status_code == 200


def test_scopes_of_keys(house: House) -> None:
    turn = {"messages": talk("x")}
    assert house.send("read", "POST", "/memory/turn", json=turn).status_code == 403
    assert house.send("read", "DELETE", "/memory/0").status_code == 403
    assert house.send("read", "PATCH", "/memory/0", json={"text": "x"}).status_code == 403
    assert house.send("read", "POST", "/memory/forget", json={"session": "default"}).status_code == 403
    everything = {"everything": True, "dry_run": True}
    assert house.send("write", "POST", "/memory/forget", json=everything).json()["error"]["code"] == "scope"


def test_a_proxy_says_for_whom_it_asks(house: House) -> None:
    search = {"query": "code of Delta Gate", "user": "u2"}
    named = {"X-OpenWebUI-User-Id": "u1"}
    own = house.send("proxy", "POST", "/memory/search", json=search, headers=named).json()["hits"]
    assert own and {hit["user"] for hit in own} == {"u1"}
    believed = house.send("write", "POST", "/memory/search", json=search, headers=named).json()["hits"]
    assert {hit["user"] for hit in believed} == {"u2"}


def test_a_proxy_asks_for_one_user(house: House) -> None:
    answer = house.send("proxy", "POST", "/memory/search", json={"query": "gate"}, headers={"X-OpenWebUI-User-Id": "*"})
    assert answer.status_code == 400 and "one user" in answer.json()["error"]["message"]


def test_what_is_sealed_is_left_out_or_told_in_a_line(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    keys, settings = tmp_path / "keys", Settings(block_tokens=64, window_tokens=1024)
    sealed = Settings(block_tokens=64, window_tokens=1024, key_folder=str(keys))
    (tmp_path / "stores").mkdir()
    with Memory.open(tmp_path / "stores" / "default", model=tiny_model(), settings=sealed) as memory:
        memory.ingest("a", text=b"The code of Delta Gate is SEALED-1.", session="vault", encrypt=True)
        memory.ingest("b", text=b"The code of Delta Gate is OPEN-2.", session="plain")
    for path in keys.iterdir():
        path.unlink()
    with serving(tmp_path / "stores", settings=settings) as served:
        client = served.client
        found = client.post("/v1/memory/search", json={"query": "code of Delta Gate"}).json()["hits"]
        assert [hit["text"] for hit in found] == ["The code of Delta Gate is OPEN-2."]
        assert [each["session"] for each in client.get("/v1/memory").json()["sentences"]] == ["plain"]
        answers = [
            client.post("/v1/memory/ask", json={"query": "code of Delta Gate", "session": "vault"}),
            client.post("/v1/memory/search", json={"query": "code of Delta Gate", "session": "vault"}),
            client.post("/v1/memory/turn", json={"messages": talk("x"), "session": "vault"}),
            client.get("/v1/memory", params={"session": "vault"}),
            client.get("/v1/memory/0"),
            client.delete("/v1/memory/0"),
        ]
        assert {(answer.status_code, answer.json()["error"]["code"]) for answer in answers} == {(409, "key_missing")}
        assert client.post("/v1/memory/turn", json={"messages": talk("Hello.")}).status_code == 200
        counted = client.post("/v1/memory/forget", json={"session": "vault", "dry_run": True}).json()
        receipt = client.post("/v1/memory/forget", json={"session": "vault"}).json()["receipt"]
        assert receipt["counts"] == counted["counts"] and receipt["keys_left"]
