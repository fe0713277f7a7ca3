"""Two tenants with two users each, who store facts about the same things: is anything of one ever told to another?

Every value is marked with its owner's mark, which no model makes up. Each owner asks about the same things in every way
that the service has, and for ids and sessions of the others. Knows the routes of docs/API.md.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from experiments.haystack import shuffled_keys
from experiments.service_process import ServiceProcess, service
from livingkv.server.keys import make_key

_CHAT, _TURN, _INGEST = "/v1/chat/completions", "/v1/memory/turn", "/v1/memory/ingest"
_SEARCH, _ASK, _LIST, _SESSIONS = "/v1/memory/search", "/v1/memory/ask", "/v1/memory", "/v1/sessions"
_N_FACTS = 40
_N_AT_ONCE = 8
_MOST_TOLD = 20
_JOB_S = 300.0
_MODES = ("extract", "kv", "ground", "auto")
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Owner:
    """A user of a tenant, and the mark of what is theirs."""

    tenant: str
    user: str
    mark: str
    key: str

    def value(self, number: int) -> str:
        """What only this owner knows."""
        return f"{self.mark}{number:03d}"


@dataclass(slots=True)
class Seen:
    """What the answers held."""

    n_asks: int
    statuses: Counter[str]
    own: Counter[str]
    foreign: list[str]


def owners_of(keys: Path) -> tuple[Owner, ...]:
    """Two tenants with a key each, two users each."""
    made = []
    for tenant in ("anna", "ben"):
        key = make_key(keys, tenant, "load", ["write"])
        made += [Owner(tenant, user, f"q{tenant}z{user}x", key) for user in ("one", "two")]
    return tuple(made)


def foreign_marks(folder: Path, model: str, n: int, seed: int) -> Json:
    """Serve the tenants' stores in `folder`, have all owners store and ask; what they saw of one another."""
    folder.mkdir(parents=True)
    owners, log = owners_of(folder / "keys.json"), folder / "service.log"
    keys = shuffled_keys(random.Random(f"facts {seed}"))[:_N_FACTS]
    seen = Seen(0, Counter(), Counter(), [])
    with service(folder / "stores", model, log, ["--keys", str(folder / "keys.json"), "--context", "100000"]) as served:
        asyncio.run(_stored_and_asked(served, owners, keys, n, seed, seen))
        served.stop()
    told = log.read_bytes()
    return {
        "owners": [f"{owner.tenant}/{owner.user}" for owner in owners],
        "n_asks": seen.n_asks,
        "statuses": dict(sorted(seen.statuses.items())),
        "own_mark_seen": {f"{owner.tenant}/{owner.user}": seen.own[owner.mark] for owner in owners},
        "n_foreign": len(seen.foreign),
        "foreign": seen.foreign[:_MOST_TOLD],
        "marks_in_the_log": sum(told.count(owner.mark.encode()) for owner in owners),
        "log_bytes": len(told),
        "marks_in_files_of_others": _in_files(folder / "stores", owners),
    }


def _in_files(stores: Path, owners: Sequence[Owner]) -> int:
    """Files of one tenant's store that hold a mark of the other's."""
    files = [path for path in stores.rglob("*") if path.is_file()]
    return sum(
        owner.tenant != path.relative_to(stores).parts[0] and owner.mark.encode() in path.read_bytes()
        for path in files
        for owner in owners
    )


async def _stored_and_asked(
    served: ServiceProcess, owners: Sequence[Owner], keys: Sequence[str], n: int, seed: int, seen: Seen
) -> None:
    async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:
        headers = {"Authorization": f"Bearer {owners[0].key}"}
        paths = frozenset((await client.get("/openapi.json", headers=headers)).raise_for_status().json()["paths"])
        for owner in owners:
            await _store(client, owner, keys, paths)
        asks = [_asking(owners, keys, paths, number, seed) for number in range(n)]
        waiting = iter(asks)

        async def one_after_the_other() -> None:
            for owner, method, path, body in waiting:
                answer = await _request(client, owner, method, path, body)
                _note(answer, owner, owners, f"{method} {path}", seen)

        await asyncio.gather(*(one_after_the_other() for _ in range(_N_AT_ONCE)))
    seen.n_asks = n


