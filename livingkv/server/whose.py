"""For whom a request speaks: the user within the tenant, the session, and whether it is to be remembered at all.

Knows headers and body fields of clients; knows no store. Headers that name a user are believed from a proxy's key only.
"""

from __future__ import annotations

from typing import NamedTuple

from starlette.datastructures import Headers

from livingkv.errors import InputError
from livingkv.server.guard import Caller
from livingkv.server.request_headers import CHAT_HEADER, SESSION_HEADER, USER_HEADER, name_in
from livingkv.server.schemas import ChatBody
from livingkv.store import check_session_name

EVERYBODY = "*"
_SIDE_TASK = "### Task:"
_SIDE_SIGNS = ("<chat_history>", "### Guidelines:", "### Output:")


class Whose(NamedTuple):
    """The scope of a request. session: None to recognise the conversation by what was said."""

    user: str
    session: str | None
    is_kept: bool
    only_new: bool


def whose(body: ChatBody, headers: Headers, caller: Caller) -> Whose:
    """Read from body and headers. Raises InputError where they disagree or a name cannot be one."""
    memory = body.memory
    named = {
        "header X-Session-Id": name_in(headers, SESSION_HEADER),
        "session": body.session,
        "memory.session": memory.session if memory is not None else None,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if len(set(given.values())) > 1:
        raise InputError("session", " and ".join(given), "one session is allowed")
    user, session = body.user or "", next(iter(given.values()), None)
    if caller.forwards_users:
        forwarded = name_in(headers, USER_HEADER)
        user = user if forwarded is None else forwarded
        session = session if session is not None else name_in(headers, CHAT_HEADER)
    for field, value in (("user", user or None), ("session", session)):
        if value is not None:
            check_name(field, value)
    if session is not None:
        check_session_name(f"{user}/{session}")
    is_kept = body.store is not False and (memory is None or memory.keep) and not is_side_task(body)
    return Whose(user, session, is_kept, memory is not None and memory.history == "stored")


def is_side_task(body: ChatBody) -> bool:
    """True for what Open WebUI asks beside a conversation: a title, tags, follow-ups. It is not to be remembered."""
    said = body.messages[-1].plain()["content"]
    return len(body.messages) == 1 and said.startswith(_SIDE_TASK) and any(sign in said for sign in _SIDE_SIGNS)


def check_name(field: str, value: str) -> None:
    """Raise InputError unless it may name a user, or a session within a user's."""
    check_session_name(value)
    if field == "user" and value == EVERYBODY:
        raise InputError(field, repr(value), "one user is allowed here")
    if "/" in value:
        raise InputError(field, repr(value), "names without a slash are allowed")
