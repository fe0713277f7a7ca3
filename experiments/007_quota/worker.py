"""What one process of the experiment does with one store; prints what it measured as JSON.

    python experiments/007_quota/worker.py fill STORE SEED BYTES [STOP_AT_SHARE]
    python experiments/007_quota/worker.py verify STORE SEED
    python experiments/007_quota/worker.py read STORE SEED

fill makes the store or goes on with it until BYTES of pages were written in all, and counts the disk after every
commit, while a thread reads. With STOP_AT_SHARE it kills itself once so much of the quota is in use.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import statistics
import sys
import threading
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.synthetic_store import (  # noqa: E402
    COMMIT_TOKENS,
    PAGE_BYTES,
    PAGE_TOKENS,
    SyntheticSession,
    create_store,
)
from livingkv.errors import PageDamaged  # noqa: E402
from livingkv.index import Entry, Index  # noqa: E402
from livingkv.store import SessionRow, Store  # noqa: E402
from livingkv.tiers import open_pages  # noqa: E402

QUOTA_BYTES = 10**9
PINNED_TOKENS = 4 * COMMIT_TOKENS
RAM_BYTES = 1 << 28
N_READS = 10_000


def du(folder: Path) -> int:
    """Bytes that the file system holds of a folder: independent of the store's own count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in (Path(path), *(Path(path) / name for name in names)):
            with contextlib.suppress(FileNotFoundError):
                total += name.lstat().st_blocks * 512
    return total


