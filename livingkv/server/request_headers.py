"""Headers of requests: given once, and names in them as percent-encoded UTF-8.

Knows headers; knows no route and no store. Of two headers of one name a server, a proxy and a log may each believe
another one, so that none is believed.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from starlette.datastructures import Headers

from livingkv.errors import InputError
from livingkv.server.api_errors import ApiError

SESSION_HEADER = "x-session-id"
USER_HEADER, CHAT_HEADER = "x-openwebui-user-id", "x-openwebui-chat-id"
_ONCE = (
    *("authorization", "content-length", "content-type", "host", "idempotency-key", "origin", "transfer-encoding"),
    *(SESSION_HEADER, USER_HEADER, CHAT_HEADER),
)
_PLAIN = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")
_NO_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


def check_headers(headers: Headers) -> None:
    """Raise ApiError where a header that decides something is there twice, or names nobody."""
    for name in _ONCE:
        if len(headers.getlist(name)) > 1:
            raise ApiError(
                400, f"the header {name} is there twice: once is allowed", param=name, code="header_repeated"
            )
    if "content-length" in headers and "transfer-encoding" in headers:
        raise ApiError(
            400, "content-length and transfer-encoding are both there: one is allowed", param="content-length"
        )
    if USER_HEADER in headers and not headers[USER_HEADER].strip():
        raise ApiError(400, f"the header {USER_HEADER} is empty: leave it out, or name a user", param=USER_HEADER)


def name_in(headers: Headers, header: str) -> str | None:
    """The name that a header gives; None where it is not there. Raises InputError for what is not percent-encoded
    UTF-8: a % always begins an escape."""
    value = headers.get(header)
    if value is None:
        return None
    allowed = "a name in percent-encoded UTF-8 is allowed (%25 for %)"
    if not value.isascii() or _NO_ESCAPE.search(value):
        raise InputError(header, repr(value), allowed)
    try:
        return unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise InputError(header, repr(value), allowed) from error


def shown_name(name: str) -> str:
    """A name as a header's value, which `name_in` reads: printable ASCII stands as it is, but for % and for spaces at
    both ends."""
    inner = quote(name.strip(" "), safe=_PLAIN)
    before, after = len(name) - len(name.lstrip(" ")), len(name) - len(name.rstrip(" "))
    return "%20" * before + inner + "%20" * (after if inner else 0)