async def _store(client: httpx.AsyncClient, owner: Owner, keys: Sequence[str], paths: frozenset[str]) -> None:
    """Every fact by one of the ways to store."""
    facts = [f"The secret number of the {key} is {owner.value(number)}." for number, key in enumerate(keys)]
    ways: list[Callable[[str], tuple[str, Json]]] = [
        lambda fact: (_CHAT, {"messages": [{"role": "user", "content": fact}], "session": "talk", "max_tokens": 2})
    ]
    if _TURN in paths:
        ways.append(lambda fact: (_TURN, {"messages": [{"role": "user", "content": fact}], "session": "turns"}))
    if _INGEST in paths:
        ways.append(lambda fact: (_INGEST, {"text": fact, "source": fact.split()[5], "session": "notes"}))
    for number, fact in enumerate(facts):
        path, body = ways[number % len(ways)](fact)
        if path == _CHAT:
            body |= {"session": f"talk-{number}"}
        answer = await _request(client, owner, "POST", path, body | {"user": owner.user})
        answer.raise_for_status()
        if path == _INGEST:
            await _done(client, owner, answer.json()["job"]["id"])


async def _done(client: httpx.AsyncClient, owner: Owner, job: str) -> None:
    """Wait for a job."""
    state = "queued"
    async with asyncio.timeout(_JOB_S):
        while state in ("queued", "running"):
            await asyncio.sleep(0.05)
            told = await _request(client, owner, "GET", f"/v1/jobs/{job}?user={owner.user}", None)
            state = told.raise_for_status().json()["state"]
    if state != "done":
        raise RuntimeError(f"a job ended as {state}")


def _asking(
    owners: Sequence[Owner], keys: Sequence[str], paths: frozenset[str], number: int, seed: int
) -> tuple[Owner, str, str, Json | None]:
    """The request of this number."""
    choice = random.Random(f"{seed} {number}")
    owner, other = choice.choice(owners), choice.choice(owners)
    fact = choice.randrange(len(keys))
    question = f"What is the secret number of the {keys[fact]}?"
    if choice.random() < 0.2:
        question = f"What did {other.user} of {other.tenant} write? {question}"
    user: Json = {"user": owner.user}
    ways: list[tuple[str, str, Json | None]] = [
        ("POST", _CHAT, user | _message(question) | {"max_tokens": 8, "session": f"asked-{choice.randrange(9)}"}),
        ("POST", _CHAT, user | _message(question) | {"max_tokens": 8, "store": False}),
        ("POST", _CHAT, user | _message(question) | {"max_tokens": 8, "session": f"{other.user}/talk-0"}),
    ]
    if _SEARCH in paths:
        ways += [("POST", _SEARCH, user | {"query": question, "k": 20})] * 3
        ways += [("POST", _SEARCH, user | {"query": question, "session": f"talk-{fact}"})]
    if _ASK in paths:
        ways += [("POST", _ASK, user | {"query": question, "mode": mode, "max_tokens": 8}) for mode in _MODES]
        ways += [("POST", _ASK, user | {"query": question, "mode": "extract"})] * 2
    if _TURN in paths:
        ways += [("POST", _TURN, user | _message(question) | {"query": question, "session": "asked", "k": 10})]
    if _LIST in paths:
        ways += [("GET", f"{_LIST}?user={owner.user}&limit=200", None)]
        ways += [("GET", f"{_LIST}/{choice.randrange(300)}?user={owner.user}", None)] * 2
    if _SESSIONS in paths:
        name = choice.choice((f"talk-{fact}", f"{other.user}%2Ftalk-0", "notes", "turns"))
        ways += [
            ("GET", f"{_SESSIONS}?user={owner.user}", None),
            ("GET", f"{_SESSIONS}/{name}?user={owner.user}", None),
        ]
    return owner, *choice.choice(ways)


def _message(content: str) -> Json:
    return {"messages": [{"role": "user", "content": content}]}


async def _request(
    client: httpx.AsyncClient, owner: Owner, method: str, path: str, body: Json | None
) -> httpx.Response:
    """One request, again where the service asks to wait."""
    headers = {"Authorization": f"Bearer {owner.key}"}
    while True:
        answer = await client.request(method, path, json=body, headers=headers)
        if answer.status_code not in (429, 503):
            return answer
        await asyncio.sleep(0.5)


def _note(answer: httpx.Response, owner: Owner, owners: Sequence[Owner], what: str, seen: Seen) -> None:
    told = f"{dict(answer.headers)} {answer.text}"
    seen.statuses[f"{what.partition('?')[0].rstrip('0123456789')} {answer.status_code}"] += 1
    seen.own[owner.mark] += owner.mark in told
    for other in owners:
        if other is not owner and other.mark in told:
            seen.foreign.append(f"{owner.tenant}/{owner.user} saw {other.mark} in {what} {answer.status_code}")
