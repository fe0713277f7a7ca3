"""Several askers at once at the real service: tokens/s of 1, 2, 4 and 8 together, and the first token during an ingest.

    python experiments/032_concurrent/run.py [--model SPEC] [--device cpu|cuda] [--shape tiny|7b] [--reply-tokens 48]

A real `livingkv serve` in a process of its own and real HTTP, streamed. Part 1, askers: n clients at once, each a user
with a conversation of its own, ask for a reply that would not end; tokens of all replies over the time from the first
request to the last end. Once with max_batch 8, once, the baseline, with max_batch 1, where passes take turns. Part 2,
ingest: one asker after the other, alone and while a long text is ingested in the background; the time to the first
token, and the bytes/s of the ingest, beside those of an ingest alone. Part 3, passes: `Runner.logits_of` itself,
without a service. An error of one part is noted, and the others go on. With --shape the model is randomly initialised:
its words mean nothing, its times do.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, islice
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Annotated, Any

import httpx
import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.asker import Asked, ask  # noqa: E402
from experiments.haystack import shuffled_filler  # noqa: E402
from experiments.latency import latency  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.random_models import model_folder  # noqa: E402
from experiments.service_process import ServiceProcess, service  # noqa: E402
from livingkv.batched_decode import DecodeStep  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.model_choice import ModelChoice  # noqa: E402
from livingkv.runner import Runner  # noqa: E402
from livingkv.settings import Settings  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
N_ASKERS = (1, 2, 4, 8)
BATCHES = (8, 1)
"""max_batch: as it is by default, and the baseline."""
RATES = ("tokens_per_s", "tokens_per_cpu_s")
"""By the clock, and by the processor time of the service: what neighbours on the machine take is not in that."""
WISH = "Leave that. List the numbers in order: 1, 2, 3, 4, 5, 6, and so on up to 500."
"""What the default model answers at any length."""
WINDOW = 4096
_INGEST_SENTENCES = 4000
_JOB_S = 0.1


class Asking:
    """Askers of one service. words: sentences, of which each message has others."""

    def __init__(self, url: str, seed: int, reply_tokens: int, name: str) -> None:
        self._url = url
        self._words = shuffled_filler(seed)
        self._reply_tokens = reply_tokens
        self._names = (f"{name}-{number}" for number in count())

    def at_once(self, n: int) -> list[Asked]:
        """n replies, asked for at the same moment."""

        async def all_of_them() -> list[Asked]:
            async with httpx.AsyncClient(base_url=self._url, timeout=600) as client:
                return list(await asyncio.gather(*(self._one(client, self._reply_tokens) for _ in range(n))))

        return asyncio.run(all_of_them())

    def in_turn(self, n: int, reply_tokens: int) -> list[Asked]:
        """n replies, one after the other."""

        async def each() -> list[Asked]:
            async with httpx.AsyncClient(base_url=self._url, timeout=600) as client:
                return [await self._one(client, reply_tokens) for _ in range(n)]

        return asyncio.run(each())

    async def _one(self, client: httpx.AsyncClient, reply_tokens: int) -> Asked:
        name = next(self._names)
        text = " ".join(islice(self._words, 2))
        return await ask(client, f"{text}\n\n{WISH}", user=name, session="story", max_tokens=reply_tokens)


def counted(served: ServiceProcess) -> dict[str, float]:
    """The service's counters that say how passes were shared."""
    lines = [line.split() for line in httpx.get(f"{served.url}/metrics", timeout=60).text.splitlines()]
    names = ("livingkv_batch_rows_sum", "livingkv_batch_rows_count", "livingkv_step_seconds_sum")
    return {line[0]: float(line[1]) for line in lines if line and line[0].startswith(names)}


def together(served: ServiceProcess, asking: Asking, n: int) -> dict[str, Any]:
    """One round of n askers."""
    before, cpu_s = counted(served), served.cpu_s()
    replies = asking.at_once(n)
    cpu_s = served.cpu_s() - cpu_s
    taken = {name: value - before.get(name, 0.0) for name, value in counted(served).items()}
    seconds = max(each.last_s for each in replies) - min(each.sent_s for each in replies)
    n_tokens, n_passes = sum(each.n_tokens for each in replies), taken["livingkv_batch_rows_count"]
    all_began = max(each.first_s for each in replies)
    return {
        "n_tokens": n_tokens,
        "seconds": seconds,
        "tokens_per_s": n_tokens / seconds,
        "cpu_s": cpu_s,
        "tokens_per_cpu_s": n_tokens / cpu_s,
        "seconds_after_all_began": max(each.last_s for each in replies) - all_began,
        "first_token_ms": [round(each.first_ms, 1) for each in replies],
        "n_shared_passes": n_passes,
        "rows_a_pass": taken["livingkv_batch_rows_sum"] / n_passes if n_passes else None,
        "step_seconds": {
            name.partition("kind=")[2].strip('"}'): value for name, value in taken.items() if "kind" in name
        },
    }


