"""/metrics agrees with what requests did, names no user and no session, and is there while the model is at work."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from livingkv import __version__
from livingkv.errors import RecordDamaged
from livingkv.memory import Memory
from livingkv.server import census
from livingkv.store import Store
from tests.docs.pages import read, table
from tests.server.serving import CHAT, Served, cached, said, scripted, serving, slowly, talk, wait_until

LONG = "Word after word is read. " * 40
Labels = tuple[tuple[str, str], ...]


@pytest.fixture(scope="module", name="own")
def start_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service whose holdings are counted at every scrape, and which nobody else uses."""
    with pytest.MonkeyPatch.context() as patch, serving(tmp_path_factory.mktemp("own") / "stores") as served:
        patch.setattr(census, "LEAST_S", 0.0)
        patch.setattr(census, "_SHARE", 0.0)
        yield served


def scraped(served: Served) -> dict[tuple[str, Labels], float]:
    """Every sample: name and labels to its value."""
    answer = served.client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(served: Served, name: str, **labels: str) -> float:
    """One sample's value; 0 while there is none."""
    return scraped(served).get((f"livingkv_{name}", tuple(sorted(labels.items()))), 0.0)


def test_tokens_turns_and_times_are_those_of_the_requests(own: Served) -> None:
    names = ("prefilled_tokens_total", "cached_tokens_total", "generated_tokens_total", "turns_total")
    times = ("first_token_seconds_count", "restore_seconds_count", "hot_windows_reused_total")
    before = {name: value(own, name) for name in (*names, *times)}
    first = own.chat("Hello there", session="anna")
    second = own.chat("Hello there", said(first), "And now?", session="anna")
    after = {name: value(own, name) for name in (*names, *times)}
    change = {name: after[name] - before[name] for name in after}
    usage = [answer["usage"] for answer in (first, second)]
    assert change["turns_total"] == change["first_token_seconds_count"] == 2
    assert change["cached_tokens_total"] == cached(second) > 0
    assert change["prefilled_tokens_total"] == sum(each["prompt_tokens"] for each in usage) - cached(second)
    assert change["generated_tokens_total"] == sum(each["completion_tokens"] for each in usage)
    assert change["hot_windows_reused_total"] == 1 and change["restore_seconds_count"] == 0


def test_requests_are_counted_by_route_and_status(own: Served) -> None:
    def count(**labels: str) -> float:
        return value(own, "requests_total", **labels)

    good = {"method": "POST", "route": CHAT, "status": "200"}
    bad = {"method": "POST", "route": CHAT, "status": "400"}
    before = count(**good), count(**bad), value(own, "request_seconds_count", route=CHAT)
    own.chat("Hello")
    own.post({"messages": []})
    own.client.get("/v1/models/XANTHIC")
    own.client.get("/no/such/XANTHIC")
    own.client.request("XANTHIC", "/health")
    after = count(**good), count(**bad), value(own, "request_seconds_count", route=CHAT)
    assert after == (before[0] + 1, before[1] + 1, before[2] + 2)
    assert count(method="GET", route="(no route)", status="404") == 1
    assert count(method="other", route="/health", status="405") == 1
    assert "XANTHIC" not in own.client.get("/metrics").text


def test_users_and_sessions_are_in_no_label(own: Served) -> None:
    own.chat("Hello there", session="XANTHIC-session", user="XANTHIC-user")
    assert "XANTHIC" not in own.client.get("/metrics").text
    labels = {name for _, pairs in scraped(own) for name, _ in pairs}
    assert labels == {"kind", "le", "method", "part", "python", "route", "status", "tenant", "tier", "version"}


def test_what_is_refused_is_counted(tmp_path: Path) -> None:
    with serving(tmp_path / "stores", max_body_bytes=1024, requests_per_minute=5, max_sessions=1) as served:
        assert served.post({"messages": talk(LONG * 2)}).status_code == 413
        assert [served.post({"messages": talk(text)}).status_code for text in ("One.", "Two.")] == [200, 507]
        statuses = [served.client.get("/v1/models").status_code for _ in range(3)]
        refused = {status: served.service.counters.refused.labels(status) for status in ("413", "429", "507")}
        counts = {status: counter._value.get() for status, counter in refused.items()}
        assert counts == {"413": 1, "429": statuses.count(429), "507": 1} and statuses[-1] == 429


