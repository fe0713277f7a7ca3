"""Reading, spilling, restoring and recall on one GPU, a Qwen2.5-7B-Instruct-1M shape with random weights.

    python experiments/030_gpu_ingest/run.py [--only limit,prefill,ingest,restore,plain,syncs] [--lengths 32768,131072]
    python experiments/030_gpu_ingest/run.py --only nf4 --out experiments/030_gpu_ingest/result_nf4.json

Each part is measured on its own and written when it is done; one that fails says why and does not stop the others.

limit: dense bf16 matrix products, the yardstick of the run. prefill: tokens/s behind a full window without a store,
beside plain Hugging Face behind the same window. plain: Hugging Face reading everything with full attention, measured
to `--plain-tokens`, beyond summed up from blocks timed behind caches of several lengths. ingest: Memory.ingest of each
length, durable, with peak device memory. restore: opening a store and answering with one token, mode resume and kv,
page cache warm and dropped. start: the same from the start of a process, with --model. syncs: what of a pass waits for
the device, and its kernels. nf4: the same shape in 4 bits held to 7 GiB. `--shape tiny` tries the script on a CPU.
"""

from __future__ import annotations

import inspect
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor
from transformers import DynamicCache

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module
sys.path.insert(0, str(Path(__file__).resolve().parent))

from networks import matrix_parameters, plain_over, random_network  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.hot_window import HotWindow  # noqa: E402
from livingkv.model_loading import load_tokenizer  # noqa: E402
from livingkv.models import LoadedModel, from_network, load_model  # noqa: E402
from livingkv.settings import LookBack  # noqa: E402
from tests.tiny import tiny_tokenizer  # noqa: E402

HERE = Path(__file__).resolve().parent
QUESTION = "Which number does the blue ledger of entry 77 hold?"
WINDOW = 4096
GIB = 1 << 30


