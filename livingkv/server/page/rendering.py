"""Templates to HTML, and the headers of every page. Everything that is shown is escaped: memories are hostile text.

Knows templates, words for numbers and times; knows no route and no store.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, Response

PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'self'; base-uri 'none'; object-src 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Vary": "HX-Request, Cookie",
}
_STEPS = ("B", "KiB", "MiB", "GiB", "TiB")


class _Static(NamedTuple):
    body: bytes
    media_type: str
    digest: str


class Rendering:
    """The templates and static files of the wheel, read once."""

    def __init__(self) -> None:
        self._static = dict(_static_files(files(__package__) / "static", ""))
        self._templates = Environment(
            loader=PackageLoader(__package__),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.filters |= {"size": size, "whole": whole, "moment": moment, "score": score, "ms": milliseconds}
        self._templates.globals["static"] = self._static_address

    def html(self, template: str, status: int = 200, **values: Any) -> Response:
        """A page or a part of one."""
        text = self._templates.get_template(template).render(values)
        return HTMLResponse(text, status, headers=dict(PAGE_HEADERS))

    def text(self, template: str, **values: Any) -> str:
        """A part of a page, for a stream."""
        return self._templates.get_template(template).render(values)

    def static(self, name: str) -> Response | None:
        """A file of the page, None where there is none of this name."""
        found = self._static.get(name)
        if found is None:
            return None
        headers = {"Cache-Control": "public, max-age=86400", "X-Content-Type-Options": "nosniff"}
        return Response(found.body, media_type=found.media_type, headers=headers)

    def _static_address(self, name: str) -> str:
        return f"/static/{name}?v={self._static[name].digest}"


def _static_files(folder: Traversable, prefix: str) -> list[tuple[str, _Static]]:
    found = []
    for each in folder.iterdir():
        if each.is_dir():
            found += _static_files(each, f"{prefix}{each.name}/")
        else:
            body = each.read_bytes()
            kind = "text/javascript" if each.name.endswith(".js") else mimetypes.guess_type(each.name)[0]
            digest = hashlib.sha256(body).hexdigest()[:12]
            found.append((f"{prefix}{each.name}", _Static(body, kind or "text/plain", digest)))
    return found


def size(n_bytes: float | None) -> str:
    """Bytes in a unit that reads well."""
    if n_bytes is None:
        return "–"
    value, step = float(n_bytes), 0
    while value >= 1024 and step + 1 < len(_STEPS):
        value, step = value / 1024, step + 1
    return f"{value:.0f} {_STEPS[step]}" if step == 0 or value >= 100 else f"{value:.1f} {_STEPS[step]}"


def whole(number: float | None) -> str:
    """A count with its thousands set apart."""
    return "–" if number is None else f"{number:,.0f}"


def moment(seconds: float | None) -> str:
    """A time in UTC, to the minute."""
    return "never" if not seconds else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")


def score(value: float | None) -> str:
    """A score, or that there is none."""
    return "–" if value is None else f"{value:.3g}"


def milliseconds(value: float | None) -> str:
    """A duration."""
    if value is None:
        return "–"
    return f"{value:.1f} ms" if value < 100 else f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"