def own_bytes() -> int:
    """The process's own memory: RssAnon, and what of it was swapped out."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return sum(int(fields[name].split()[0]) * 1024 for name in ("RssAnon", "VmSwap"))


class Reader:
    """A thread that reads pages, text and sentences of the pinned session, and times each read."""

    def __init__(self, store: Store, pinned: SessionRow, seed: int) -> None:
        self._store, self._pinned, self._rng = store, pinned, random.Random(seed)
        self._stop = threading.Event()
        self.seconds: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        n_pages = self._pinned.n_sealed_tokens // PAGE_TOKENS
        with open_pages(self._store, page_bytes=PAGE_BYTES, ram_budget_bytes=1 << 25) as pages:
            while not self._stop.is_set():
                first = self._rng.randrange(n_pages - 16)
                byte = self._rng.randrange(self._pinned.n_bytes - 1000)
                started = perf_counter()
                for _ in pages.stream(self._pinned.session_id, range(first, first + 16)):
                    pass
                self._store.text(self._pinned.session_id, byte, byte + 1000)
                self._store.sentence(self._rng.randrange(self._pinned.n_sentences))
                self.seconds.append(perf_counter() - started)
                sleep(0.01)

    def finish(self) -> dict[str, Any]:
        """End it; how long its reads took."""
        self._stop.set()
        self._thread.join()
        if not self.seconds:
            return {"n": 0}
        ordered = sorted(self.seconds)
        return {
            "n": len(ordered),
            "median_s": statistics.median(ordered),
            "p99_s": ordered[int(len(ordered) * 0.99)],
            "worst_s": ordered[-1],
        }


def fill(path: Path, seed: int, n_bytes: int, stop_at_share: float | None) -> dict[str, Any]:
    """See the module."""
    if not path.exists():
        with create_store(path, disk_budget_bytes=QUOTA_BYTES) as store:
            pinned = SyntheticSession(store, seed, name="pinned")
            pinned.fill(PINNED_TOKENS)
            store.pin(store.session("pinned").session_id)
            store.create_session("main")
        Index.recreate(path / "index", None).close()
    counted_before_opening = du(path)
    with Store.open(path, mode="write") as store, Index.open(path / "index", None, "write") as index:
        stats, row = store.stats(), store.session("main")
        missing_before = len(store.missing_pages(row.session_id))
        result: dict[str, Any] = {
            "at_open": {
                "budget_bytes": stats.disk_budget_bytes,
                "reported_bytes": stats.held_bytes,
                "counted_bytes": counted_before_opening,
                "missing_pages": missing_before,
            }
        }
        session = SyntheticSession(store, seed + 1000, session_id=row.session_id)
        for _ in range(row.n_tokens // COMMIT_TOKENS):
            session.next(COMMIT_TOKENS)
        n_tokens, used, seconds = row.n_tokens, [], []
        reader = Reader(store, store.session("pinned"), seed)
        while n_tokens // PAGE_TOKENS * PAGE_BYTES < n_bytes:
            append = session.next(COMMIT_TOKENS)
            started = perf_counter()
            store.append(append)
            seconds.append(perf_counter() - started)
            n_tokens += COMMIT_TOKENS
            used.append(du(path))
            if len(used) == 1:
                result["pages_dropped_by_first_commit"] = len(store.missing_pages(row.session_id)) - missing_before
            while batch := store.sentences_after(index.high_water, 5000):
                index.add([Entry(s.sentence_id, s.session_id, s.text) for s in batch])
                index.commit(batch[-1].sentence_id)
            used.append(du(path))
            if stop_at_share is not None and used[-1] >= stop_at_share * QUOTA_BYTES:
                print(json.dumps({"n_commits": len(seconds), "used_bytes": used[-1]}), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
        result["reads_meanwhile"] = reader.finish()
        result["missing_pages"] = len(store.missing_pages(row.session_id))
        result["n_pages"] = n_tokens // PAGE_TOKENS
    result |= {
        "n_commits": len(seconds),
        "append_median_s": statistics.median(seconds) if seconds else None,
        "append_worst_s": max(seconds, default=None),
        "peak_used_bytes": max(used, default=du(path)),
        "used_bytes_after_each_commit_and_index": used,
    }
    return result


def verify(path: Path, seed: int) -> dict[str, Any]:
    """Every byte that must be there, compared with what was written; and what the index finds of dropped pages."""
    result: dict[str, Any] = {}
    with Store.open(path, mode="read") as store, Index.open(path / "index", None, "read") as index:
        index.load()
        for name, own_seed in (("pinned", seed), ("main", seed + 1000)):
            row = store.session(name)
            session = SyntheticSession(store, own_seed, session_id=row.session_id)
            missing = set(store.missing_pages(row.session_id))
            text, ids_right, n_right = hashlib.sha256(), True, 0
            for lo in range(0, row.n_tokens, COMMIT_TOKENS):
                append = session.next(COMMIT_TOKENS)
                text.update(append.text)
                ids = store.token_ids(row.session_id, lo, lo + COMMIT_TOKENS)
                ids_right = ids_right and bool(np.array_equal(ids, append.token_ids))
                pages = [n for n in range(lo // PAGE_TOKENS, lo // PAGE_TOKENS + len(append.pages)) if n not in missing]
                read = store.read_pages(row.session_id, pages)
                n_right += sum(data == append.pages[n - lo // PAGE_TOKENS] for n, data in zip(pages, read, strict=True))
            result[name] = {
                "n_pages": row.n_sealed_tokens // PAGE_TOKENS,
                "n_missing": len(missing),
                "n_right": n_right,
                "text_is_whole": hashlib.sha256(store.text(row.session_id)).digest() == text.digest(),
                "token_ids_are_whole": ids_right,
            }
        result["index"] = _probe(store, index, random.Random(seed))
        result["check_problems"] = list(store.check().problems)
    return result


def _probe(store: Store, index: Index, rng: random.Random, n_asked: int = 100) -> dict[str, int]:
    """Sentences whose KV was dropped, asked for by their own words: how often is the first hit such a text?"""
    row = store.session("main")
    missing = set(store.missing_pages(row.session_id))
    n_found = n_dropped = 0
    first = store.session("pinned").n_sentences
    for _ in range(n_asked):
        while True:
            sentence = store.sentence(first + rng.randrange(row.n_sentences))
            if sentence.token_lo // PAGE_TOKENS in missing and len(sentence.text) > 30:
                break
        hits = index.probe(sentence.text, limit=1, session_ids=None)
        n_found += bool(hits) and store.sentence(hits[0].sentence_id).text.strip() == sentence.text.strip()
        try:
            store.read_pages(row.session_id, [sentence.token_lo // PAGE_TOKENS])
        except PageDamaged:
            n_dropped += 1
    return {"asked": n_asked, "found_first": n_found, "without_kv": n_dropped}


def read(path: Path, seed: int) -> dict[str, Any]:
    """Random reads through a RAM tier of 256 MiB; the growth of this process's own memory, every 100 reads."""
    rng = random.Random(seed)
    with Store.open(path, mode="read") as store:
        row = store.session("main")
        missing = set(store.missing_pages(row.session_id))
        kept = [page for page in range(row.n_sealed_tokens // PAGE_TOKENS) if page not in missing]
        store.read_pages(row.session_id, kept[:1])
        before = own_bytes()
        grown: list[int] = []
        with open_pages(store, page_bytes=PAGE_BYTES, ram_budget_bytes=RAM_BYTES) as pages:
            for number in range(N_READS):
                at = rng.randrange(len(kept) - 3)
                with pages.lease(row.session_id, kept[at : at + rng.randint(1, 3)]):
                    pass
                if number % 100 == 99:
                    grown.append(own_bytes() - before)
            counts = pages.counts()
    half = len(grown) // 2
    slope = float(np.polyfit(np.arange(half) * 100, grown[half:], 1)[0])
    return {
        "cap_bytes": RAM_BYTES,
        "n_reads": N_READS,
        "n_evicted": counts.ram.n_evicted,
        "n_hits": counts.ram.n_hits,
        "n_misses": counts.ram.n_misses,
        "baseline_bytes": before,
        "peak_grown_bytes": max(grown),
        "peak_over_cap": max(grown) / RAM_BYTES,
        "slope_bytes_a_read_second_half": slope,
        "grown_bytes": grown,
    }


def main() -> None:
    """See the module."""
    role, path, seed = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    if role == "fill":
        result = fill(path, seed, int(sys.argv[4]), float(sys.argv[5]) if len(sys.argv) > 5 else None)
    else:
        result = {"verify": verify, "read": read}[role](path, seed)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