@dataclass
class Bench:
    """What the parts share."""

    model: LoadedModel
    device: torch.device
    lengths: list[int]
    plain_tokens: int
    repeats: int
    folder: Path
    result: dict[str, Any]
    model_folder: Path | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether there is a GPU."""
        return self.device.type == "cuda"

    def settle(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)

    def peak(self) -> int | None:
        """The most device memory held since `forget_peak`."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else None

    def forget_peak(self) -> None:
        """Begin to look for a peak anew."""
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)

    def seconds(self, work: Callable[[], object]) -> float:
        """Of one piece of work, the device's included."""
        self.settle()
        started = time.perf_counter()
        work()
        self.settle()
        return time.perf_counter() - started

    def settings(self, **changes: Any) -> Settings:
        """Pieces of about a pass each, whatever a token's bytes are."""
        return Settings(commit_tokens=self.commit_tokens, ram_budget_bytes=1 << 28, **changes)

    @cached_property
    def commit_tokens(self) -> int:
        """So many "tokens" of 4 bytes are a full pass of real ones."""
        text = text_of(2000)
        n_tokens = len(self.model.tokenizer(text, add_special_tokens=False)["input_ids"])
        return int(8000 * len(text) / n_tokens / 4) // 64 * 64

    def text(self, n_tokens: int) -> bytes:
        """A text of about so many tokens."""
        sample = text_of(2000)
        per_sentence = len(self.model.tokenizer(sample, add_special_tokens=False)["input_ids"]) / 2000
        return text_of(int(n_tokens / per_sentence)).encode()

    def ids(self, n_tokens: int, seed: int = 0) -> Tensor:
        """Random token ids on the device."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 150_000, (n_tokens,), generator=generator).to(self.device)


def text_of(n_sentences: int) -> str:
    """Sentences that are all different."""
    colours, things = ("blue", "red", "green", "white"), ("ledger", "drawer", "letter", "crate", "shelf")
    return "".join(
        f"The {colours[i % 4]} {things[i % 5]} of entry {i} holds the number {i * 7919 % 1_000_003}, as it was noted "
        f"on day {i % 365} by the clerk of room {i * 31 % 977}, who keeps all keys of floor {i % 13} in a tin.\n"
        for i in range(n_sentences)
    )


def limit_part(bench: Bench) -> dict[str, Any]:
    """Dense products of square bf16 matrices; the best size counts."""
    found = {}
    for size in (4096, 8192, 12288) if bench.on_gpu else (512,):
        a, b = (torch.randn(size, size, device=bench.device).bfloat16() for _ in range(2))
        out = torch.empty_like(a)
        for _ in range(3):
            torch.mm(a, b, out=out)
        n = 30 if bench.on_gpu else 2
        took = bench.seconds(partial(multiply, a, b, out, n))
        found[str(size)] = 2 * size**3 * n / took / 1e12
    return {"tflops": found, "best_tflops": max(found.values())}


def multiply(a: Tensor, b: Tensor, out: Tensor, n: int) -> None:
    """The same product n times."""
    for _ in range(n):
        torch.mm(a, b, out=out)


def attention_flops(bench: Bench, n_keys: float) -> float:
    """Of one token that attends so many keys, all layers."""
    shape = bench.model.shape
    return 4.0 * shape.n_layers * shape.n_heads * shape.head_dim * n_keys


def prefill_part(bench: Bench) -> dict[str, Any]:
    """Behind a full window: a document with its span, and with 4,096 tokens in blocks of 512 and 4,096."""
    engine = Engine.of(bench.model, "int8")
    per_token = 2.0 * matrix_parameters(bench.model.network)
    limit = bench.result.get("limit", {}).get("best_tflops")
    n = 65536 if bench.on_gpu else 2048
    found: dict[str, Any] = {"n_tokens": n, "matrix_flops_per_token": per_token}
    looks = {
        "document": (LookBack(128, 256), None, 128 + 128 + 16),
        "window_4096_block_512": (LookBack(WINDOW), 512, WINDOW + 256),
        "window_4096_block_4096": (LookBack(WINDOW), 4096, WINDOW + 2048),
    }
    for name, (look, block, n_keys) in looks.items():
        settings = Settings(block_tokens=block, span_tokens=128 if block is None else WINDOW)
        hot = engine.hot_window(settings, 16, look)
        engine.runner.read(bench.ids(2 * WINDOW), hot)
        hot.take_sealed()
        parts = torch.split(bench.ids(n, seed=1), 8192)
        rows = []
        for _ in range(3):
            launched: list[float] = []

            def read(hot: HotWindow = hot, launched: list[float] = launched, parts: tuple[Tensor, ...] = parts) -> None:
                started, spills = time.perf_counter(), []
                for part in parts:
                    engine.runner.read(part, hot)
                    spills.append(hot.spill())
                    del spills[:-3]
                launched.append(time.perf_counter() - started)

            took = bench.seconds(read)
            flops = (per_token + attention_flops(bench, n_keys)) * n
            rows.append(
                {"seconds": took, "launched_s": launched[0], "tokens_per_s": n / took, "tflops": flops / took / 1e12}
            )
        median = statistics.median(row["tokens_per_s"] for row in rows)
        found[name] = {
            "rounds": rows,
            "tokens_per_s": median,
            "share_of_limit": limit and statistics.median(row["tflops"] for row in rows) / limit,
        }
        del hot
    return found | plain_window(bench, n)


def plain_window(bench: Bench, n: int) -> dict[str, Any]:
    """Plain Hugging Face behind the same 4,096 tokens, block after block."""
    plain = plain_over(bench.model.network, bench.device)
    found: dict[str, Any] = {}
    for block in (512, 4096):
        cache = DynamicCache()
        read_plain(plain, bench.ids(WINDOW), cache, 512)
        rows = []
        for _ in range(3):
            parts = torch.split(bench.ids(n // 2, seed=2), block)

            def read(cache: DynamicCache = cache, parts: tuple[Tensor, ...] = parts) -> None:
                for part in parts:
                    read_plain(plain, part, cache, len(part))
                    cache.crop(-len(part))

            rows.append(n // 2 / bench.seconds(read))
        found[f"hugging_face_window_4096_block_{block}"] = {"rounds": rows, "tokens_per_s": statistics.median(rows)}
    return found


@torch.inference_mode()
def read_plain(plain: Any, ids: Tensor, cache: DynamicCache, block: int) -> None:
    """Prefill without logits."""
    names = inspect.signature(plain.model.forward).parameters
    name = "cache" if "cache" in names else "past_key_values"
    for part in torch.split(ids, block):
        plain.model(part[None], use_cache=True, **{name: cache})


@contextmanager
def filled_cache(bench: Bench, n_tokens: int) -> Iterator[DynamicCache]:
    """A cache that holds so many random tokens."""
    shape, cache = bench.model.shape, DynamicCache()
    size = (1, shape.n_kv_heads, n_tokens, shape.head_dim)
    for layer in range(shape.n_layers) if n_tokens else ():
        both = (torch.randn(size, device=bench.device, dtype=torch.bfloat16) for _ in range(2))
        cache.update(*both, layer)
    yield cache


def plain_part(bench: Bench) -> dict[str, Any]:
    """Reading everything with full attention."""
    plain, block = plain_over(bench.model.network, bench.device), 8192 if bench.on_gpu else 512
    found: dict[str, Any] = {"block": block}
    read_plain(plain, bench.ids(block), DynamicCache(), block)
    for length in bench.lengths:
        if length <= bench.plain_tokens:
            ids = bench.ids(length)
            took = bench.seconds(partial(read_plain, plain, ids, DynamicCache(), block))
            found[str(length)] = {"seconds": took}
            continue
        points = []
        for at in (0, length // 4, length // 2, 3 * length // 4, length - block):
            with torch.inference_mode(), filled_cache(bench, at) as cache:
                points.append((at, bench.seconds(partial(read_plain, plain, bench.ids(block), cache, block))))
        areas = [(b[0] - a[0]) / block * (a[1] + b[1]) / 2 for a, b in pairwise(points)]
        found[str(length)] = {"seconds": sum(areas) + points[-1][1], "blocks": points, "summed_up": True}
    return found


def ingest_part(bench: Bench) -> dict[str, Any]:
    """Memory.ingest of each length into a store of its own."""
    found: dict[str, Any] = {}
    for length in bench.lengths:
        text, told = bench.text(length), list[tuple[float, int]]()
        bench.forget_peak()
        with Memory.open(bench.folder / str(length), model=bench.model, settings=bench.settings()) as memory:
            memory.ingest("first", session="other", text=bench.text(600))  # codec's self-test, index, kernels
            started = time.perf_counter()

            def tell(done: int, total: int, told: list[tuple[float, int]] = told, started: float = started) -> None:
                told.append((time.perf_counter() - started, done))

            done = memory.ingest("text", text=text, progress=tell)
            size = sum(path.stat().st_size for path in (bench.folder / str(length)).rglob("*") if path.is_file())
        durable = told[-1][0]
        found[str(length)] = {
            "n_tokens": done.n_tokens,
            "n_sentences": done.n_sentences,
            "seconds": done.seconds,
            "durable_seconds": durable,
            "tokens_per_s": done.n_tokens / durable,
            "index_seconds": done.seconds - durable,
            "peak_bytes": bench.peak(),
            "store_bytes": size,
            "progress": [(round(at, 3), n) for at, n in told],
        }
    return found


def drop_page_cache(folder: Path) -> None:
    """The kernel forgets what it holds of a folder's files."""
    os.sync()
    for path in folder.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def first_token(bench: Bench, store: Path, mode: Any) -> dict[str, Any]:
    """Open the store, restore or recall, read the question: until the first token."""
    bench.settle()
    settings = replace(bench.settings(), exact_limit_s=0.0)
    started = time.perf_counter()
    with Memory.open(store, model=bench.model, settings=settings, read_only=True) as memory:
        opened = time.perf_counter() - started
        answer = memory.ask(QUESTION, mode=mode, max_tokens=1, session="default")
    times = answer.timings_ms
    return {
        "seconds": opened + times.first_token / 1000.0,
        "opened_s": opened,
        "probe_ms": times.probe,
        "fetch_ms": times.fetch,
        "first_token_ms": times.first_token,
        "mode": answer.mode,
        "reused_tokens": answer.reused_tokens,
        "prefilled_tokens": answer.prefilled_tokens,
    }


