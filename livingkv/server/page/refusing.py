"""What the guard answers a browser whose request does not reach the page: too many, too large, from elsewhere.

Knows errors and the page's headers; needs no template, as nothing may be read of such a request.
"""

from __future__ import annotations

from html import escape

from starlette.datastructures import Headers
from starlette.responses import HTMLResponse

from livingkv.server.api_errors import ApiError
from livingkv.server.page.rendering import PAGE_HEADERS

_PAGE = (
    '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{status} · livingkv</title>'
    '<link rel="stylesheet" href="/static/page.css"></head><body><main><h1>That did not work</h1>{part}'
    '<p><a class="button" href="/">Back to the search</a></p></main></body></html>\n'
)


def refusal(error: ApiError, headers: Headers) -> HTMLResponse:
    """The error as a page, or as a part of one where a script asked."""
    part = f'<p class="problem" role="alert">{escape(str(error))}</p>'
    text = part if headers.get("hx-request") == "true" else _PAGE.format(status=error.status, part=part)
    return HTMLResponse(text, error.status, headers={**PAGE_HEADERS, **error.headers()})
