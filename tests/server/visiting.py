"""A browser without scripts, for tests of the web page: cookies, forms with their token, HTML that is looked at."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

import httpx

from tests.server.serving import Served


class Html(HTMLParser):
    """A page: its tags with their attributes, and its text as a reader sees it."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        """The attributes of all tags of a name that have these."""
        named = {name.rstrip("_").replace("_", "-"): value for name, value in wanted.items()}
        return [found for name, found in self.tags if name == tag and named.items() <= found.items()]


@dataclass
class Visitor:
    """Somebody at the page. user: for whom, within the tenant."""

    client: httpx.Client
    user: str = ""
    answers: list[httpx.Response] = field(default_factory=list)

    def get(self, path: str, **query: Any) -> httpx.Response:
        """A page, or, with `part`, what a script would ask for."""
        headers = {"HX-Request": "true"} if query.pop("part", False) else {}
        asked = {**({"user": self.user} if self.user else {}), **query}
        answer = self.client.get(path, params=asked, headers=headers)
        self.answers.append(answer)
        return answer

    def page(self, path: str, **query: Any) -> Html:
        """A page that is there."""
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return Html(answer.text)

    def token(self) -> str:
        """What a form of this visit carries."""
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.get("/page/ask").text)
        assert found is not None
        return found[1]

    def post(self, path: str, **form: Any) -> httpx.Response:
        """Send a form as the page would, or, with `part`, as a script would."""
        part = form.pop("part", False)
        said = {**({"user": self.user} if self.user else {}), **form}
        if "csrf" not in said:
            said["csrf"] = self.token()
        headers = {"Origin": str(self.client.base_url).rstrip("/"), **({"HX-Request": "true"} if part else {})}
        answer = self.client.post(path, data=said, headers=headers)
        self.answers.append(answer)
        return answer

    def enter(self, key: str) -> httpx.Response:
        """Sign in."""
        found = re.search(r'name="csrf" value="([0-9a-f]+)"', self.get("/page/login").text)
        assert found is not None
        return self.post("/page/login", key=key, csrf=found[1])


@contextmanager
def visiting(served: Served) -> Iterator[Visitor]:
    """Somebody who has never been there."""
    with httpx.Client(base_url=served.client.base_url, timeout=30, follow_redirects=False) as client:
        yield Visitor(client, served.user)