def askers(serve: Callable[..., Any], numbers: Sequence[int], rounds: int, reply_tokens: int) -> dict[str, Any]:
    """Part 1."""
    found: dict[str, Any] = {}
    for max_batch in BATCHES:
        with serve("--batch", str(max_batch)) as served:
            asking = Asking(served.url, max_batch, reply_tokens, "asker")
            asking.in_turn(1, 4)  # whatever is done once
            rows = {n: [together(served, asking, n) for _ in range(rounds)] for n in numbers}
        found[f"max_batch {max_batch}"] = {
            str(n): {name: statistics.median(row[name] for row in of_n) for name in RATES} | {"rounds": of_n}
            for n, of_n in rows.items()
        }
    shared, alone = (found[f"max_batch {max_batch}"] for max_batch in BATCHES)
    ratios: dict[str, Any] = {}
    for rate in RATES:
        ratios[rate] = {
            "over_one_asker": {n: row[rate] / shared["1"][rate] for n, row in shared.items()},
            "over_one_asker, taking turns": {n: row[rate] / alone["1"][rate] for n, row in alone.items()},
            "over_taking_turns": {n: row[rate] / alone[n][rate] for n, row in shared.items()},
        }
    return found | {"ratios": ratios}


class Ingest:
    """A long text that a service reads in the background."""

    def __init__(self, client: httpx.Client, sentences: Sequence[str], name: str) -> None:
        self._client = client
        text = "\n".join(sentences)
        body = {"text": text, "source": name, "session": name, "user": "reader"}
        self._job = client.post("/v1/memory/ingest", json=body).raise_for_status().json()["job"]["id"]
        self._started = self._done_bytes() or 0

    def wait_for(self, n_bytes: int, most_s: float) -> None:
        """Until so much more was read."""
        deadline, first = perf_counter() + most_s, self._done_bytes()
        while self._done_bytes() - first < n_bytes and perf_counter() < deadline:
            sleep(_JOB_S)

    def _done_bytes(self) -> int:
        job = self._client.get(f"/v1/jobs/{self._job}", params={"user": "reader"}).raise_for_status().json()
        job = job.get("job", job)
        if job["state"] in ("failed", "done", "cancelled"):
            raise RuntimeError(f"the ingest has ended: {job['state']} {job['error']}")
        return int(job["done"])

    def bytes_per_s(self, while_doing: Callable[[], Any]) -> tuple[float, Any]:
        """How much was read a second meanwhile, and what was done. Counted from one durable piece to another."""
        first, started = self._next_piece(None)
        made = while_doing()
        last, ended = self._next_piece(self._done_bytes())
        return (last - first) / (ended - started), made

    def _next_piece(self, after: int | None) -> tuple[int, float]:
        known = self._done_bytes() if after is None else after
        while (now := self._done_bytes()) == known:
            sleep(0.01)
        return now, perf_counter()

    def cancel(self) -> None:
        """Give it up."""
        self._client.delete(f"/v1/jobs/{self._job}", params={"user": "reader"}).raise_for_status()


def during_ingest(
    serve: Callable[..., Any], n: int, reply_tokens: int, ingest_s: float, n_sentences: int
) -> dict[str, Any]:
    """Part 2."""
    with serve() as served, httpx.Client(base_url=served.url, timeout=600) as client:
        asking = Asking(served.url, 5, reply_tokens, "asker")
        asking.in_turn(1, 4)
        alone = asking.in_turn(n, reply_tokens)
        sentences = list(islice(shuffled_filler(6), n_sentences))
        ingest = Ingest(client, sentences, "book")
        rate_alone, _ = ingest.bytes_per_s(lambda: sleep(ingest_s))
        rate_beside, beside = ingest.bytes_per_s(lambda: asking.in_turn(n, reply_tokens))
        ingest.cancel()
    first = {"alone": latency([each.first_ms for each in alone]), "beside": latency([each.first_ms for each in beside])}
    rates = {"alone": _rate(alone), "beside": _rate(beside)}
    return {
        "first_token": first,
        "p50_ratio": first["beside"]["p50_ms"] / first["alone"]["p50_ms"],
        "p99_ratio": first["beside"]["p99_ms"] / first["alone"]["p99_ms"],
        "reply_tokens_per_s": rates,
        "ingest_bytes_per_s": {"alone": rate_alone, "beside": rate_beside},
        "ingest_share_beside": rate_beside / rate_alone,
    }


def _rate(replies: Sequence[Asked]) -> float:
    return sum(each.n_tokens for each in replies) / sum(each.last_s - each.sent_s for each in replies)


def one_by_one(runner: Runner, steps: Sequence[DecodeStep]) -> None:
    """A pass for each of the steps."""
    for step in steps:
        runner.logits_of([step])


