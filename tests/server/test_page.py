"""The web page as HTML over the socket: what it shows, what its forms do; memories are text and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx
import pytest

from tests.server.serving import Json, Served, wait_until
from tests.server.visiting import Html, Visitor, visiting

HOSTILE = (
    '<script>alert("owned")</script>',
    '"><img src=x onerror=alert(1)>',
    "' autofocus onfocus=alert(2) x='",
    "javascript:alert(3)",
    "{{ 7 * 7 }}",
    "</textarea></blockquote><script>alert(4)</script>",
    "<!-- -->",
    "&lt;b&gt;bold&lt;/b&gt;",
)
NAME = '"><script>alert(5)<&script>'
SOURCE = "<img src=x onerror=alert(6)>.txt"
FACT = "The night train to Vienna leaves at 21:37 from platform nine."


@pytest.fixture(name="visitor")
def visit(served: Served) -> Iterator[Visitor]:
    """At the page, for a user of its own."""
    with visiting(served) as visitor:
        yield visitor


def ingested(visitor: Visitor, text: str, session: str = "notes", source: str = "book") -> None:
    """Have a text read, and wait for it."""
    answer = visitor.post("/page/ingest", part=True, text=text, session=session, source=source)
    assert answer.status_code == 200, answer.text
    job = re.search(r'id="job-([\w-]+)"', answer.text)
    assert job is not None
    wait_until(lambda: "hx-trigger" not in visitor.get(f"/page/jobs/{job[1]}", part=True).text)
    assert ">done<" in visitor.get(f"/page/jobs/{job[1]}", part=True).text


def listed(visitor: Visitor, **filters: str) -> list[str]:
    """Ids of sentences in the list."""
    return re.findall(r'id="row-(\d+)"', visitor.get("/page/memories", **filters).text)


def search(visitor: Visitor, query: str, **filters: str) -> Html:
    """What a search finds."""
    return visitor.page("/", q=query, **filters)


def assert_harmless(page: Html) -> None:
    """Scripts are the page's own, nothing handles events in attributes, links go to the page."""
    for tag, attributes in page.tags:
        assert tag != "style" and not any(name.startswith("on") or name == "style" for name in attributes), attributes
        if tag == "script":
            assert attributes["src"].startswith("/static/")
        if tag in ("img", "link", "iframe", "object", "embed"):
            assert attributes.get("src", attributes.get("href", "")).startswith("/static/"), attributes
        for name in ("href", "action", "hx-get", "hx-post"):
            assert attributes.get(name, "/").startswith(("/", "#")) and attributes.get(name) != "//", attributes


def hostile(visitor: Visitor) -> list[str]:
    """Store what attacks whoever shows it; the ids of its sentences."""
    ingested(visitor, "\n".join(HOSTILE), session=NAME, source=SOURCE)
    return listed(visitor)


def test_hostile_memories_are_shown_as_text(visitor: Visitor) -> None:
    ids = hostile(visitor)
    memories = visitor.page("/page/memories")
    assert_harmless(memories)
    for text in HOSTILE:
        assert text in memories.text
    assert NAME in memories.text and SOURCE in memories.text
    for sentence in ids:
        page = visitor.page(f"/page/memory/{sentence}")
        assert_harmless(page)
        assert any(text in page.text for text in HOSTILE)


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_questions_are_text_too(visitor: Visitor, query: str) -> None:
    for path, asked in (("/", {"q": query}), ("/", {"q": query, "session": query}), ("/page/ask", {"q": query})):
        assert_harmless(Html(visitor.get(path, **asked).text))
    answer = visitor.post("/page/ask", q=query, mode="extract")
    assert_harmless(Html(answer.text))