def restore_part(bench: Bench) -> dict[str, Any]:
    """Each length's store, warm and with the page cache dropped; ratios to reading everything, ours and plain."""
    found: dict[str, Any] = {}
    for length in bench.lengths:
        store = bench.folder / str(length)
        if not store.is_dir():
            continue
        rows: dict[str, Any] = {}
        for mode in ("resume", "kv"):
            first_token(bench, store, mode)
            warm = [first_token(bench, store, mode) for _ in range(bench.repeats)]
            cold = []
            for _ in range(bench.repeats):
                drop_page_cache(store)
                cold.append(first_token(bench, store, mode))
            rows[mode] = {"warm": warm, "cold": cold}
        rows["ratios"] = ratios(bench, length, rows)
        found[str(length)] = rows
    return found


def ratios(bench: Bench, length: int, rows: dict[str, Any]) -> dict[str, Any]:
    """Reading everything again over the first token."""
    ours = bench.result.get("ingest", {}).get(str(length), {}).get("durable_seconds")
    plain = bench.result.get("plain", {}).get(str(length), {}).get("seconds")
    found = {}
    for mode in ("resume", "kv"):
        for heat in ("warm", "cold"):
            took = statistics.median(row["seconds"] for row in rows[mode][heat])
            found[f"{mode}_{heat}"] = {
                "seconds": took,
                "windowed_prefill_over_it": ours and ours / took,
                "plain_prefill_over_it": plain and plain / took,
            }
    return found


