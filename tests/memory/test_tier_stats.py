"""What `stats` says of an open memory's tiers, over 10,000 requests, beside what the kernel counts."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from livingkv import Memory, Settings
from livingkv.codec import page_bytes
from livingkv.tiers import budget_for
from tests.tiers.budget_reader import anonymous_bytes
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow

N_REQUESTS = 10_000
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(700)).encode()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_stats_tell_of_ten_thousand_requests(tmp_path: Path) -> None:
    model, rng = tiny_model(), random.Random(2)
    with Memory.open(tmp_path / "s", model=model, settings=Settings(codec="lossless")) as memory:
        memory.ingest("doors", text=TEXT)
        page = page_bytes("lossless", memory._home.engine().shape)
        n_pages = memory.session("default").n_tokens // 64
        tiers = memory.stats().tiers
        assert tiers is not None and tiers.n_hits + tiers.n_misses == 0, "nothing was read through them yet"
    cap = budget_for(n_pages // 4, page)
    with Memory.open(tmp_path / "s", model=model, settings=Settings(ram_budget_bytes=cap), read_only=True) as memory:
        session_id, pages = memory.session("default").session_id, memory._home.pages()
        grown: list[int] = []
        before = anonymous_bytes()
        for number in range(N_REQUESTS):
            with pages.lease(session_id, [rng.randrange(n_pages)]):
                pass
            if number % 100 == 99:
                grown.append(anonymous_bytes() - before)
                tiers = memory.stats().tiers
                assert tiers is not None and tiers.ram_bytes <= tiers.ram_budget_bytes == cap
        tiers = memory.stats().tiers
        assert tiers is not None
        assert tiers.n_hits + tiers.n_misses == N_REQUESTS == number + 1
        assert tiers.disk_pages == tiers.n_misses == tiers.n_evicted + tiers.n_pages > 0.6 * N_REQUESTS
        assert tiers.disk_bytes >= tiers.disk_pages * page and tiers.disk_seconds > 0
    assert max(grown) <= cap * 1.02 + (1 << 20), "the rest is what this test and the catalog's pages take"
    slope = np.polyfit(np.arange(50) * 100, grown[50:], 1)[0]
    assert abs(slope) < 20, "bytes a request"