def test_hostile_names_are_text_everywhere(visitor: Visitor) -> None:
    ids = hostile(visitor)
    pages = [
        visitor.get("/"),
        visitor.get("/page/sessions"),
        visitor.get("/page/session", name=NAME),
        visitor.get("/page/activity"),
        visitor.get("/page/add", session=NAME),
        visitor.post("/page/forget", session=NAME, source=SOURCE),
        visitor.post("/page/forget", ids=ids[0]),
        visitor.post("/page/ask", q="owned", mode="extract"),
        visitor.get("/page/session", name=NAME + "x"),
    ]
    for answer in pages:
        assert answer.status_code in (200, 404), answer.text
        assert_harmless(Html(answer.text))
    assert NAME in Html(pages[2].text).text


def test_every_link_of_the_page_leads_somewhere(visitor: Visitor) -> None:
    ingested(visitor, FACT + " Bring a coat.")
    seen, waiting = set[str](), [f"/?user={visitor.user}"]
    while waiting:
        path = waiting.pop()
        if path in seen or path.startswith(("/static/", "/page/export")):
            continue
        seen.add(path)
        answer = visitor.client.get(path)
        assert answer.status_code == 200, path
        page = Html(answer.text)
        assert_harmless(page)
        waiting += [link["href"] for link in page.all("a") if not link["href"].startswith("#")]
        assert all(f"user={visitor.user}" in path for path in waiting if urlsplit(path).path != "/"), waiting
    assert len(seen) > 8


def test_search_says_why(visitor: Visitor) -> None:
    ingested(visitor, FACT + "\nThe lamp burns oil.")
    page = search(visitor, "when does the night train leave")
    assert "night train to Vienna" in page.text and "Words (lexical)" in page.text
    for word in ("Score", "Rank", "Meaning (semantic)", "Fused", "of the question's words", "Found by", "tokens"):
        assert word in page.text, word
    assert visitor.get("/", q="night train", session="other").status_code == 404
    assert "Nothing that is stored" in search(visitor, "night train", role="assistant").text


def test_a_sentence_stands_among_its_neighbours(visitor: Visitor) -> None:
    ingested(visitor, "It was cold that winter.\n" + FACT + "\nNobody was on it.")
    _, sentence, _ = listed(visitor)
    page = visitor.page(f"/page/memory/{sentence}")
    for word in ("It was cold", "21:37", "Nobody was on it", "notes", "book", "document", "Weight", "Last recall"):
        assert word in page.text, word
    assert page.all("mark")


def test_deleting_counts_first_and_shows_the_receipt(visitor: Visitor) -> None:
    ingested(visitor, FACT + "\nThe lamp burns oil.")
    (sentence, other) = listed(visitor)
    asked = visitor.post("/page/forget", part=True, ids=sentence)
    assert "would erase 1 sentence," in re.sub(r"\s+", " ", Html(asked.text).text)
    assert listed(visitor) == [sentence, other], "it was counted only"
    done = visitor.post("/page/forget", part=True, ids=sentence, confirm="yes")
    told = Html(done.text).text
    assert "Erased: one sentence" in told and "Overwritten" in told and "Disk space freed" in told
    assert json.loads(done.headers["hx-trigger"]) == {"erased": {"ids": [sentence]}}
    assert listed(visitor) == [other] and "Vienna" not in search(visitor, "night train Vienna").text.replace(
        "night train Vienna", ""
    )
    activity = visitor.page("/page/activity")
    assert "Forgotten one sentence" in re.sub(r"\s+", " ", activity.text) and FACT not in activity.text


def test_many_are_deleted_at_once_and_without_a_script_too(visitor: Visitor) -> None:
    ingested(visitor, "One is here.\nTwo is here.\nThree is here.")
    ids = listed(visitor)
    asked = visitor.post("/page/forget", ids=ids[:2])
    page = Html(asked.text)
    assert [each["value"] for each in page.all("input", name="ids")] == ids[:2] and "2 sentences" in page.text
    done = visitor.post("/page/forget", ids=ids[:2], confirm="yes")
    assert "Erased: 2 sentences" in Html(done.text).text and listed(visitor) == ids[2:]
    assert visitor.post("/page/forget").status_code == 400


