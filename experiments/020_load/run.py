"""32 clients for ten minutes at a service on a CPU with a tiny model: errors, memory, /health, and what tenants see.

    python experiments/020_load/run.py [--clients 32] [--minutes 10] [--asks 2000]

A real `livingkv serve` and real HTTP. The clients chat (whole and streamed, each on sessions of its own), go away in
the middle, store turns, search and ask, until the time is over. Meanwhile the server's memory is read each second, and
another process asks /health ten times a second. Before and after, one client alone: the tokens that the service
counts as prefilled are exactly those that its answers do not call cached. Then two tenants, two users each, store
facts about the same things with marked values, and ask 2,000 times in every way there is; a mark of another in a body,
a header or an error is a fault. Ends with 1 where something must not have happened.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep
from typing import Annotated, Any

import httpx
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import shuffled_filler  # noqa: E402
from experiments.latency import latency  # noqa: E402
from experiments.load_client import CHAT, LoadClient, actions  # noqa: E402
from experiments.load_tally import Tally  # noqa: E402
from experiments.load_tenants import foreign_marks  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.service_process import ServiceProcess, service, tiny_model_folder  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
PROBE = ROOT / "experiments" / "health_probe.py"
CONTEXT = 100_000
"""Of the tiny model, which was trained for nothing anyway."""
RAM_BUDGET = "16M"
"""Of pages between questions: full soon, so that what grows later is something else."""
HEALTH_LIMIT_MS = 200.0


@contextmanager
def sampled(served: ServiceProcess, every_s: float) -> Iterator[list[dict[str, float]]]:
    """The server's memory while the block runs."""
    rows: list[dict[str, float]] = []
    ended, started = threading.Event(), perf_counter()

    def sample() -> None:
        while not ended.wait(every_s):
            memory = served.memory()
            seconds = round(perf_counter() - started, 2)
            rows.append({"s": seconds, "rss": memory.rss, "anonymous": memory.anonymous, "swap": memory.swap})

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield rows
    finally:
        ended.set()
        thread.join()


def growth(rows: Sequence[dict[str, float]], warm_up_s: float) -> dict[str, Any]:
    """After the warm-up: the slope of a straight line, and the first half against the second."""
    warm = [row for row in rows if row["s"] >= warm_up_s]
    found: dict[str, Any] = {"n": len(warm)}
    for name in ("rss", "anonymous"):
        values = [row[name] for row in warm]
        half = len(values) // 2
        first, second = statistics.mean(values[:half]), statistics.mean(values[half:])
        slope = statistics.linear_regression([row["s"] for row in warm], values).slope
        found[name] = {
            "bytes_a_minute": 60 * slope,
            "first_half_mean": first,
            "second_half_mean": second,
            "second_over_first": second / first,
            "max": max(values),
        }
    return found


def counters(client: httpx.Client) -> dict[str, float]:
    """What the service counted."""
    lines = [line.split() for line in client.get("/metrics").text.splitlines() if not line.startswith("#")]
    return {line[0]: float(line[1]) for line in lines if "{" not in line[0]}


def agreement(served: ServiceProcess, words: Sequence[str], n: int, name: str) -> dict[str, Any]:
    """One client alone: turns of one conversation, each compared with the counters of the service."""
    said: list[str] = []
    differ = 0
    told = {"prompt_tokens": 0, "cached_tokens": 0}
    with httpx.Client(base_url=served.url, timeout=60) as client:
        first = before = counters(client)
        for number in range(n):
            texts = [*said, words[number % len(words)]]
            messages = [{"role": ("user", "assistant")[at % 2], "content": text} for at, text in enumerate(texts)]
            body = {"messages": messages, "session": name, "max_tokens": 8, "temperature": 0}
            answer = client.post(CHAT, json=body).raise_for_status().json()
            said += [texts[-1], answer["choices"][0]["message"]["content"]]
            usage, now = answer["usage"], counters(client)
            prompt, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            read = now["livingkv_prefilled_tokens_total"] - before["livingkv_prefilled_tokens_total"]
            differ += read != prompt - cached
            differ += bool(number) and cached == 0
            told = {"prompt_tokens": told["prompt_tokens"] + prompt, "cached_tokens": told["cached_tokens"] + cached}
            before = now
    counted = before["livingkv_prefilled_tokens_total"] - first["livingkv_prefilled_tokens_total"]
    return {"n_turns": n, **told, "prefilled_by_the_counter": counted, "turns_that_differ": differ}


