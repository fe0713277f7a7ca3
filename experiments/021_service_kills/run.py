"""The service is killed in the middle of turns, again and again: is everything there that it acknowledged, once?

    python experiments/021_service_kills/run.py [--kills 20] [--sessions 50] [--clients 8]

Clients talk in 50 sessions, store turns and ingest texts, all at once; SIGKILL comes at a random moment, 0.3 to 4 s
after the service was ready, and it is started again over the same stores. What the clients were told is the oracle.
What is stored and whose answer the kill took is sent again under its own Idempotency-Key. In the end every
acknowledged text is looked for in the store, through the library and read-only: in its session, in its order, and
once. Ends with 1 where one is missing or doubled.
"""

from __future__ import annotations

import json
import random
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.kill_client import KillClient  # noqa: E402
from experiments.latency import percentile  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.service_process import ServiceProcess, service, tiny_model_folder  # noqa: E402
from livingkv import Memory  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
OPTIONS = ("--context", "100000")
JOBS = "/v1/jobs"
JOBS_S = 600.0
FORGOTTEN = "ended in an earlier life"
"""A job that is done is known as long as the process lives; whether its text is there is looked for in the store."""


def at_once(calls: Sequence[Callable[[], None]]) -> list[threading.Thread]:
    """A thread for each."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def paths_of(served: ServiceProcess) -> frozenset[str]:
    """The routes that there are."""
    return frozenset(httpx.get(f"{served.url}/openapi.json", timeout=60).raise_for_status().json()["paths"])


def one_life(stores: Path, model: str, log: Path, clients: Sequence[KillClient], after_s: float) -> float:
    """Start the service, let all clients work, and kill it. Seconds that the start took."""
    with service(stores, model, log, OPTIONS) as served:
        paths = paths_of(served)
        for client in clients:
            client.say_again(served.url)
        threads = at_once([partial(client.work_until_killed, served.url, paths) for client in clients])
        time.sleep(after_s)
        served.kill()
        for thread in threads:
            thread.join(120)
        return served.ready_s


def last_life(stores: Path, model: str, log: Path, clients: Sequence[KillClient]) -> dict[str, Any]:
    """Start it once more, wait until all jobs have ended, and stop it as it should be."""
    states: dict[str, str] = {}
    with service(stores, model, log, OPTIONS) as served, httpx.Client(base_url=served.url, timeout=60) as client:
        for each in clients:
            each.say_again(served.url)
        wanted = {job for each in clients for job in each.acknowledged.jobs}
        deadline = time.monotonic() + JOBS_S
        for job in sorted(wanted):
            while (state := _state(client, job)) in ("queued", "running") and time.monotonic() < deadline:
                time.sleep(0.05)
            states[job] = state
        code = served.stop()
    ended = list(states.values())
    return {"exit_code": code, "jobs": len(wanted), "states": {state: ended.count(state) for state in set(ended)}}


def _state(client: httpx.Client, job: str) -> str:
    answer = client.get(f"{JOBS}/{job}")
    return FORGOTTEN if answer.status_code == 404 else str(answer.raise_for_status().json()["state"])


def in_order_and_once(stored: str, texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Texts that are missing or out of order, and texts that stand there more than once."""
    at, missing = 0, []
    for text in texts:
        found = stored.find(text, at)
        if found < 0:
            missing.append(text[:80])
        else:
            at = found + len(text)
    return missing, [text[:80] for text in texts if stored.count(text) > 1]


