"""The web page in a real Chromium: every function by mouse or by keyboard, light and dark, wide and narrow.

Nothing may be told on the console, and the policy may forbid nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

pytest.importorskip("playwright")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from livingkv.server.keys import make_key
from livingkv.settings import Settings
from tests.server.browsing import SMALL, WIDE, Watched, chromium, chromium_path, watched
from tests.server.serving import Served, serving, slowly, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        chromium_path() is None, reason="no chromium on PATH and no LIVINGKV_CHROMIUM: `make browser` installs one"
    ),
]

TEXT = (
    "The night train to Vienna leaves at 21:37 from platform nine.\n"
    "Anna keeps the key of the tower in a tin.\n"
    '<script>document.title = "owned"</script><img src=x onerror="document.title=\'owned\'">\n'
    "The lamp burns oil, and nobody knows why.\n"
)
PAGES = (
    "/",
    "/?q=train",
    "/page/ask",
    "/page/memories",
    "/page/sessions",
    "/page/session?name=notes",
    "/page/add",
    "/page/activity",
    "/page/status",
    "/page/keys",
)


@pytest.fixture(scope="module", name="browser")
def start_browser() -> Iterator[Browser]:
    """One browser for all of these."""
    with chromium() as browser:
        yield browser


def read(served: Served, **headers: str) -> None:
    """Have the service read the text, and wait until it has."""
    user = {"user": served.user} if served.user else {}
    body = {"text": TEXT, "source": "plan.txt", "session": "notes", **user}
    job = served.client.post("/v1/memory/ingest", json=body, headers=headers).json()["job"]["id"]
    at = f"/v1/jobs/{job}"
    wait_until(lambda: served.client.get(at, params=user, headers=headers).json()["state"] == "done")


@pytest.fixture(name="tab")
def open_tab(browser: Browser, served: Served) -> Iterator[Watched]:
    """A tab in which nothing may go wrong, and something to look at."""
    read(served)
    with watched(browser, served.url, served.user) as tab:
        yield tab
    assert tab.wrong == []


def searched(tab: Watched, query: str = "when does the night train leave") -> Page:
    """The page with what a search found."""
    page = tab.open("/")
    page.get_by_label("Search for").fill(query)
    page.get_by_role("button", name="Search").click()
    expect(page.locator("#results .card").first).to_be_visible()
    return page


def test_search_tells_why_and_deletes_in_place(tab: Watched) -> None:
    page = searched(tab)
    assert "q=when" in page.url
    kept = page.evaluate("JSON.stringify({...localStorage, ...sessionStorage})")
    assert "platform" not in kept, "no memory stays in the browser"
    card = page.locator(".card", has_text="21:37")
    card.get_by_text("Why recalled").click()
    for word in ("Words (lexical)", "Meaning (semantic)", "Fused", "of the question's words"):
        expect(card.get_by_text(word)).to_be_visible()
    card.get_by_role("button", name="Delete…").click()
    expect(page.get_by_text("Delete one sentence?")).to_be_visible()
    page.get_by_role("link", name="Keep", exact=True).click()
    expect(page.get_by_text("Delete one sentence?")).to_be_hidden()
    card.get_by_role("button", name="Delete…").click()
    page.get_by_role("button", name="Delete 1 sentence").click()
    expect(page.get_by_role("heading", name="Erased: one sentence")).to_be_visible()
    expect(card).to_have_count(0)
    expect(page.locator("#receipt")).to_be_focused()


def test_hostile_memories_run_nothing(tab: Watched) -> None:
    page = searched(tab, "owned")
    expect(page.get_by_text('<script>document.title = "owned"</script>').first).to_be_visible()
    tab.open("/page/memories")
    assert "owned" not in page.title() and page.locator("img[src=x]").count() == 0


def test_many_are_selected_and_deleted(tab: Watched) -> None:
    page = tab.open("/page/memories")
    page.get_by_label("Select all").check()
    expect(page.locator("#selected")).to_have_text("4 selected")
    page.get_by_label("Select sentence 2").uncheck()
    expect(page.locator("#selected")).to_have_text("3 selected")
    page.get_by_role("button", name="Delete selected…").click()
    expect(page.get_by_text("Delete 3 sentences?")).to_be_visible()
    page.get_by_role("button", name="Delete 3 sentences").click()
    expect(page.get_by_role("heading", name="Erased: 3 sentences")).to_be_visible()
    expect(page.locator(".card")).to_have_count(1)


def test_everything_of_a_search_can_be_done_from_the_keyboard(tab: Watched) -> None:
    page = tab.open("/page/sessions")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page = tab.open("/")
    expect(page.get_by_label("Search for")).to_be_focused()
    page.keyboard.type("where is the key of the tower")
    page.keyboard.press("Enter")
    card = page.locator(".card", has_text="in a tin")
    expect(card).to_be_visible()
    tab.tab_to(card.locator("summary"))
    page.keyboard.press("Enter")
    expect(card.get_by_text("Words (lexical)")).to_be_visible()
    outline = card.locator("summary").evaluate("e => getComputedStyle(e).outlineStyle")
    assert outline == "solid", "what has the focus is marked"
    tab.tab_to(card.get_by_role("button", name="Delete…"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Delete 1 sentence")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Erased: one sentence")).to_be_visible()
    expect(page.locator("#receipt")).to_be_focused()
    tab.tab_to(page.get_by_role("link", name="Sessions"), most=200)
    page.keyboard.press("Enter")
    tab.tab_to(page.get_by_role("link", name="notes"))
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="notes")).to_be_visible()


def test_a_sentence_is_looked_at_and_replaced(tab: Watched) -> None:
    page = searched(tab)
    page.get_by_role("link", name=re.compile("21:37")).click()
    expect(page.locator("mark")).to_contain_text("21:37")
    expect(page.locator(".passage")).to_contain_text("Anna keeps the key")
    page.get_by_label("Another text in its place").fill("The train leaves at 22:00.")
    page.get_by_role("button", name="Replace").click()
    expect(page.locator("mark")).to_have_text("The train leaves at 22:00.")


def test_a_session_is_restored_and_changed(tab: Watched) -> None:
    tab.open("/page/sessions")
    tab.page.get_by_role("link", name="notes").click()
    page = tab.page
    expect(page.locator("svg.timeline rect").first).to_be_visible()
    page.get_by_role("button", name="Restore to device memory").click()
    expect(page.get_by_role("heading", name="Restored")).to_be_visible()
    expect(page.get_by_text("Reused")).to_be_visible()
    expect(page.locator("#state")).to_have_text("in device memory")
    page.get_by_role("button", name="Check what is stored").click()
    expect(page.get_by_text("Pages checked")).to_be_visible()
    page.get_by_role("button", name="Pin", exact=True).click()
    expect(page.get_by_role("button", name="Unpin")).to_be_visible()
    page.get_by_label("Name of a copy").fill("twin")
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("heading", name="twin")).to_be_visible()
    page.get_by_label("Another name").fill("brother")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("heading", name="brother")).to_be_visible()
    page.get_by_role("button", name="Delete this session…").click()
    page.get_by_role("button", name=re.compile("Delete 4 sentences")).click()
    expect(page.get_by_role("heading", name="Erased: session “brother”")).to_be_visible()
    tab.open("/page/activity")
    expect(page.get_by_text("Forgotten session “brother”")).to_be_visible()


def test_a_session_is_exported_and_imported(tab: Watched, tmp_path: Path) -> None:
    page = tab.open("/page/session", name="notes")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export with KV").click()
    file = tmp_path / "notes.session"
    download.value.save_as(file)
    assert file.stat().st_size > len(TEXT)
    tab.open("/page/add")
    page.get_by_label("Exported file").set_input_files(file)
    page.get_by_label("Name, if not its own").fill("came back")
    page.get_by_role("button", name="Import").click()
    expect(page.get_by_role("heading", name="Imported")).to_be_visible()
    page.get_by_role("link", name="came back").click()
    expect(page.get_by_role("heading", name="came back")).to_be_visible()


def test_texts_and_files_are_read_as_jobs(tab: Watched, tmp_path: Path) -> None:
    page = tab.open("/page/add")
    texts, files = page.get_by_role("region", name="Text"), page.get_by_role("region", name="A file")
    texts.get_by_label("Session").fill("pasted")
    texts.get_by_label("Text", exact=True).fill("The bridge is closed on Sundays.")
    page.get_by_role("button", name="Read it").click()
    expect(page.locator("#job .badge")).to_have_text("done")
    page.get_by_role("link", name="Open the session").click()
    expect(page.get_by_role("heading", name="pasted")).to_be_visible()
    file = tmp_path / "tides <b>.txt"
    file.write_text("High water is at six.\n")
    tab.open("/page/add", session="tides")
    files.get_by_label("Plain text").set_input_files(file)
    page.get_by_role("button", name="Read the file").click()
    expect(page.locator("#job .badge")).to_have_text("done")
    expect(page.locator("#job")).to_contain_text("tides <b>.txt")


def test_a_job_shows_its_progress_and_is_cancelled(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(block_tokens=64, window_tokens=1024, commit_tokens=64)
    with (
        serving(tmp_path / "stores", settings=settings) as served,
        watched(browser, served.url) as tab,
    ):
        slowly(monkeypatch, 0.2)
        page = tab.open("/page/add")
        page.get_by_role("region", name="Text").get_by_label("Text", exact=True).fill(TEXT * 200)
        page.get_by_role("button", name="Read it").click()
        expect(page.locator("#job .badge")).to_have_text("running")
        expect(page.locator("#job progress[value]")).to_be_visible()
        expect(page.locator("#job progress")).not_to_have_attribute("value", "0")
        page.get_by_role("button", name="Cancel").click()
        expect(page.locator("#job .badge")).to_have_text("cancelled")
    assert tab.wrong == []


def test_answers_are_streamed_with_their_evidence(tab: Watched) -> None:
    page = tab.open("/page/ask")
    page.get_by_label("Question").fill("When does the night train to Vienna leave?")
    page.get_by_label("Mode").select_option("extract")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.get_by_role("heading", name="Evidence")).to_be_visible()
    expect(page.locator("#answer .answer")).to_contain_text("21:37")
    page.get_by_label("Mode").select_option("ground")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(page.locator("#answer .badge")).to_have_text("ground")
    expect(page.locator("#streamed")).to_have_attribute("aria-live", "polite")


def test_an_answer_is_stopped(tab: Watched, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tab.open("/page/ask")
    slowly(monkeypatch, 0.2)
    page.get_by_label("Question").fill("When does the night train to Vienna leave?")
    page.get_by_label("Mode").select_option("ground")
    page.get_by_label("Tokens at most").fill("500")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.get_by_role("button", name="Stop").click()
    expect(page.locator("#asking")).to_have_text("Stopped.")
    expect(page.get_by_role("button", name="Ask", exact=True)).to_be_enabled()
    wait_until(lambda: served.count("running") == 0, 5)  # the model is not asked for the rest


def test_the_plots_are_drawn(tab: Watched) -> None:
    page = tab.open("/page/session", name="notes")
    page.get_by_role("button", name="Restore to device memory").click()
    expect(page.get_by_role("heading", name="Restored")).to_be_visible()
    tab.open("/page/status")
    for name in ("bytes", "hits", "restores"):
        canvas = page.locator(f"#plot-{name} canvas")
        expect(canvas).to_be_visible()
        drawn = canvas.evaluate(
            "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v, n) => n % 4 === 3 && v)"
        )
        assert drawn, name
    expect(page.locator("#plot-bytes .u-legend")).to_contain_text("Device")


def test_light_and_dark_follow_the_system_and_the_switch(browser: Browser, served: Served) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    with watched(browser, served.url, served.user, color_scheme="dark") as tab:
        page = tab.open("/")
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Theme: system").click()
        assert page.evaluate(ground) != dark
        tab.open("/page/ask")
        assert page.evaluate(ground) != dark, "it is kept"
        page.get_by_role("button", name="Theme: light").click()
        assert page.evaluate(ground) == dark
    assert tab.wrong == []


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_accessible_and_fits_a_telephone(tab: Watched, path: str) -> None:
    at, _, query = path.partition("?")
    asked = dict([query.split("=")]) if query else {}
    schemes: tuple[Literal["light", "dark"], ...] = ("light", "dark")
    for scheme in schemes:
        tab.page.emulate_media(color_scheme=scheme)
        for size in (SMALL, WIDE):
            tab.page.set_viewport_size(size)
            tab.open(at, **asked)
            assert tab.overflow() <= 0, (path, size)
            closed = tab.page.locator("details:not([open]) > summary")
            while closed.count():
                closed.first.click()
            found = Axe().run(tab.page)
            assert found.violations_count == 0, found.generate_report()


def test_keys_in_the_browser(browser: Browser, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    admin = make_key(keys_file, "anna", "admin", ["admin"])
    with serving(tmp_path / "stores", keys_file=keys_file) as served, watched(browser, served.url) as tab:
        page = tab.open("/page/keys")
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        assert Axe().run(page).violations_count == 0
        page.get_by_label("Key").fill(admin)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="What is remembered")).to_be_visible()
        assert admin not in page.evaluate("document.cookie + JSON.stringify({...localStorage, ...sessionStorage})")
        tab.open("/page/keys")
        page.get_by_label("Name").fill("phone")
        page.get_by_label("read:").check()
        page.get_by_role("button", name="Add").click()
        made = page.locator("#new-key").inner_text()
        assert made.startswith("lkv_")
        tab.open("/page/keys")
        assert made not in page.content()
        page.get_by_role("row", name="phone").get_by_role("button", name="Revoke…").click()
        page.get_by_role("button", name="Revoke", exact=True).click()
        expect(page.get_by_role("row", name="phone")).to_have_count(0)
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert tab.wrong == []


def test_a_reader_sees_no_controls_that_change(browser: Browser, tmp_path: Path) -> None:
    keys_file = tmp_path / "keys.json"
    writer, reader = (make_key(keys_file, "anna", scope, [scope]) for scope in ("write", "read"))
    with serving(tmp_path / "stores", keys_file=keys_file) as served, watched(browser, served.url) as tab:
        read(served, Authorization=f"Bearer {writer}")
        page = tab.open("/page/login")
        page.get_by_label("Key").fill(reader)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="What is remembered")).to_be_visible()
        for path in ("/", "/page/memories", "/page/status", "/page/keys"):
            tab.open(path)
            assert page.get_by_role("button", name=re.compile("Delete|Replace|Restore|Add|Revoke")).count() == 0, path
            assert page.get_by_role("link", name="Add").count() == 0
        tab.open("/page/session", name="notes")
        expect(page.locator("svg.timeline rect").first).to_be_visible()
        assert page.get_by_role("button", name=re.compile("Delete|Pin|Fork|Restore")).count() == 0
    assert tab.wrong == []


def test_core_functions_work_without_scripts(browser: Browser, served: Served) -> None:
    read(served)
    with watched(browser, served.url, served.user, java_script_enabled=False) as tab:
        page = tab.page
        page.goto(f"{served.url}/?user={served.user}")
        page.get_by_label("Search for").fill("night train")
        page.get_by_role("button", name="Search").click()
        page.locator(".card", has_text="21:37").get_by_role("button", name="Delete…").click()
        page.get_by_role("button", name="Delete 1 sentence").click()
        expect(page.get_by_role("heading", name="Erased: one sentence")).to_be_visible()
        page.get_by_role("link", name="Ask", exact=True).click()
        page.get_by_label("Question").fill("Where is the key of the tower?")
        page.get_by_label("Mode").select_option("extract")
        page.get_by_role("button", name="Ask", exact=True).click()
        expect(page.locator("#answer .answer")).to_contain_text("in a tin")
