"""The pictures of the web page in docs/screenshots: a service over the example notes, a Chromium that looks at it.

`python -m tests.server.screenshots [--model M]`. With the default tiny random model the pages are real and the answers
are not; name a model for pictures that are to be kept.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page

from livingkv.model_choice import ModelChoice
from livingkv.models import LoadedModel
from livingkv.settings import Settings
from tests.server.browsing import SMALL, Watched, chromium, watched
from tests.server.serving import Served, serving, wait_until

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "docs" / "screenshots"
QUESTION = "What is the code for the tool shed?"
TURNS = (
    ("Who fits the new sternpost?", "Tomasz does. He made the template of hardboard."),
    ("Remind me on the 20th that the rigging is to be paid.", "The invoice of Holm Rigging, by the 20th. I will."),
)
MOST_BYTES = 200_000


def main() -> None:
    """Make them anew."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--model", help="as for livingkv serve; left out, a tiny random one")
    model = asked.parse_args().model
    loaded = None if model is None else ModelChoice(model).load(None)
    FOLDER.mkdir(exist_ok=True)
    with notes_served(loaded) as served, chromium() as browser:
        for scheme in ("light", "dark"):
            for name, picture in pictures(browser, served.url, scheme):
                path = FOLDER / f"{name}-{scheme}.png"
                path.write_bytes(picture)
                assert len(picture) < MOST_BYTES, f"{path} has {len(picture)} bytes"
                print(f"{path.relative_to(ROOT)}: {len(picture)} bytes")


@contextmanager
def notes_served(model: LoadedModel | None) -> Iterator[Served]:
    """A service that has read a week of notes, and heard two turns."""
    settings = Settings() if model is not None else Settings(block_tokens=64, window_tokens=1024)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder) / "stores", model, settings=settings) as served:
        for note in sorted((ROOT / "examples" / "notes").glob("*.md")):
            body = {"text": note.read_text(), "source": note.name, "session": "logbook"}
            job = served.client.post("/v1/memory/ingest", json=body).json()["job"]["id"]
            wait_until(lambda job=job: served.client.get(f"/v1/jobs/{job}").json()["ended_s"] is not None, 300)
        for said, answer in TURNS:
            messages = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
            served.client.post("/v1/memory/turn", json={"session": "talk", "messages": messages, "k": 0})
        yield served


def pictures(browser: Browser, url: str, scheme: str) -> Iterator[tuple[str, bytes]]:
    """Names and pictures, as far as they fit the window."""
    with watched(browser, url, color_scheme=scheme) as tab:
        yield "search", _searched(tab).screenshot()
        tab.page.get_by_role("button", name="Delete…").first.click()
        tab.page.get_by_role("heading", name="Delete one sentence?").wait_for()
        yield "delete", tab.page.screenshot()
        tab.page.get_by_role("link", name="Keep", exact=True).click()
        tab.page.locator("blockquote a").first.click()
        yield "sentence", tab.page.screenshot()
        yield "session", _restored(tab).screenshot()
        yield "ask", _answered(tab).screenshot()
        tab.open("/page/status")
        time.sleep(9)
        yield "status", tab.page.screenshot()
        yield "add", tab.open("/page/add").screenshot()
    with watched(browser, url, color_scheme=scheme, viewport=SMALL) as tab:
        yield "telephone", _searched(tab).screenshot()
    assert tab.wrong == [], tab.wrong


def _searched(tab: Watched) -> Page:
    page = tab.open("/", q=QUESTION)
    page.locator(".why summary").first.click()
    return page


def _restored(tab: Watched) -> Page:
    page = tab.open("/page/session", name="logbook")
    page.get_by_role("button", name="Restore to device memory").click()
    page.get_by_role("heading", name="Restored").wait_for()
    return page


def _answered(tab: Watched) -> Page:
    page = tab.open("/page/ask")
    page.get_by_label("Question").fill(QUESTION)
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("heading", name="Evidence").wait_for(timeout=120_000)
    page.evaluate("scrollTo(0, 0)")
    return page


if __name__ == "__main__":
    main()