def test_what_is_stored_is_what_the_store_says(own: Served) -> None:
    first = own.chat("My boat is called Thistle. " * 20, session="boat")
    own.chat("My boat is called Thistle. " * 20, said(first), "More.", session="boat")
    found = scraped(own)
    with Memory.open(own.folder / "default", read_only=True) as memory:
        stats = memory.stats()
    tenant = ("tenant", "default")
    parts = {dict(labels)["part"]: size for (name, labels), size in found.items() if name == "livingkv_store_bytes"}
    assert parts == stats.bytes_by_part
    assert found["livingkv_sessions", (tenant,)] == stats.n_sessions
    assert found["livingkv_stored_tokens", (tenant,)] == stats.n_tokens
    assert found["livingkv_index_sentences", (tenant,)] == stats.n_sentences > 0
    assert found["livingkv_store_held_bytes", (tenant,)] == stats.held_bytes
    assert found["livingkv_tier_bytes", (tenant, ("tier", "disk"))] == stats.bytes_by_part["pages"] > 0
    assert found["livingkv_tier_bytes", (tenant, ("tier", "device"))] > 0
    assert found["livingkv_tenants", ()] == found["livingkv_ready", ()] == 1
    assert found["livingkv_disk_free_bytes", ()] > 0 and found["process_resident_memory_bytes", ()] > 1e7
    assert any(name == "livingkv_build_info" and ("version", __version__) in labels for name, labels in found)


async def asked(served: Served, question: str) -> str:
    """The answer of the tenant's memory, in a mode that reads stored pages."""
    return await served.service.call("default", lambda tenant: tenant.memory.ask(question, mode="kv").answer)


def on_loop(served: Served, question: str) -> None:
    """Ask memory, from this thread."""
    asyncio.run(asked(served, question))


def test_probes_and_what_tiers_did_are_counted_and_never_go_back(own: Served) -> None:
    own.chat("My boat is called Thistle. It lies in Stromness. " * 20, session="tiers")
    before = value(own, "probe_seconds_count")
    on_loop(own, "What is the boat called?")
    assert value(own, "probe_seconds_count") == before + 1
    hits, misses = (value(own, f"tier_{name}_total", tenant="default") for name in ("hits", "misses"))
    assert misses > 0 and value(own, "tier_disk_pages_total", tenant="default") > 0
    assert value(own, "tier_bytes", tenant="default", tier="ram") > 0
    asyncio.run(own.service.call("default", lambda tenant: tenant.home.let_go(), alone=True))
    assert value(own, "tier_bytes", tenant="default", tier="ram") == 0
    assert value(own, "tier_bytes", tenant="default", tier="device") == 0
    assert value(own, "tier_misses_total", tenant="default") == misses
    on_loop(own, "What is the boat called?")
    assert value(own, "tier_misses_total", tenant="default") > misses
    assert value(own, "tier_hits_total", tenant="default") >= hits


def test_an_ingested_text_is_counted_once(own: Served) -> None:
    before = value(own, "ingested_tokens_total")
    body = {"text": "The harbour master keeps the key of the tower.\n" * 20, "source": "book", "session": "notes"}
    results = []
    for _ in range(2):
        job = own.client.post("/v1/memory/ingest", json=body).json()["job"]
        wait_until(lambda job=job: own.client.get(f"/v1/jobs/{job['id']}").json()["ended_s"] is not None)
        results.append(own.client.get(f"/v1/jobs/{job['id']}").json()["result"])
    assert value(own, "ingested_tokens_total") - before == results[0]["tokens"] > 0
    assert value(own, "background") == 0


