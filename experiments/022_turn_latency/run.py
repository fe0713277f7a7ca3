"""How long a memory turn takes in a store of 2,500,000 tokens on a CPU, and how large the store is.

    python experiments/022_turn_latency/run.py [--tokens 2500000] [--sessions 100] [--turns 500] [--kv-tokens 1000000]

A memory turn: what is known of the user's message (words and meaning, the best stored sentence, verbatim: mode
extract), then the message and a reply are stored, durably. Nothing is generated. The store holds docstring paragraphs
of the installed packages as text-only sessions: nothing is run through the model, whose tokenizer and token embeddings
are used. Measured in the library and through POST /v1/memory/turn of a service in another process; then both again with
a session of KV beside (random pages of the default model's size, so that no model has to read for hours). In the same
run a plain baseline: one tantivy index with the texts in it, the best five of BM25, the turn added and committed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import httpx
import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import docstring_paragraphs  # noqa: E402
from experiments.latency import latency, timed_ms  # noqa: E402
from experiments.plain_words import PlainWords  # noqa: E402
from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import circumstances, peak_memory_bytes, write_json  # noqa: E402
from experiments.service_process import ServiceProcess, service  # noqa: E402
from experiments.synthetic_store import SyntheticSession  # noqa: E402
from experiments.turn_texts import TurnTexts  # noqa: E402
from livingkv import Memory  # noqa: E402
from livingkv.model_choice import ModelChoice  # noqa: E402
from livingkv.models import LoadedModel  # noqa: E402
from livingkv.store import Store  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
TENANT = "default"
TURN = "/v1/memory/turn"
SEED_TURN_S, SEED_BYTES = 1.0, 467_000_000
"""Of the store that the project grew from, with as many tokens."""
TARGET_MS = 100.0
KINDS = ("text only", "beside KV")


def texts_of_sessions(texts: TurnTexts, model: LoadedModel, n_tokens: int, n_sessions: int) -> Iterator[str]:
    """A text for each session, of equal numbers of tokens, at most a paragraph more."""
    for _ in range(n_sessions):
        rows, total = [], 0
        while total < n_tokens / n_sessions:
            batch = texts.next_stored(16)
            rows += batch
            total += sum(len(each.ids) for each in model.tokenizer.backend_tokenizer.encode_batch(batch))
        yield "\n\n".join(rows) + "\n"


def fill(folder: Path, texts: TurnTexts, model: LoadedModel, n_tokens: int, n_sessions: int) -> dict[str, Any]:
    """Make the store: text-only sessions, and more of them to talk in."""
    started = perf_counter()
    with Memory.open(folder, model=model) as memory, progress_bar() as bar:
        task = bar.add_task("storing", total=n_sessions)
        for number, text in enumerate(texts_of_sessions(texts, model, n_tokens, n_sessions)):
            memory.ingest(f"notes-{number}", session=f"notes-{number}", text=text.encode(), kv=False)
            bar.advance(task)
        for place, kind in product(("library", "service"), KINDS):
            memory.ingest("first", session=f"{place}, {kind}", text=b"We talk about the notes.\n", kv=False)
    return {"seconds": perf_counter() - started}


def size_of(folder: Path) -> dict[str, Any]:
    """Counts of a store, and its bytes by part."""
    with Memory.open(folder, read_only=True) as memory:
        stats = memory.stats()
    return {
        "n_tokens": stats.n_tokens,
        "n_sentences": stats.n_sentences,
        "n_sessions": stats.n_sessions,
        "n_pages": stats.n_pages,
        "size_bytes": stats.size_bytes,
        "bytes_by_part": stats.bytes_by_part,
        "bytes_without_pages": stats.size_bytes - stats.bytes_by_part["pages"],
        "bytes_a_token": stats.size_bytes / stats.n_tokens,
    }


def in_library(folder: Path, texts: TurnTexts, model: LoadedModel, session: str, n: int) -> dict[str, Any]:
    """Turns through `Memory` with the model loaded, and what is a part of them alone."""
    started = perf_counter()
    with Memory.open(folder, model=model) as memory:
        memory.ask(texts.question(0), mode="extract")
        first = 1000 * (perf_counter() - started)
        found = 0

        def turn(number: int) -> None:
            nonlocal found
            asked = texts.question(number)
            answer = memory.ask(asked, mode="extract")
            found += texts.is_found(number, [each.text for each in answer.evidence])
            memory.add_messages(texts.messages(number), session=session)

        turns = timed_ms(turn, n)
        probes = timed_ms(lambda number: memory.ask(texts.question(number), mode="extract"), n)
        scoped = timed_ms(lambda number: memory.ask(texts.question(number), session="notes-0", mode="extract"), n)
    return {
        "open_and_first_probe_ms": first,
        "turn": latency(turns),
        "probe": latency(probes),
        "probe_of_one_session": latency(scoped),
        "answer_holds_the_sentence_asked_for": found / n,
        "peak_memory_bytes": peak_memory_bytes(),
    }


def over_http(served: ServiceProcess, texts: TurnTexts, session: str, n: int) -> dict[str, Any]:
    """Turns through the service's route, one client, one connection."""
    told: list[dict[str, float]] = []
    with httpx.Client(base_url=served.url, timeout=120) as client:

        def turn(number: int) -> None:
            body = {"session": session, "messages": texts.messages(number), "query": texts.question(number)}
            answer = client.post(TURN, json=body | {"mode": "extract"})
            if answer.status_code != 200:
                raise RuntimeError(f"{TURN} answered {answer.status_code}: {answer.text[:300]}")
            told.append(answer.json()["timings_ms"])

        started = perf_counter()
        turn(n)
        first = 1000 * (perf_counter() - started)
        turns = timed_ms(turn, n)
        health = timed_ms(lambda _: client.get("/health"), n)
    memory = served.memory()
    return {
        "start_s": served.ready_s,
        "first_turn_ms": first,
        "turn": latency(turns),
        "health": latency(health),
        "timings_ms_of_the_last": told[-1],
        "resident_bytes": memory.rss,
        "anonymous_bytes": memory.anonymous,
    }


