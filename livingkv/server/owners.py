"""Whose sessions a request is about: one user's within the tenant, nobody's, or, for an admin, everybody's.

Knows how stored names are made of user and session; knows no store.
"""

from __future__ import annotations

from dataclasses import dataclass

from starlette.datastructures import Headers

from livingkv.errors import InputError
from livingkv.server.guard import Caller
from livingkv.server.request_headers import USER_HEADER, name_in
from livingkv.server.whose import EVERYBODY, check_name
from livingkv.store import check_session_name


@dataclass(frozen=True, slots=True)
class Owner:
    """One user within a tenant; "" is nobody, None everybody."""

    user: str | None

    def stored(self, session: str) -> str:
        """The name of a session in the store. Raises InputError where it cannot be one, or is everybody's."""
        check_name("session", session)
        if self.user is None:
            raise InputError("user", repr(EVERYBODY), "one user is allowed here")
        name = f"{self.user}/{session}" if self.user else session
        check_session_name(name)
        return name

    def owns(self, stored: str) -> bool:
        """True for a stored name of theirs."""
        return self.user is None or user_of(stored) == self.user

    def is_one(self, user: str) -> bool:
        """True for what belongs to this user."""
        return self.user is None or self.user == user


def owner_of(headers: Headers, caller: Caller, user: str | None) -> Owner:
    """For whom a request asks. A proxy's header says it before body and query do. Raises InputError for a name that
    cannot be one, ApiError where it is everybody and the key is no admin's."""
    if caller.forwards_users:
        forwarded = name_in(headers, USER_HEADER)
        if forwarded == EVERYBODY:
            raise InputError(USER_HEADER, repr(EVERYBODY), "the name of one user is allowed")
        user = user if forwarded is None else forwarded
    if user == EVERYBODY:
        caller.require("admin")
        return Owner(None)
    if user:
        check_name("user", user)
    return Owner(user or "")


def user_of(stored: str) -> str:
    """The user that a stored name belongs to, "" for nobody."""
    return stored.rpartition("/")[0]


def session_of(stored: str) -> str:
    """The session's name within its user's."""
    return stored.rpartition("/")[2]
