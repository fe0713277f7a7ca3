"""How fast the store opens, reads passages and takes pages, and what a token costs on disk.

    python experiments/006_store_speed/run.py [--pages 15625] [--folder /tmp/livingkv-store-speed]

Pages have the shape of the default model's int8 pages (24 layers, 2 KV heads, head_dim 64: 405,520 bytes) and random
content; text, sentences and token ids are of ordinary size. No model is loaded. The folder is made, needs about 6.5
GB at 15,625 pages (1,000,000 tokens), and is removed. Every speed stands beside a plain loop in the same run:
positioned O_DIRECT reads of the same sizes in the same files. "Cold" means that the kernel was told to drop the files
from its page cache (POSIX_FADV_DONTNEED).
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.synthetic_store import PAGE_BYTES, PAGE_TOKENS, SyntheticSession, create_store  # noqa: E402
from livingkv.index import Entry, Index  # noqa: E402
from livingkv.store import Store  # noqa: E402
from livingkv.tiers.disk_tier import DiskTier  # noqa: E402
from livingkv.tiers.pages import TieredPages  # noqa: E402
from livingkv.tiers.ram import RamTier  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
BF16_BYTES = 2 * 24 * 2 * 64 * 2
"""Keys and values of one token in bf16."""
PASSAGE_TOKENS = 1024
MODEL_TOKENS_PER_S = 250.0
BLOCK = 4096


def drop_from_cache(folder: Path) -> None:
    """Have the kernel forget every file below the folder."""
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def opening(folder: Path, n_times: int = 5) -> dict[str, Any]:
    """Seconds from `Store.open` to the first session row, in this process, cold and warm."""
    times: dict[str, list[float]] = {"cold": [], "warm": []}
    for _ in range(n_times):
        for kind in ("cold", "warm"):
            if kind == "cold":
                drop_from_cache(folder)
            for mode in ("write", "read"):
                started = perf_counter()
                with Store.open(folder, mode=mode) as store:
                    n_tokens = store.sessions()[0].n_tokens
                    seconds = perf_counter() - started
                if mode == "write":  # a writer recovers the store first; the reader then finds its files cached
                    times[kind].append(seconds)
    return {"n_tokens": n_tokens, "median_s": {k: statistics.median(v) for k, v in times.items()}, "seconds": times}


def passages(n_pages: int, n_passages: int, rng: random.Random) -> list[range]:
    """Pages that hold random passages of 1,024 tokens: 16 or 17 each."""
    starts = [rng.randrange(n_pages * PAGE_TOKENS - PASSAGE_TOKENS) for _ in range(n_passages)]
    return [range(lo // PAGE_TOKENS, (lo + PASSAGE_TOKENS - 1) // PAGE_TOKENS + 1) for lo in starts]


def plain_loop(store: Store, asked: Iterable[range], flags: int) -> float:
    """Seconds to read the same records into one aligned buffer, one positioned read a run, nothing verified."""
    buffer = memoryview(mmap.mmap(-1, 18 * (PAGE_BYTES + 2 * BLOCK)))
    buffer[::BLOCK] = bytes(len(buffer) // BLOCK + 1)[: len(buffer[::BLOCK])]
    folder, files = store.path / "segments", {}
    spans = []
    for pages in asked:
        records = [wanted.location for wanted in store.locate_pages(1, pages)]
        ends = [i + 1 for i, (a, b) in enumerate(pairwise(records)) if a.segment != b.segment]
        for lo, hi in pairwise([0, *ends, len(records)]):
            first, last = records[lo], records[hi - 1]
            start = first.offset // BLOCK * BLOCK
            spans.append((first.segment, start, -(-(last.offset + 48 + last.length - start) // BLOCK) * BLOCK))
            if first.segment not in files:
                files[first.segment] = os.open(folder / f"{first.segment:08d}.seg", os.O_RDONLY | flags)
    started = perf_counter()
    for segment, start, n_bytes in spans:
        os.preadv(files[segment], [buffer[:n_bytes]], start)
    seconds = perf_counter() - started
    for descriptor in files.values():
        os.close(descriptor)
    return seconds


def tiers_loop(pages: TieredPages, asked: Iterable[range]) -> float:
    """Seconds to have every page of the passages verified in RAM, one passage after another."""
    started = perf_counter()
    for passage in asked:
        for _ in pages.stream(1, passage):
            pass
    return perf_counter() - started


def reading(folder: Path, n_passages: int, n_rounds: int, seed: int) -> dict[str, Any]:
    """Passages through the tiers and by plain loops, cold and cached, in turns; MB/s of whole pages."""
    rng = random.Random(seed)
    speeds: dict[str, list[float]] = {}
    with Store.open(folder, mode="read") as store:
        n_pages = store.session(1).n_sealed_tokens // PAGE_TOKENS
        disk = DiskTier(store.segments, store.disk)
        n_asked = 0
        for _ in range(n_rounds):
            asked = passages(n_pages, n_passages, rng)
            n_bytes = sum(len(passage) for passage in asked) * PAGE_BYTES
            n_asked += 2 * n_bytes
            ram = RamTier(64 << 20, PAGE_BYTES)
            tiers = TieredPages(store.locate_pages, ram, [disk])
            loops: dict[str, Callable[[], float]] = {
                "cold tiers": lambda asked=asked, tiers=tiers: tiers_loop(tiers, asked),  # type: ignore[misc]
                "cold plain O_DIRECT": lambda asked=asked: plain_loop(store, asked, os.O_DIRECT),  # type: ignore[misc]
                "cold plain buffered": lambda asked=asked: plain_loop(store, asked, 0),  # type: ignore[misc]
                "cached plain buffered": lambda asked=asked: plain_loop(store, asked, 0),  # type: ignore[misc]
                "cached tiers": lambda asked=asked, tiers=tiers: tiers_loop(tiers, asked),  # type: ignore[misc]
                "cached plain O_DIRECT": lambda asked=asked: plain_loop(store, asked, os.O_DIRECT),  # type: ignore[misc]
            }
            order = list(loops)[:3]
            rng.shuffle(order)  # whatever is below the kernel may remember what was read before
            for name in [*order, *list(loops)[3:]]:
                loop = loops[name]
                if name.startswith("cold"):
                    drop_from_cache(folder / "segments")
                if name == "cached tiers":
                    tiers.drop_session(1)
                speeds.setdefault(name, []).append(n_bytes / loop() / 1e6)
            tiers.close()
        counts = disk.counts()
    medians = {name: statistics.median(values) for name, values in speeds.items()}
    in_turns = [a / b for a, b in zip(speeds["cold tiers"], speeds["cold plain O_DIRECT"], strict=True)]
    return {
        "n_passages_a_round": n_passages,
        "median_mb_s": medians,
        "cold_over_plain_o_direct": medians["cold tiers"] / medians["cold plain O_DIRECT"],
        "cold_over_plain_o_direct_by_round": in_turns,
        "cached_over_plain_buffered": medians["cached tiers"] / medians["cached plain buffered"],
        "bytes_read_over_whole_pages": counts.n_bytes / n_asked,
        "n_reads": counts.n_reads,
        "n_direct_reads": counts.n_direct,
        "mb_s": speeds,
    }


def writing(folder: Path, commit_tokens: int, n_commits: int, seed: int) -> dict[str, Any]:
    """Seconds that durable appends take, against the time that a model needs to read as many tokens."""
    with create_store(folder) as store:
        session = SyntheticSession(store, seed)
        appends = [session.next(commit_tokens) for _ in range(n_commits)]
        seconds = []
        for append in appends:
            started = perf_counter()
            store.append(append)
            seconds.append(perf_counter() - started)
    median = statistics.median(seconds)
    return {
        "commit_tokens": commit_tokens,
        "median_s": median,
        "share_of_ingest_at_250_tokens_s": sum(seconds)
        / (sum(seconds) + n_commits * commit_tokens / MODEL_TOKENS_PER_S),
        "tokens_s_at_which_the_share_is_5_percent": commit_tokens / (19 * statistics.mean(seconds)),
        "seconds": seconds,
    }


def size_table(folder: Path) -> dict[str, Any]:
    """Bytes on disk of each part for each token, the sentence index included, against bf16."""
    with Store.open(folder, mode="read") as store:
        n_tokens = store.sessions()[0].n_tokens
        index = Index.recreate(folder / "index", None)
        while batch := store.sentences_after(index.high_water, 5000):
            index.add([Entry(s.sentence_id, s.session_id, s.text) for s in batch])
            index.commit(batch[-1].sentence_id)
        index.close()
        parts = dict(store.stats().bytes_by_part)
    total = sum(parts.values())
    return {
        "n_tokens": n_tokens,
        "bytes_a_token": {name: n_bytes / n_tokens for name, n_bytes in parts.items()},
        "total_bytes_a_token": total / n_tokens,
        "bf16_bytes_a_token": BF16_BYTES,
        "over_bf16": total / n_tokens / BF16_BYTES,
    }


def main(
    pages: Annotated[int, typer.Option(help="Pages of the large store.")] = 15_625,
    stub_pages: Annotated[str, typer.Option(help="Pages of 64 bytes of further stores to open.")] = "15625,156250",
    folder: Annotated[Path, typer.Option(help="Made and removed.")] = Path("/tmp/livingkv-store-speed"),
    rounds: Annotated[int, typer.Option(help="Rounds of reading.")] = 5,
    seed: int = 0,
) -> None:
    """Run all parts and write result.json."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already")
    try:
        result: dict[str, Any] = {"circumstances": circumstances(), "seed": seed, "page_bytes": PAGE_BYTES}
        result["writing"] = [writing(folder / f"w{n}", n, 30, seed) for n in (64, 512)]
        result["writing"].append(writing(folder / "w4096", 4096, 8, seed))
        for small in folder.glob("w*"):
            shutil.rmtree(small)
        large = folder / "large"
        fill(large, pages, PAGE_BYTES, seed)
        result["reading"] = reading(large, 40, rounds, seed)
        result["size"] = size_table(large)
        result["opening"] = {f"{pages} whole pages": opening(large)}
        write_json(RESULT, result)
        for n in map(int, stub_pages.split(",")):
            fill(folder / f"stubs{n}", n, 64, seed)
            result["opening"][f"{n} pages of 64 bytes"] = opening(folder / f"stubs{n}")
            write_json(RESULT, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def fill(path: Path, n_pages: int, page_bytes: int, seed: int) -> None:
    """A store of one session of so many pages."""
    started = perf_counter()
    sentence_tokens = 12 if page_bytes == PAGE_BYTES else 200  # what opening reads does not depend on it
    with create_store(path) as store:
        session = SyntheticSession(store, seed, page_bytes=page_bytes, sentence_tokens=sentence_tokens)
        session.fill(n_pages * PAGE_TOKENS, appends_a_commit=1 if page_bytes == PAGE_BYTES else 32)
    subprocess.run(["sync", "-f", path], check=False)  # what is not written yet cannot be dropped from the cache
    print(f"{n_pages} pages of {page_bytes} bytes written in {perf_counter() - started:.0f} s", flush=True)


if __name__ == "__main__":
    typer.run(main)