async def clients_at_once(
    served: ServiceProcess, tally: Tally, words: Sequence[str], n: int, seconds: float, seed: int, can: Sequence[str]
) -> None:
    """Let them work."""
    deadline = perf_counter() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=n)
    async with httpx.AsyncClient(base_url=served.url, timeout=120, limits=limits) as client:
        each = [LoadClient(client, tally, words, f"client {number}", seed, can) for number in range(n)]
        await asyncio.gather(*(one.run_until(deadline) for one in each))


def under_load(
    served: ServiceProcess, words: Sequence[str], n: int, seconds: float, warm_up_s: float, seed: int
) -> dict[str, Any]:
    """The clients, the memory and /health."""
    with httpx.Client(base_url=served.url, timeout=60) as client:
        paths = list(client.get("/openapi.json").raise_for_status().json()["paths"])
        before, tally, can = counters(client), Tally(), actions(paths)
        argv = [sys.executable, str(PROBE), served.url, str(seconds)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as probing, sampled(served, 1.0) as rows:
            asyncio.run(clients_at_once(served, tally, words, n, seconds, seed, can))
            health = json.loads(probing.communicate()[0])
        sleep(2)  # what clients left behind ends within a second
        after = counters(client)
    delta = {name: after[name] - before.get(name, 0.0) for name in after if name.endswith("_total")}
    read, told = delta["livingkv_prefilled_tokens_total"], tally.prompt_tokens - tally.cached_tokens
    return {
        "n_clients": n,
        "seconds": seconds,
        "actions": can,
        **tally.to_json(),
        "requests_a_second": tally.n_answers / seconds,
        "counted": delta,
        "prefilled_tokens": {"counted": read, "of_answered_turns": told, "of_others": read - told},
        "health": latency(health["ms"]) | {"faults": health["faults"]},
        "memory": growth(rows, warm_up_s) | {"samples": rows},
        "stored": client_sizes(served),
    }


def client_sizes(served: ServiceProcess) -> dict[str, int]:
    """How much the service keeps now: files that are mapped, and its peak."""
    memory = served.memory()
    return {"file_backed_bytes": memory.rss - memory.anonymous, "peak_rss_bytes": memory.peak}


def verdict(result: dict[str, Any]) -> dict[str, bool]:
    """What issue 5 asks for, as far as it can be told here."""
    load, tenants = result["load"], result["tenants"]
    alone = [result[name]["turns_that_differ"] for name in ("alone before", "alone after")]
    return {
        "no_error_but_429_and_503_with_retry_after": load["n_faults"] == 0,
        "health_p99_under_200_ms": load["health"]["p99_ms"] < HEALTH_LIMIT_MS and not load["health"]["faults"],
        "every_later_turn_had_cached_tokens": load["turns"]["later_turns_without_cached_tokens"] == [],
        "cached_tokens_agree_with_the_counter": alone == [0, 0] and load["prefilled_tokens"]["of_others"] >= 0,
        "no_foreign_mark": tenants["n_foreign"] == 0 and tenants["marks_in_the_log"] == 0,
        "every_owner_found_its_own": min(tenants["own_mark_seen"].values()) > 0,
    }


def main(
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 32,
    minutes: Annotated[float, typer.Option(help="How long.")] = 10.0,
    warm_up: Annotated[float, typer.Option(help="Seconds that do not count for the slope of memory.")] = 60.0,
    asks: Annotated[int, typer.Option(help="Asks of the tenants.")] = 2000,
    folder: Annotated[Path, typer.Option(help="Made and removed.")] = Path("/tmp/livingkv-load"),
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
    seed: int = 0,
) -> None:
    """Run all parts and write the raw result."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already")
    folder.mkdir(parents=True)
    try:
        model, log = str(tiny_model_folder(folder / "tiny")), folder / "service.log"
        filler = shuffled_filler(seed)
        words = [next(filler) for _ in range(5000)]
        result: dict[str, Any] = {"circumstances": circumstances(), "seed": seed, "model": "tiny random Qwen2"}
        with service(folder / "stores", model, log, ["--context", str(CONTEXT), "--ram-budget", RAM_BUDGET]) as served:
            result["alone before"] = agreement(served, words, 50, "alone before")
            result["load"] = under_load(served, words, clients, 60 * minutes, warm_up, seed)
            result["alone after"] = agreement(served, words, 50, "alone after")
            result["exit_code"] = served.stop()
        result["tenants"] = foreign_marks(folder / "tenants", model, asks, seed)
        result["verdict"] = verdict(result)
        write_json(out, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(json.dumps(result["verdict"], indent=1))
    raise typer.Exit(0 if all(result["verdict"].values()) else 1)


if __name__ == "__main__":
    typer.run(main)