def syncs_part(bench: Bench) -> dict[str, Any]:
    """What one pass over a block of a document waits for, and how many kernels it launches."""
    engine = Engine.of(bench.model, "int8")
    hot = engine.hot_window(Settings(), 16, LookBack(128, 256))
    ids = bench.ids(8192) if bench.on_gpu else bench.ids(1024)
    for _ in range(2):
        engine.runner.read(ids, hot)
        hot.spill()
    found: dict[str, Any] = {}
    if bench.on_gpu:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            engine.runner.read(ids, hot)
            hot.spill()
            torch.cuda.set_sync_debug_mode("default")
        found["syncs"] = [f"{Path(each.filename).name}:{each.lineno} {each.message}"[:200] for each in caught]
    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if bench.on_gpu else []
    with torch.profiler.profile(activities=activities) as profile:
        engine.runner.read(ids, hot)
        hot.spill()
        bench.settle()
    kinds = [event for event in profile.events() if "CUDA" in str(event.device_type)]
    times: dict[str, list[float]] = {}
    for event in kinds:
        times.setdefault(event.name[:90], []).append(event.device_time)
    top = sorted(times.items(), key=lambda item: -sum(item[1]))[:25]
    found |= {"n_kernels": len(kinds), "device_ms": sum(map(sum, times.values())) / 1000.0}
    found["kernels"] = [{"name": name, "n": len(each), "ms": sum(each) / 1000.0} for name, each in top]
    return found


def nf4_part(bench: Bench) -> dict[str, Any]:
    """Reading 32,768 tokens and going on with a conversation, all within 7 GiB of this process's allocator."""
    store = bench.folder / "nf4"
    bench.forget_peak()
    with Memory.open(store, model=bench.model, settings=bench.settings(window_tokens=WINDOW)) as memory:
        done = memory.ingest("text", text=bench.text(bench.lengths[0]))
        read = bench.peak()
        memory.chat("What was noted? " * 700, max_tokens=2, recall="off")
        answer = memory.ask(QUESTION, mode="kv", max_tokens=8, session="default")
        block = memory._home.engine().pass_tokens(bench.settings(), LookBack(128, 256))
    return {
        "n_tokens": done.n_tokens,
        "tokens_per_s": done.n_tokens / done.seconds,
        "block_tokens": block,
        "peak_bytes_reading": read,
        "peak_bytes": bench.peak(),
        "reserved_bytes": torch.cuda.max_memory_reserved(bench.device) if bench.on_gpu else None,
        "limit_bytes": 7 * GIB,
        "mode": answer.mode,
    }