@pytest.mark.slow
def test_a_session_is_looked_at_and_changed(visitor: Visitor) -> None:
    ingested(visitor, FACT, session="trip", source="plan.txt")
    page = visitor.page("/page/session", name="trip")
    for word in ("Timeline", "plan.txt", "document", "1 part", "Restore"):
        assert word in page.text, word
    assert page.all("rect", class_="document")
    restored = visitor.post("/page/session", part=True, name="trip", verb="restore")
    assert "Restored" in restored.text and "Reused" in restored.text
    checked = visitor.post("/page/session", part=True, name="trip", verb="save")
    assert "Pages checked" in checked.text
    assert "name=twin" in visitor.post("/page/session", name="trip", verb="fork", new_name="twin").headers["location"]
    renamed = visitor.post("/page/session", name="twin", verb="rename", new_name="other trip")
    assert visitor.client.get(renamed.headers["location"]).status_code == 200
    visitor.post("/page/session", name="trip", verb="pin")
    assert "Unpin" in visitor.page("/page/session", name="trip").text
    assert visitor.post("/page/session", name="trip", verb="explode").status_code == 404
    assert visitor.get("/page/session", name="twin").status_code == 404
    gone = visitor.post("/page/forget", session="other trip", confirm="yes")
    assert "Erased: session “other trip”" in Html(gone.text).text
    assert "other trip" not in visitor.page("/page/sessions").text


def test_a_session_is_exported_and_imported(visitor: Visitor) -> None:
    ingested(visitor, FACT, session="trip")
    for kv in ("true", "false"):
        file = visitor.get("/page/export", name="trip", kv=kv)
        assert file.status_code == 200 and "attachment" in file.headers["content-disposition"]
        made = uploaded(visitor, "/page/import", file.content, "application/octet-stream", name=f"again-{kv}")
        assert made.status_code == 200 and "Imported" in made.text, made.text
        assert FACT in visitor.page("/page/memories", session=f"again-{kv}").text
    taken = uploaded(visitor, "/page/import", file.content, "application/octet-stream", name="trip")
    assert taken.status_code == 409 and 'role="alert"' in taken.text
    broken = uploaded(visitor, "/page/import", b"no session", "application/octet-stream", name="broken")
    assert broken.status_code == 400 and 'role="alert"' in broken.text


def uploaded(visitor: Visitor, path: str, body: bytes, kind: str, **query: str) -> httpx.Response:
    """A file, as the page's script sends it."""
    headers = {"Content-Type": kind, "HX-Request": "true", "X-CSRF-Token": visitor.token()}
    return visitor.client.post(path, content=body, headers=headers, params={"user": visitor.user, **query})


def test_a_file_is_read_as_a_job(visitor: Visitor) -> None:
    answer = uploaded(visitor, "/page/ingest/file", FACT.encode(), "text/plain", source="plan.txt", session="trip")
    assert answer.status_code == 200 and "plan.txt" in answer.text
    wait_until(lambda: FACT in Html(visitor.get("/page/memories", session="trip").text).text)
    assert "plan.txt" in visitor.page("/page/activity").text
    binary = uploaded(visitor, "/page/ingest/file", b"\x00\xff", "text/plain", source="x", session="trip")
    assert binary.status_code == 400 and 'role="alert"' in binary.text
    forged = visitor.client.post(
        "/page/ingest/file", content=b"x", params={"user": visitor.user}, headers={"Content-Type": "text/plain"}
    )
    assert forged.status_code == 403
    assert visitor.post("/page/ingest", text=" \n").status_code == 400