def compared(stores: Path, clients: Sequence[KillClient]) -> dict[str, Any]:
    """The store against what was acknowledged."""
    missing: list[str] = []
    doubled: list[str] = []
    with Memory.open(stores / "default", read_only=True) as memory:
        names = {info.name for info in memory.sessions()}
        for client in clients:
            said = client.acknowledged
            for session, texts in [*said.chats.items(), *said.turns.items()]:
                stored = memory.text(session).decode() if session in names else ""
                absent, more = in_order_and_once(stored, _of_users(texts) if session in said.chats else texts)
                missing, doubled = missing + absent, doubled + more
                if session in said.chats and not stored.startswith("".join(texts)):
                    missing.append(f"{session} does not begin with what was said")
            for session, texts in said.ingested.items():
                stored = memory.text(session).decode() if session in names else ""
                missing += [text[:80] for text in texts if text not in stored]
                doubled += [text[:80] for text in texts if stored.count(text) > 1]
        problems = list(memory.check().problems)
    return {"missing": missing, "doubled": doubled, "problems": problems, "sessions": len(names)}


def _of_users(texts: Sequence[str]) -> Sequence[str]:
    """What the users said: no two texts are the same. A random model may say the same twice."""
    return texts[::2]


def main(
    kills: Annotated[int, typer.Option(help="How often it is killed.")] = 20,
    sessions: Annotated[int, typer.Option(help="Conversations.")] = 50,
    clients: Annotated[int, typer.Option(help="Clients at once.")] = 8,
    folder: Annotated[Path, typer.Option(help="Made and removed.")] = Path("/tmp/livingkv-service-kills"),
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
    seed: int = 0,
) -> None:
    """Kill, start again, compare, and write the raw result."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already")
    folder.mkdir(parents=True)
    try:
        model, log, stores = str(tiny_model_folder(folder / "tiny")), folder / "service.log", folder / "stores"
        moments = random.Random(f"moments {seed}")
        counts = [len(range(number, sessions, clients)) for number in range(clients)]
        each = [KillClient(f"client {number}", n, seed) for number, n in enumerate(counts)]
        after = [moments.uniform(0.3, 4.0) for _ in range(kills)]
        ready = [one_life(stores, model, log, each, moment) for moment in track(after, "killing")]
        ended = last_life(stores, model, log, each)
        result: dict[str, Any] = {"circumstances": circumstances(), "seed": seed, "model": "tiny random Qwen2"}
        result |= {"kills": kills, "killed_after_s": after, "ready_after_s": ready, **_told(each), "last": ended}
        result["store"] = compared(stores, each)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    result["verdict"] = verdict(result)
    write_json(out, result)
    print(json.dumps(result["verdict"], indent=1))
    raise typer.Exit(0 if all(result["verdict"].values()) else 1)


def _told(clients: Sequence[KillClient]) -> dict[str, Any]:
    """What the clients know."""
    said = [client.acknowledged for client in clients]
    cached = [tokens for client in clients for tokens in client.restarted.cached_tokens]
    return {
        "acknowledged": {
            "turns_of_conversations": sum(len(texts) // 2 for each in said for texts in each.chats.values()),
            "memory_turns": sum(len(texts) // 2 for each in said for texts in each.turns.values()),
            "ingest_jobs": sum(len(each.jobs) for each in said),
        },
        "requests_cut_by_kills": sum(client.n_cut for client in clients),
        "sessions_talked_in": sum(bool(texts) for each in said for texts in each.chats.values()),
        "first_turns_after_restarts": {
            "n": len(cached),
            "least_cached_tokens": min(cached, default=None),
            "median_cached_tokens": percentile(cached, 0.5) if cached else None,
            "without": [told for client in clients for told in client.restarted.without],
        },
        "faults": [fault for client in clients for fault in client.faults][:20],
    }


def verdict(result: dict[str, Any]) -> dict[str, bool]:
    """What issue 5 asks for."""
    store, last = result["store"], result["last"]
    return {
        "every_acknowledged_text_is_there": not store["missing"],
        "none_is_doubled": not store["doubled"],
        "the_store_is_whole": not store["problems"],
        "every_job_ended_well": set(last["states"]) <= {"done", FORGOTTEN},
        "first_turns_after_restarts_had_cached_tokens": not result["first_turns_after_restarts"]["without"],
        "no_other_error": not result["faults"] and last["exit_code"] == 0,
    }


if __name__ == "__main__":
    typer.run(main)
