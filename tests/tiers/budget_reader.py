"""A process that reads random pages of a store within a RAM budget, and prints how its memory grew, as JSON.

python -m tests.tiers.budget_reader STORE PAGE_BYTES BUDGET_BYTES N_READS
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

from livingkv.store import Store
from livingkv.tiers import open_pages


def anonymous_bytes() -> int:
    """The process's own memory: RssAnon and what of it was swapped out."""
    lines = Path("/proc/self/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


def main() -> None:
    """See the module."""
    path, page_bytes, budget_bytes, n_reads = sys.argv[1], *map(int, sys.argv[2:])
    rng = random.Random(5)
    with Store.open(path, mode="read") as store:
        n_pages = store.session(1).n_sealed_tokens // store.fingerprint.page_tokens
        store.read_pages(1, [0])
        before = anonymous_bytes()
        grown: list[int] = []
        with open_pages(store, page_bytes=page_bytes, ram_budget_bytes=budget_bytes) as pages:
            for number in range(n_reads):
                first = rng.randrange(n_pages - 3)
                with pages.lease(1, range(first, first + rng.randint(1, 3))):
                    pass
                if number % 100 == 99:
                    grown.append(anonymous_bytes() - before)
            evicted = pages.counts().ram.n_evicted
    print(json.dumps({"grown_bytes": grown, "n_evicted": evicted, "left_bytes": anonymous_bytes() - before}))


if __name__ == "__main__":
    main()
