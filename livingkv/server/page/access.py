"""Who looks at the page: a cookie with a random id, the key behind it, and the token that every form carries.

Knows the cookie and the keys; knows no page. A browser never holds a key: it is asked for once, and what the browser
gets is an id that means something in this process only. Without keys the page is open, and the id only guards forms.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.requests import cookie_parser

from livingkv.server.guard import Caller
from livingkv.server.keys import DEFAULT_TENANT, ApiKey, KeyRing
from livingkv.server.uploads import PAGE_LOGIN_PATH

COOKIE = "livingkv_page"
LOGIN = PAGE_LOGIN_PATH
STATIC = "/static/"
CSRF_FIELD, CSRF_HEADER = "csrf", "x-csrf-token"
_MOST_VISITS = 1000
_IDLE_S = 12 * 3600.0
_LONGEST_ID = 100


@dataclass(slots=True)
class _Entered:
    key: ApiKey
    seen_s: float


class PageAccess:
    """Visits of browsers. Used on the event loop only."""

    def __init__(self, keys: KeyRing | None, now: Callable[[], float] = time.monotonic) -> None:
        self._keys = keys
        self._now = now
        self._secret = secrets.token_bytes(32)
        self._entered: OrderedDict[str, _Entered] = OrderedDict()

    @property
    def needs_key(self) -> bool:
        """Whether there is a login at all."""
        return self._keys is not None

    def covers(self, path: str) -> bool:
        """True for the paths whose visitors come with a cookie, and not with a key."""
        return path == "/" or path.startswith(("/page/", STATIC))

    def is_open(self, path: str) -> bool:
        """True for what everybody may see: the login form, and what it looks like."""
        return path == LOGIN or path.startswith(STATIC)

    def caller(self, headers: Headers) -> Caller | None:
        """Who asks, None where a key is needed first. A key that was revoked meanwhile lets nobody in."""
        if self._keys is None:
            return Caller(DEFAULT_TENANT)
        visit_id, now = visit_id_of(headers), self._now()
        entered = self._entered.get(visit_id) if visit_id is not None else None
        if visit_id is None or entered is None:
            return None
        if now - entered.seen_s > _IDLE_S or self._keys.known(entered.key.key_id) != entered.key:
            del self._entered[visit_id]
            return None
        entered.seen_s = now
        self._entered.move_to_end(visit_id)
        return Caller(entered.key.tenant, entered.key)

    def enter(self, presented: str) -> str | None:
        """The id of a new visit with this key, None for a key that is unknown."""
        key = self._keys.find(presented.strip()) if self._keys is not None else None
        if key is None:
            return None
        visit_id = new_visit_id()
        self._entered[visit_id] = _Entered(key, self._now())
        while len(self._entered) > _MOST_VISITS:
            self._entered.popitem(last=False)
        return visit_id

    def leave(self, visit_id: str) -> None:
        """End a visit."""
        self._entered.pop(visit_id, None)

    def token(self, visit_id: str) -> str:
        """What every form of this visit carries; nobody else can make it."""
        return blake2b(visit_id.encode(), key=self._secret, digest_size=24).hexdigest()

    def is_token(self, visit_id: str, token: str) -> bool:
        """True for the token of this visit. Takes the same time for any other."""
        return compare_digest(self.token(visit_id).encode(), token.encode(errors="replace"))


def new_visit_id() -> str:
    """An id that cannot be guessed."""
    return secrets.token_urlsafe(32)


def visit_id_of(headers: Headers) -> str | None:
    """The id in the cookie, None without one."""
    found = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    return found if 0 < len(found) <= _LONGEST_ID else None