def test_a_search_is_a_probe(own: Served) -> None:
    own.chat("My boat is called Thistle.", session="search")
    before = value(own, "probe_seconds_count")
    assert own.client.post("/v1/memory/search", json={"query": "Thistle"}).status_code == 200
    assert value(own, "probe_seconds_count") == before + 1


def test_labels_are_those_of_the_documentation(own: Served) -> None:
    page = table(read("docs/SERVE.md"), "metric")
    documented = {name: set(labels.replace("`", "").split()) for name, _, labels, _ in page}
    ends = re.compile(r"_(bucket|count|sum|created)$")
    for name, pairs in scraped(own):
        known = name if name in documented else ends.sub("", name)
        if not name.endswith("_created"):
            assert {label for label, _ in pairs} - {"le"} == documented[known], name


@pytest.mark.slow
def test_a_scrape_during_a_long_prefill_is_quick(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    own.chat("Hello there", session="quick")
    sessions = value(own, "sessions", tenant="default")
    slowly(monkeypatch, 0.5)
    asking = threading.Thread(target=own.chat, args=(LONG,), kwargs={"max_tokens": 1})
    asking.start()
    try:
        wait_until(lambda: own.count("running") == 1)
        took = []
        for _ in range(5):
            started = time.monotonic()
            assert value(own, "running") == 1 and value(own, "sessions", tenant="default") >= sessions
            took.append((time.monotonic() - started) / 2)
        assert median(took) < 0.2  # a step takes 0.5 s
    finally:
        monkeypatch.undo()
        asking.join()


def test_a_scrape_takes_no_place_in_the_queue_and_sessions_still_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "LEAST_S", 0.0)
    with serving(tmp_path / "stores", n_waiting=1, n_side_by_side=1, idle_s=0.3) as served:
        served.chat("Hello there")
        tenant = served.service._parts.tenants.open_one("default")  # type: ignore[union-attr]

        def is_gone() -> bool:
            served.client.get("/metrics")
            return not tenant.home._hot

        wait_until(is_gone)
        assert value(served, "waiting") == value(served, "running") == value(served, "background") == 0
        scripted(monkeypatch, "and so on " * 10)
        assert served.post({"messages": talk("Hello again")}).status_code == 200


def test_a_store_that_cannot_be_counted_keeps_its_last_counts(own: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    own.chat("Hello there", session="damaged")
    sessions = value(own, "sessions", tenant="default")

    def damaged(self: Store) -> None:
        raise RecordDamaged("a record")

    monkeypatch.setattr(Store, "stats", damaged)
    assert value(own, "sessions", tenant="default") == sessions > 0
    assert own.client.get("/ready").status_code == 200


@dataclass(frozen=True)
class Somebody:
    """A tenant of whom only the name matters."""

    name: str


def test_counting_gives_others_a_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "LEAST_S", 60.0)
    monkeypatch.setattr(census, "_STEP_S", -1.0)
    monkeypatch.setattr(census, "_holding", lambda tenant: census.Holding(None, None, len(tenant.name), 0))
    tenants: list[Any] = [Somebody("a"), Somebody("bb")]
    counting = census.Census(tmp_path, lambda: tenants)
    registry = CollectorRegistry()
    registry.register(counting)
    assert not counting.step()  # nobody asked
    assert counting.ask() and not counting.ask()
    assert counting.step() and registry.get_sample_value("livingkv_tenants") == 0
    assert not counting.step() and registry.get_sample_value("livingkv_tenants") == 2
    labels = {"tenant": "bb", "tier": "device"}
    assert registry.get_sample_value("livingkv_tier_bytes", labels) == 2
    assert not counting.ask()  # it is not long ago
    assert registry.get_sample_value("livingkv_disk_free_bytes") is not None


def test_a_folder_that_is_gone_has_no_free_bytes(tmp_path: Path) -> None:
    counting, registry = census.Census(tmp_path / "gone", tuple), CollectorRegistry()
    registry.register(counting)
    assert counting.ask() and not counting.step()
    assert registry.get_sample_value("livingkv_disk_free_bytes") is None
    assert registry.get_sample_value("livingkv_tenants") == 0
