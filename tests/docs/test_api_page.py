"""docs/API.md has every route of the service, and none that there is not."""

from __future__ import annotations

import re
from pathlib import Path

from livingkv.model_choice import ModelChoice
from livingkv.server.app import create_app
from livingkv.server.options import ServerOptions
from livingkv.server.service import Service
from tests.docs.pages import read

ROUTE = re.compile(r"(GET|POST|PATCH|DELETE) (/[\w/{}.]*)")


def without_names(path: str) -> str:
    """A path whose parts in braces may be called anything."""
    return re.sub(r"{\w+(:\w+)?}", "{}", path)


def test_the_routes_are_those_of_the_code(tmp_path: Path) -> None:
    app = create_app(Service(ServerOptions(tmp_path / "stores"), ModelChoice.of(None)))
    served = {
        (method.upper(), without_names(path))
        for path, methods in app.openapi()["paths"].items()
        for method in methods
        if not path.startswith(("/page", "/static"))
    }
    told = {(method, without_names(path)) for method, path in ROUTE.findall(read("docs/API.md"))}
    assert {
        each for each in served if each[1].startswith("/v1") or each[1] in ("/health", "/ready", "/metrics")
    } <= told
    assert {each for each in told if each[1] not in ("/", "/mcp")} <= served