def test_asking_without_a_script(visitor: Visitor) -> None:
    ingested(visitor, FACT)
    page = Html(visitor.post("/page/ask", q="When does the night train leave?", mode="extract").text)
    for word in ("21:37", "Evidence", "extract", "confidence", "stored tokens attended"):
        assert word in page.text, word
    assert visitor.post("/page/ask", q="x", mode="guess").status_code == 400
    assert visitor.post("/page/ask", q="", mode="extract").status_code == 400
    for number in ("0", "-1", "1e3", "9" * 5000):
        assert visitor.post("/page/ask", q="x", mode="extract", max_tokens=number).status_code == 400
        assert visitor.get("/", q="x", k=number).status_code == 400


def test_asking_as_a_stream(visitor: Visitor) -> None:
    ingested(visitor, FACT)
    asked = {"q": "When does the night train leave?", "mode": "ground", "max_tokens": "4"}
    answer = visitor.post("/page/ask/stream", part=True, **asked)
    assert answer.headers["content-type"].startswith("text/event-stream")
    told = events(answer.text)
    assert [name for name, _ in told if name != "text"] == ["done"]
    assert "Evidence" in told[-1][1]["html"] and "21:37" in told[-1][1]["html"]
    unknown = visitor.post("/page/ask/stream", part=True, **asked, session="nowhere")
    assert unknown.status_code == 404 and 'role="alert"' in unknown.text


def events(stream: str) -> list[tuple[str, Json]]:
    """Names and data of a stream."""
    found = re.findall(r"^event: (\w+)\ndata: (.*)$", stream, re.MULTILINE)
    return [(name, json.loads(data)) for name, data in found]


def test_status_and_its_numbers(visitor: Visitor) -> None:
    ingested(visitor, FACT)
    page = visitor.page("/page/status")
    for word in ("Device", "RAM", "Disk", "Hits / misses", "Model", "tiny", "On disk", "Delete everything"):
        assert word in page.text, word
    visitor.post("/page/session", part=True, name="notes", verb="restore")
    numbers = visitor.get("/page/series").json()
    assert len(numbers["samples"]) == 6 and len({len(column) for column in numbers["samples"]}) == 1
    assert numbers["restores"][1][-1] > 0 and numbers["samples"][3][-1] > 0


def test_what_belongs_to_others_is_not_there(served: Served, visitor: Visitor) -> None:
    ingested(visitor, FACT, session="private")
    (sentence,) = listed(visitor)
    with visiting(served) as other:
        other.user = f"{served.user}-other"
        assert other.get(f"/page/memory/{sentence}").status_code == 404
        assert other.get("/page/session", name="private").status_code == 404
        assert other.get("/page/export", name="private").status_code == 404
        assert other.post("/page/forget", ids=sentence).status_code == 404
        assert other.post("/page/forget", session="private", confirm="yes").status_code == 404
        assert other.post(f"/page/memory/{sentence}", text="Mine now.").status_code == 404
        assert other.post("/page/session", name="private", verb="rename", new_name="mine").status_code == 404
        assert (
            FACT not in search(other, "night train Vienna").text and "private" not in other.page("/page/sessions").text
        )
    assert listed(visitor) == [sentence]


def test_a_sentence_is_replaced(visitor: Visitor) -> None:
    ingested(visitor, FACT)
    (sentence,) = listed(visitor)
    changed = visitor.post(f"/page/memory/{sentence}", text="The train leaves at 22:00.")
    assert changed.status_code == 303
    page = Html(visitor.client.get(changed.headers["location"]).text)
    assert "22:00" in page.text and "21:37" not in page.text
    assert visitor.get(f"/page/memory/{sentence}").status_code == 404


@pytest.mark.parametrize(
    "path", ["/page/nowhere", "/page/memory/x", "/page/memory/99999999999999999999", "/page/jobs/x"]
)
def test_what_is_not_there_is_a_page_that_says_so(visitor: Visitor, path: str) -> None:
    answer = visitor.get(path)
    assert answer.status_code == 404 and "<h1>Not found</h1>" in answer.text
    part = visitor.get(path, part=True)
    assert part.status_code == 404 and part.text.startswith('<p class="problem" role="alert">')
    assert visitor.get("/", k="0", q="x").status_code == 400
