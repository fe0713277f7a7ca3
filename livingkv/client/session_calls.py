"""The calls about sessions and the store as a whole; contracts as in memory_calls.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from livingkv.client.answers import Counts, Page, Receipt, Restored, Saved, Session, Stats
from livingkv.client.call import Call, segment
from livingkv.client.memory_calls import counts_of, receipt_of
from livingkv.client.parsing import each, item, parsed


def create_session(
    name: str,
    *,
    kv: bool = True,
    encrypt: bool = False,
    user: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Make an empty session. kv: False keeps text and index only; encrypt: with a key of its own. Raises Conflict
    where the name is taken."""
    body = {"name": name, "kv": kv, "encrypt": encrypt}
    return _store("/v1/sessions", body, user, idempotency_key)


def sessions(*, limit: int = 50, user: str | None = None) -> Call[Page[Session]]:
    """All sessions: an iterator, which asks for `limit` at a time."""
    return Call("GET", "/v1/sessions", _session_page, query={"limit": limit}, user=user)


def _session_page(told: Any) -> Page[Session]:
    return Page(each(Session, told, "sessions"), told.get("next_cursor"))


def session(name: str, *, user: str | None = None) -> Call[Session]:
    """One session with its sources and timeline."""
    return Call("GET", _at(name), session_of, user=user)


def forget_session(name: str, *, user: str | None = None) -> Call[Receipt]:
    """Forget a session with everything in it. `would_forget_session` tells the counts before."""
    return Call("DELETE", _at(name), receipt_of, user=user)


def would_forget_session(name: str, *, user: str | None = None) -> Call[Counts]:
    """What `forget_session` would forget. Nothing is changed."""
    return Call("DELETE", _at(name), counts_of, query={"dry_run": True}, user=user)


def change_session(
    name: str, *, new_name: str | None = None, pinned: bool | None = None, user: str | None = None
) -> Call[Session]:
    """Give a session another name, pin it in device memory, or let it go from there."""
    body = {"name": new_name, "pinned": pinned}
    return Call("PATCH", _at(name), session_of, body=body, user=user)


def save(name: str, *, user: str | None = None) -> Call[Saved]:
    """Check what is stored of a session: everything that was acknowledged is durable already."""
    return Call("POST", f"{_at(name)}/save", lambda told: parsed(Saved, told), body={}, user=user)


def restore(name: str, *, user: str | None = None) -> Call[Restored]:
    """Bring a session's state into device memory; tells how much was reused, and how much computed again."""
    return Call("POST", f"{_at(name)}/restore", lambda told: parsed(Restored, told), body={}, user=user)


def fork(name: str, new_name: str, *, user: str | None = None, idempotency_key: str | None = None) -> Call[Session]:
    """Make a session that goes on from the same state under another name."""
    return _store(f"{_at(name)}/fork", {"name": new_name}, user, idempotency_key)


def export(name: str, *, kv: bool = True, decrypt: bool = False, user: str | None = None) -> Call[None]:
    """A session as a file that another store can import. kv: False leaves its KV out; decrypt needs an admin's key."""
    query = {"kv": kv, "decrypt": decrypt or None}
    return Call("GET", f"{_at(name)}/export", lambda _: None, query=query, user=user)


def import_file(
    path: str | Path,
    *,
    name: str | None = None,
    kv: bool = True,
    user: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Session]:
    """Make a session from a file that `export` wrote; the file is sent as it is read. name: another than the file's."""
    return Call(
        "POST",
        "/v1/import",
        session_of,
        query={"name": name, "kv": kv},
        user=user,
        upload=Path(path),
        stores=True,
        idempotency_key=idempotency_key,
    )


def stats() -> Call[Stats]:
    """What the tenant's store holds, by part."""
    return Call("GET", "/v1/stats", lambda told: parsed(Stats, {"everything": told}), has_user=False)


def version() -> Call[str]:
    """The service's version."""
    return Call("GET", "/version", lambda told: str(item(told, "version")), has_user=False)


def session_of(told: Any) -> Session:
    """The session in an answer."""
    return parsed(Session, told)


def _store(path: str, body: dict[str, Any], user: str | None, idempotency_key: str | None) -> Call[Session]:
    return Call("POST", path, session_of, body=body, user=user, stores=True, idempotency_key=idempotency_key)


def _at(name: str) -> str:
    return f"/v1/sessions/{segment(name)}"