def start_part(bench: Bench) -> dict[str, Any]:
    """Processes of their own, from their start to the first token of the longest store; needs a model's folder."""
    store = bench.folder / str(bench.lengths[-1])
    assert bench.model_folder is not None, "give --model: random weights are in no folder"
    found: dict[str, Any] = {}
    for heat in ("dropped", "warm"):
        rows = []
        for _ in range(min(bench.repeats, 3)):
            if heat == "dropped":
                drop_page_cache(store)
                drop_page_cache(bench.model_folder)
            command = [sys.executable, str(HERE / "start.py"), str(store), str(bench.model_folder), "resume"]
            started = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            laps = json.loads(done.stdout.splitlines()[-1])
            rows.append(laps | {"whole_process": time.perf_counter() - started})
        found[heat] = rows
    return found


PARTS = {
    "limit": limit_part,
    "prefill": prefill_part,
    "syncs": syncs_part,
    "plain": plain_part,
    "ingest": ingest_part,
    "restore": restore_part,
    "start": start_part,
}


def loaded(shape: str, model: str | None, device: torch.device, *, nf4: bool, tokenizer: str | None) -> LoadedModel:
    """The real model of a folder, or random weights in a shape."""
    if model is not None:
        return load_model(model, device=device)
    words = load_tokenizer(Path(tokenizer)) if tokenizer else tiny_tokenizer()
    network = random_network(shape, device, nf4=nf4)
    return from_network(network, words, name=f"random-{shape}", quantization="4bit" if nf4 else "none")


def main(
    shape: Annotated[str, typer.Option(help="7b or tiny.")] = "7b",
    model: Annotated[str | None, typer.Option(help="A model's folder instead of random weights.")] = None,
    tokenizer: Annotated[str | None, typer.Option(help="A folder whose tokenizer random weights get.")] = None,
    only: Annotated[str, typer.Option(help="Parts, with commas.")] = "limit,prefill,syncs,plain,ingest,restore",
    lengths: Annotated[str, typer.Option(help="Tokens of the stores.")] = "32768,131072",
    plain_tokens: Annotated[int, typer.Option(help="Longer ones are summed up from blocks.")] = 131072,
    repeats: Annotated[int, typer.Option(min=1)] = 5,
    folder: Annotated[Path | None, typer.Option(help="Where the stores go; kept.")] = None,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = HERE / "result.json",
) -> None:
    """Run the parts and write the raw result after each."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    nf4 = only == "nf4"
    if nf4 and device.type == "cuda":
        torch.cuda.set_per_process_memory_fraction(
            7 * GIB / torch.cuda.get_device_properties(device).total_memory, device
        )
    result: dict[str, Any] = {"circumstances": circumstances(), "n_threads": torch.get_num_threads()}
    with tempfile.TemporaryDirectory() as name:
        started = time.perf_counter()
        made = loaded(shape, model, device, nf4=nf4, tokenizer=tokenizer)
        result |= {"model": made.name, "model_seconds": time.perf_counter() - started}
        sizes = [int(each) for each in lengths.split(",")]
        place = None if model is None else Path(model)
        bench = Bench(made, device, sizes, plain_tokens, repeats, folder or Path(name), result, place)
        for part in only.split(","):
            work = nf4_part if part == "nf4" else PARTS[part]
            started = time.perf_counter()
            try:
                result[part] = work(bench)
            except Exception:  # the other parts go on; what happened is in the result
                result[part] = {"error": traceback.format_exc()[-3000:]}
            result[part]["part_seconds"] = time.perf_counter() - started
            write_json(out, result)
            print(part, round(result[part]["part_seconds"], 1), "s", result[part].get("error", ""), flush=True)


if __name__ == "__main__":
    typer.run(main)
