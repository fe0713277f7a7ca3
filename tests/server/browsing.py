"""A Chromium of the system at the web page, for tests and for pictures: found, started, watched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Locator, Page, ViewportSize, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SMALL: ViewportSize = {"width": 360, "height": 740}
WIDE: ViewportSize = {"width": 1100, "height": 800}
_VIOLATIONS = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`);
});
"""
_FOCUSED = "document.activeElement?.outerHTML.slice(0, 200)"


def chromium_path() -> str | None:
    """Where a Chromium is: LIVINGKV_CHROMIUM, or what is on PATH; None for none."""
    named = os.environ.get("LIVINGKV_CHROMIUM")
    return named or next((found for found in map(shutil.which, NAMES) if found), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser, until the block ends."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Watched:
    """A tab of a browser, and what went wrong in it."""

    context: BrowserContext
    page: Page
    url: str
    user: str
    wrong: list[str] = field(default_factory=list)

    def open(self, path: str, **query: str) -> Page:
        """Go to a page for this user."""
        self.settle()
        joined = "&".join(f"{name}={value}" for name, value in {"user": self.user, **query}.items() if value)
        self.page.goto(f"{self.url}{path}?{joined}")
        return self.page

    def settle(self) -> None:
        """Note what the policy forbade on the page that is open."""
        if self.page.url.startswith("http"):
            self.wrong += self.page.evaluate("window.violations.splice(0)")

    def tab_to(self, wanted: Locator, most: int = 120) -> None:
        """Reach a control with the Tab key alone."""
        for _ in range(most):
            self.page.keyboard.press("Tab")
            if wanted.evaluate("e => e === document.activeElement"):
                return
        raise AssertionError(f"the Tab key does not reach {wanted}; it stands on {self.page.evaluate(_FOCUSED)!r}")

    def overflow(self) -> int:
        """By how many pixels the page is wider than its window."""
        found: int = self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        return found


@contextmanager
def watched(browser: Browser, url: str, user: str = "", **options: Any) -> Iterator[Watched]:
    """A new tab of a new visit. Whatever the console, the page or the policy complains of is in `wrong`."""
    context = browser.new_context(viewport=options.pop("viewport", WIDE), accept_downloads=True, **options)
    context.set_default_timeout(10_000)
    context.add_init_script(_VIOLATIONS)
    page = context.new_page()
    tab = Watched(context, page, url, user)

    def told(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            tab.wrong.append(f"console: {message.text}")

    page.on("console", told)
    page.on("pageerror", lambda error: tab.wrong.append(f"error: {error}"))
    try:
        yield tab
        if options.get("java_script_enabled", True):
            tab.settle()
    finally:
        context.close()