def passes(choice: ModelChoice, n_steps: int, context_tokens: int) -> dict[str, Any]:
    """Part 3: n states of `context_tokens` each, decode steps of all in one pass and one by one."""
    model = choice.load(None)
    engine, settings = Engine.of(model, "int8"), Settings(window_tokens=WINDOW)
    on_gpu = model.device.type == "cuda"
    found: dict[str, Any] = {"context_tokens": context_tokens, "n_steps": n_steps}
    states = []
    for number in range(max(N_ASKERS)):
        states.append(engine.hot_window(settings, len(engine.words.framing.prologue)))
        ids = torch.randint(5, 250, (context_tokens,), generator=torch.Generator().manual_seed(number))
        engine.runner.read(ids.to(model.device), states[-1])

    def seconds(act: Callable[[], object]) -> dict[str, float]:
        times = []
        for _ in range(n_steps + 2):
            started, cpu = perf_counter(), process_time()
            act()
            if on_gpu:
                torch.cuda.synchronize()
            times.append((perf_counter() - started, process_time() - cpu))
        taken = times[2:]  # the first two are for whatever is done once
        return {"s": statistics.median(s for s, _ in taken), "cpu_s": statistics.median(cpu for _, cpu in taken)}

    for n in N_ASKERS:
        steps = [DecodeStep(7, state) for state in states[:n]]
        together_s = seconds(partial(engine.runner.logits_of, steps))
        in_turn_s = seconds(partial(one_by_one, engine.runner, steps))
        found[str(n)] = {"together": together_s, "in_turn": in_turn_s, "tokens_per_s": n / together_s["s"]}
    for clock in ("s", "cpu_s"):
        one, eight, in_turn = found["1"]["together"][clock], found["8"]["together"][clock], found["8"]["in_turn"][clock]
        found[f"tokens per {clock}: 8 together / 1"] = 8 * one / eight
        found[f"tokens per {clock}: 8 together / 8 in turn"] = in_turn / eight
    return found


def main(
    model: Annotated[str | None, typer.Option(help="A spec; left out: the default model.")] = None,
    shape: Annotated[str | None, typer.Option(help="tiny or 7b: a randomly initialised model.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    parts: Annotated[str, typer.Option(help="Which, with commas.")] = "askers,ingest,passes",
    numbers: Annotated[str, typer.Option(help="Of askers, 1 among them.")] = "1,2,4,8",
    rounds: Annotated[int, typer.Option(help="Of each number of askers.")] = 1,
    reply_tokens: Annotated[int, typer.Option(help="Of each reply.")] = 48,
    n_asked: Annotated[int, typer.Option(help="Replies alone, and beside the ingest.")] = 20,
    ingest_s: Annotated[float, typer.Option(help="Seconds of the ingest alone.")] = 15.0,
    ingest_sentences: Annotated[int, typer.Option(help="Of the text to ingest; its end must not be reached.")] = 4000,
    n_steps: Annotated[int, typer.Option(help="Passes of part 3.")] = 8,
    context_tokens: Annotated[int, typer.Option(help="Of each state in part 3.")] = 256,
    threads: Annotated[int, typer.Option(help="Of the service.")] = 2,
    out: Annotated[Path, typer.Option(help="The result.")] = RESULT,
) -> None:
    """Measure, and write the result."""
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    torch.set_num_threads(threads)
    work = Path(tempfile.mkdtemp(prefix="livingkv-032-"))
    result: dict[str, Any] = {"circumstances": circumstances(), "shape": shape, "device": device, "threads": threads}
    result |= {"reply_tokens": reply_tokens, "rounds": rounds}
    try:
        if shape is not None:
            model = str(model_folder(work / "model", "7b" if shape == "7b" else "tiny", device))
        folders = (work / f"stores-{number}" for number in count())

        @contextmanager
        def serve(*options: str) -> Iterator[ServiceProcess]:
            options = ("--window", str(WINDOW), "--context", "100000", *options)
            with service(next(folders), model, work / "service.log", options, threads=threads) as served:
                yield served

        todo: dict[str, Callable[[], dict[str, Any]]] = {
            "askers": lambda: askers(serve, [int(n) for n in numbers.split(",")], rounds, reply_tokens),
            "ingest": lambda: during_ingest(serve, n_asked, min(8, reply_tokens), ingest_s, ingest_sentences),
            "passes": lambda: passes(ModelChoice(model), n_steps, context_tokens),
        }
        for name in parts.split(","):
            result[name] = _tried(todo[name])
            write_json(out, result)
            typer.echo(f"{name}: done" if "error" not in result[name] else f"{name}: {result[name]['error']}")
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _tried(part: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    try:
        return part()
    except Exception as error:  # the edge of a part: told in the result
        return {"error": f"{type(error).__name__}: {error}", "where": traceback.format_exc(limit=4)}


if __name__ == "__main__":
    typer.run(main)