def baseline(folder: Path, texts: TurnTexts, stored: list[str], n: int) -> dict[str, Any]:
    """Plain BM25 with the texts beside, every turn committed; and committed every 64 turns, which a kill would lose."""
    results: dict[str, Any] = {}
    for name, commit_every in (("every turn committed", 1), ("committed every 64 turns", 64)):
        place = folder / f"plain-{commit_every}"
        plain = PlainWords(place, stored)
        found = 0

        def turn(number: int, plain: PlainWords = plain, commit_every: int = commit_every) -> None:
            nonlocal found
            found += texts.is_found(number, plain.search(texts.question(number), 5))
            said = [message["content"] for message in texts.messages(number)]
            plain.add(said, commit=(number + 1) % commit_every == 0)

        results[name] = {"turn": latency(timed_ms(turn, n)), "found_in_five": found / n}
        plain.close()
        results["size_bytes"] = sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
    return results


def add_kv(folder: Path, model: LoadedModel, n_tokens: int, seed: int) -> None:
    """A session of random pages beside the others; the index knows it on return."""
    with Store.open(folder, mode="write") as store:
        SyntheticSession(store, seed, name="kv").fill(n_tokens)
    subprocess.run(["sync", "-f", folder], check=False)  # writing back would be measured else
    with Memory.open(folder, model=model) as memory:
        memory.ask("Is it there?", mode="extract")


def measured(stores: Path, texts: TurnTexts, model: LoadedModel, spec: str | None, kind: str, n: int) -> dict[str, Any]:
    """Library, then service, on the store as it is; and its size before and after. kind: of the sessions talked in."""
    result: dict[str, Any] = {"size": size_of(stores / TENANT)}
    result["library"] = in_library(stores / TENANT, texts, model, f"library, {kind}", n)
    with service(stores, spec, stores.with_name("service.log"), threads=torch.get_num_threads()) as served:
        result["service"] = over_http(served, texts, f"service, {kind}", n)
        served.stop()
    return result | {"size_after": size_of(stores / TENANT)}


def main(
    model: Annotated[str | None, typer.Option(help="A model spec; left out, the default model.")] = None,
    tokens: Annotated[int, typer.Option(help="Tokens of the store.")] = 2_500_000,
    sessions: Annotated[int, typer.Option(help="Text-only sessions that hold them.")] = 100,
    turns: Annotated[int, typer.Option(help="Turns of each kind.")] = 500,
    kv_tokens: Annotated[int, typer.Option(help="Tokens with KV beside, in whole pages; 0 for none.")] = 1_000_000,
    folder: Annotated[Path, typer.Option(help="Made and removed; 7 GB.")] = Path("/tmp/livingkv-turns"),
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
    seed: int = 0,
) -> None:
    """Run all parts and write the raw result."""
    if folder.exists():
        raise typer.BadParameter(f"{folder} exists already")
    folder.mkdir(parents=True)
    try:
        loaded = ModelChoice.of(model).load(None)
        texts = TurnTexts(docstring_paragraphs(), seed)
        stores = folder / "stores"
        result: dict[str, Any] = {
            "circumstances": circumstances(),
            "seed": seed,
            "model": loaded.name,
            "n_threads": torch.get_num_threads(),
            "target_p50_ms": TARGET_MS,
            "of_the_seed": {"turn_s": SEED_TURN_S, "size_bytes": SEED_BYTES},
        }
        result["filling"] = fill(stores / TENANT, texts, loaded, tokens, sessions)
        result["baseline"] = baseline(folder, texts, list(texts.stored), turns)
        result[KINDS[0]] = measured(stores, texts, loaded, model, KINDS[0], turns)
        if kv_tokens:
            add_kv(stores / TENANT, loaded, kv_tokens, seed)
            result[KINDS[1]] = measured(stores, texts, loaded, model, KINDS[1], turns)
        write_json(out, result)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    typer.run(main)
