"""A disk that is slower than the model: recall reads the text again, and says so; a fast one is never given up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, sleep

import pytest

import livingkv.asking
import livingkv.auto_answer
from livingkv import Memory, Settings
from livingkv.auto import Way
from livingkv.codec import page_bytes
from livingkv.errors import RecordDamaged
from livingkv.passages import Judged
from livingkv.store.records import record_bytes
from livingkv.tiers import PageKey, RamTier, TieredPages, budget_for
from livingkv.tiers.bandwidth import Bandwidth
from livingkv.tiers.disk_tier import DiskTier
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # it sleeps

SETTINGS = Settings(window_tokens=256, block_tokens=64, commit_tokens=64, n_candidates=4)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(60)).encode()
MODEL = tiny_model()


class SlowTier:
    """A disk that takes `wait_s` more for each page."""

    name = "disk"

    def __init__(self, disk: DiskTier, wait_s: float) -> None:
        self._disk = disk
        self._wait_s = wait_s
        self._speed = Bandwidth()
        self.n_gets = 0

    def get(self, keys: Sequence[PageKey], rooms: Sequence[memoryview]) -> list[memoryview | RecordDamaged | None]:
        """See Tier."""
        started = perf_counter()
        sleep(self._wait_s * len(keys))
        answers = self._disk.get(keys, rooms)
        self._speed.add(sum(record_bytes(key.location.length) for key in keys), perf_counter() - started)
        self.n_gets += len(keys)
        return answers

    def estimate_seconds(self, keys: Sequence[PageKey]) -> float | None:
        """See Tier."""
        return self._speed.seconds_for(sum(record_bytes(key.location.length) for key in keys))

    def size_bytes(self) -> int:
        """See Tier."""
        return self._disk.size_bytes()


def through(memory: Memory, wait_s: float) -> SlowTier:
    """The memory's pages behind a slow disk and a RAM tier of four pages."""
    home = memory._home
    store, engine = home.store(), home.engine()
    size = page_bytes(engine.codec.name, engine.shape)
    tier = SlowTier(DiskTier(store.segments, store.disk), wait_s)
    home._pages = TieredPages(store.locate_pages, RamTier(budget_for(4, size), size), [tier])
    return tier


def stands_out(hits: Sequence[Judged], names: tuple[str, ...]) -> Iterator[Way]:
    """A tiny random model tells hits apart by chance: the first one is read."""
    yield Way("kv", tuple(hits[:1]), True, "one passage stands out: its stored KV is attended, nothing is read again")


@pytest.mark.parametrize("wait_s", [0.3, 0.0])
def test_pages_are_given_up_where_the_disk_is_slower_than_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait_s: float
) -> None:
    monkeypatch.setattr(livingkv.auto_answer, "ways", stands_out)
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT)
        tier = through(memory, wait_s)
        first = memory.ask("What is the code of door 17?", max_tokens=4)
        assert first.mode == "kv", "nothing was measured yet"
        n_gets = tier.n_gets
        second = memory.ask("What is the code of door 48?", max_tokens=4)
        n_read = tier.n_gets - n_gets
        asked_for = memory.ask("What is the code of door 31?", mode="kv", max_tokens=4)
    assert asked_for.mode == "kv" and asked_for.reason == "asked for"
    if not wait_s:
        assert second.mode == "kv"
        return
    assert second.mode == "ground" and second.prefilled_tokens > first.prefilled_tokens
    assert "read again: the pages would take about" in second.reason and "door 48" in second.evidence[0].text
    assert n_read <= 1, "of the second question no page but the sinks' was read"


def test_speed_is_known_once_text_was_read(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=tiny_model(), settings=SETTINGS) as memory:
        runner = memory._home.engine().runner
        assert runner.tokens_per_s is None
        started = perf_counter()
        memory.ingest("doors", text=TEXT)
        least = runner.n_prefilled / (perf_counter() - started)
        assert runner.tokens_per_s is not None and runner.tokens_per_s >= 0.9 * least
