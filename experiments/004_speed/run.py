"""Speed side by side in one run: windowed ingest against plain Hugging Face, and restore against reading again.

    python experiments/004_speed/run.py [--restore-tokens 16384] [--rounds 3]

Part 1, ingest: tokens/s of livingkv reading new text with a hot window of 4,096 tokens already full (pages sealed,
coded to 8 bits and committed to disk), against Hugging Face (DynamicCache, sdpa, bf16, blocks of 512, no logits)
reading the same tokens behind the same 4,096. Rounds alternate; the ratio is taken round by round, its median is
quoted.

Part 2, restore: time to the first answer token of (a) Hugging Face reading a session of N tokens from its
beginning, then the question, against (b) livingkv opening the store of that session, restoring its hot window and
reading the question (mode resume), and (c) the same with recall from all of it (mode kv). The model is loaded
already on both sides.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import shuffled_filler  # noqa: E402
from experiments.plain_hugging_face import PlainHuggingFace  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.timed_asks import first_token_seconds  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.model_sources import find_model  # noqa: E402
from livingkv.models import LoadedModel, load_model  # noqa: E402
from livingkv.results import Mode  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
WINDOW = 4096
QUESTION = "Summarise the last point in one word."


def text_of(model: LoadedModel, n_tokens: int, seed: int) -> str:
    """Distinct prose of about `n_tokens` tokens."""
    rows, total = [], 0
    for sentence in islice(shuffled_filler(seed), n_tokens):
        rows.append(sentence)
        total += len(model.tokenizer(sentence, add_special_tokens=False)["input_ids"])
        if total >= n_tokens:
            break
    return " ".join(rows)


def ingest_part(model: LoadedModel, plain: PlainHuggingFace, rounds: int, folder: Path) -> dict[str, Any]:
    """Alternate: 2,048 new tokens behind a full window."""
    rows = []
    settings = Settings(window_tokens=WINDOW, span_tokens=WINDOW)
    with Memory.open(folder / "ingest", model=model, settings=settings) as memory:
        memory.ingest("warm", text=text_of(model, WINDOW + 1024, 1).encode())
        base = torch.tensor(model.tokenizer(text_of(model, WINDOW + 1024, 1))["input_ids"][:WINDOW])
        for index in range(rounds):
            text = text_of(model, 2048, 10 + index)
            ids = torch.tensor(model.tokenizer(text)["input_ids"])
            done = memory.ingest(f"round {index}", text=text.encode())
            cache = plain.cache()
            plain.read(base, cache)
            theirs = len(ids) / plain.seconds_behind(ids, cache)
            ours = done.n_tokens / done.seconds
            rows.append({"livingkv_tokens_per_s": ours, "hugging_face_tokens_per_s": theirs, "ratio": ours / theirs})
    return {"window": WINDOW, "rounds": rows, "median_ratio": statistics.median(row["ratio"] for row in rows)}


def restore_part(
    model: LoadedModel, plain: PlainHuggingFace, n_tokens: int, rounds: int, folder: Path
) -> dict[str, Any]:
    """Cold reading of a whole session against opening its store."""
    text = text_of(model, n_tokens, 2)
    with Memory.open(folder / "restore", model=model) as memory:
        stored = memory.ingest("session", text=text.encode()).n_tokens
    ids = torch.tensor(model.tokenizer(text)["input_ids"])
    question = torch.tensor(model.tokenizer(QUESTION)["input_ids"])
    cache = plain.cache()
    started = time.perf_counter()
    plain.read(ids, cache)
    plain.first_token(question, cache)
    cold = time.perf_counter() - started
    rows: dict[Mode, list[float]] = {"resume": [], "kv": []}
    for _ in range(rounds):
        for mode, seconds in rows.items():
            asked = "Which word describes the returned value?" if mode == "kv" else QUESTION
            seconds.append(first_token_seconds(folder / "restore", model, mode, asked))
    medians = {mode: statistics.median(seconds) for mode, seconds in rows.items()}
    return {
        "n_tokens": stored,
        "cold_seconds": cold,
        "restore_seconds": rows,
        "median_seconds": medians,
        "ratio": {mode: cold / seconds for mode, seconds in medians.items()},
    }


def main(
    restore_tokens: Annotated[int, typer.Option(help="Length of the restored session.")] = 16384,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    model: Annotated[str | None, typer.Option(help="A model spec.")] = None,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
) -> None:
    """Run both parts and write the raw result."""
    loaded = load_model(model)
    plain = PlainHuggingFace(find_model(model, None).folder)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        result = {
            "circumstances": circumstances(),
            "model": loaded.name,
            "n_threads": torch.get_num_threads(),
            "ingest": ingest_part(loaded, plain, rounds, folder),
            "restore": restore_part(loaded, plain, restore_tokens, rounds, folder),
        }
    write_json(out, result)


if __name__ == "__main__":
    typer.run(main)
