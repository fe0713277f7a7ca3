"""Decode steps on a CPU: livingkv with bf16, int8 and int4 weights, llama.cpp with Q4_K_M; and how each reads text.

    python experiments/031_cpu_decode/run.py GGUF [--rounds 5] [--threads 2]

The default model is made from GGUF, so both sides have the same weights. Speed: a session of 4k, 16k and 64k tokens is
resumed (its newest pages restored; their numbers are random, because a step takes as long whatever they are), and
decode steps follow, head and logits included; llama.cpp attends its whole cache (f16, flash attention), livingkv its
hot window of 4,096 tokens and the sinks. Sides alternate in blocks of steps in one process. Quality: the same tokens of
real text are read up to a place and scored one by one from there, by decode steps on every side but bf16, which reads
them.
"""

from __future__ import annotations

import inspect
import math
import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # an experiment is a script of the repository

from llama import STRETCH, LlamaCpp  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.codec import KV  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.hot_window import window_start  # noqa: E402
from livingkv.models import Weights, load_model  # noqa: E402
from livingkv.settings import PAGE_TOKENS, Settings  # noqa: E402
from livingkv.workspace import Workspace  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
LENGTHS = (4096, 16384, 65536)
SIDES: tuple[Weights, ...] = ("bf16", "int8", "int4")
_DROPPED = 2
"""Steps at the beginning of each block that are not counted: caches and threads are still another side's."""


def real_text() -> str:
    """The example notes, then a module of the standard library."""
    notes = "".join(path.read_text("utf-8") for path in sorted((ROOT / "examples" / "notes").glob("*.md")))
    return notes + inspect.getsource(statistics)


def resumed(engine: Engine, n_tokens: int, extra_tokens: int) -> Workspace:
    """The hot window of a session of `n_tokens`, restored from pages of random numbers."""
    hot = engine.hot_window(Settings(), len(engine.words.framing.prologue))
    first = window_start(n_tokens, hot.look) // PAGE_TOKENS
    shape, generator = engine.shape, torch.Generator().manual_seed(0)
    size = (shape.n_layers, shape.n_kv_heads, PAGE_TOKENS, shape.head_dim)
    keys, values = (torch.randn(size, generator=generator).to(shape.dtype) for _ in range(2))
    pages = [engine.codec.encode(KV(keys, values), at * PAGE_TOKENS)[0] for at in range(first, n_tokens // PAGE_TOKENS)]
    hot.restore(pages, first, engine.codec.encode(KV(keys, values), 0)[0], b"")
    return hot.branch(extra_tokens)


def step_seconds(engine: Engine, space: Workspace, n_steps: int) -> list[float]:
    """What each of some decode steps takes; the workspace is as before afterwards."""
    seconds = []
    for index in range(n_steps):
        started = perf_counter()
        engine.runner.logits(torch.tensor([1000 + index]), space)
        seconds.append(perf_counter() - started)
    space.end -= n_steps
    space.next_position -= n_steps
    return seconds


def speed(
    engines: dict[Weights, Engine], llama: LlamaCpp, ids: list[int], rounds: int, n_steps: int
) -> list[dict[str, Any]]:
    """For each length, every side's steps in alternation."""
    rows = []
    for length in LENGTHS:
        llama.fill(ids[:STRETCH], length)
        llama.step_seconds(2)  # moves the copied keys
        spaces = {name: resumed(engine, length, n_steps) for name, engine in engines.items()}
        seconds: dict[str, list[list[float]]] = {name: [] for name in (*engines, "llama.cpp")}
        for _ in range(rounds):
            for name, engine in engines.items():
                seconds[name].append(step_seconds(engine, spaces[name], n_steps))
            seconds["llama.cpp"].append(llama.step_seconds(n_steps))
        medians = {name: [statistics.median(block[_DROPPED:]) for block in blocks] for name, blocks in seconds.items()}
        theirs = medians["llama.cpp"]
        ratios = {name: [b / a for a, b in zip(medians[name], theirs, strict=True)] for name in engines}
        rows.append(
            {
                "tokens_stored": length,
                "tokens_attended": {"livingkv": next(iter(spaces.values())).n_attended, "llama.cpp": length},
                "tokens_per_s": {name: 1 / statistics.median(values) for name, values in medians.items()},
                "step_ms_by_round": {name: [1000 * value for value in values] for name, values in medians.items()},
                "ratio_by_round": ratios,
                "median_ratio": {name: statistics.median(values) for name, values in ratios.items()},
            }
        )
        print(length, rows[-1]["tokens_per_s"], rows[-1]["median_ratio"], flush=True)
    return rows


def by_steps(engine: Engine, ids: Tensor, n_before: int) -> Tensor:
    """Log-probabilities [tokens, vocabulary] after each token from `n_before` - 1 on, by decode steps behind it."""
    space = engine.workspace(len(ids))
    rows = [engine.runner.logits(ids[:n_before], space)[0, -1]]
    rows += [engine.runner.logits(token[None], space)[0, -1] for token in ids[n_before:-1]]
    return torch.stack(rows).log_softmax(-1)


def by_reading(engine: Engine, ids: Tensor, n_before: int) -> Tensor:
    """The same by one pass."""
    return engine.runner.logits(ids[:-1], engine.workspace(len(ids)), "all")[0, n_before - 1 :].log_softmax(-1)


def quality(
    engines: dict[Weights, Engine], llama: LlamaCpp, ids: list[int], n_texts: int, n_before: int, n_scored: int
) -> dict[str, Any]:
    """Perplexity of every side on the same tokens, and how far it is from bf16."""
    sums: dict[str, dict[str, float]] = {
        name: {"nll": 0.0, "kl": 0.0, "agree": 0.0} for name in (*engines, "llama.cpp")
    }
    for start in np.linspace(0, len(ids) - n_before - n_scored, n_texts).astype(int).tolist():
        part = torch.tensor(ids[start : start + n_before + n_scored])
        target = part[n_before:, None]
        own = by_reading(engines["bf16"], part, n_before)
        said: dict[str, Tensor] = {
            name: own if name == "bf16" else by_steps(engine, part, n_before) for name, engine in engines.items()
        }
        theirs = torch.from_numpy(llama.log_probabilities(part.tolist(), n_before))
        said["llama.cpp"] = theirs[:, : own.shape[1]]
        for name, found in said.items():
            into = sums[name]
            into["nll"] -= float(found.gather(1, target).sum())
            into["kl"] += float((own.exp() * (own - found)).sum())
            into["agree"] += float((own.argmax(-1) == found.argmax(-1)).sum())
    n = n_texts * n_scored
    return {
        "n_scored": n,
        "n_before": n_before,
        "perplexity": {name: math.exp(each["nll"] / n) for name, each in sums.items()},
        "kl_nats_from_bf16": {name: each["kl"] / n for name, each in sums.items()},
        "same_likeliest_token": {name: each["agree"] / n for name, each in sums.items()},
    }


def main(
    gguf: Annotated[Path, typer.Argument(help="The Q4_K_M file that the default model is made from.")],
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    steps: Annotated[int, typer.Option(min=4, help="In a block.")] = 16,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    texts: Annotated[int, typer.Option(min=1, help="Places in the text that are scored.")] = 6,
    scored: Annotated[int, typer.Option(min=1, help="Tokens scored at each.")] = 128,
    model: Annotated[str | None, typer.Option(help="A model spec; left out: the default model.")] = None,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
) -> None:
    """Run both parts and write the raw result."""
    torch.set_num_threads(threads)
    engines = {name: Engine.of(load_model(model, device="cpu", weights=name), "int8") for name in SIDES}
    llama = LlamaCpp(gguf, LENGTHS[-1] + STRETCH, threads)
    ids = engines["bf16"].words.encode(real_text())
    result: dict[str, Any] = {
        "circumstances": circumstances(),
        "llama_cpp_python": llama_version(),
        "model": engines["bf16"].model.name,
        "n_threads": threads,
        "quality": quality(engines, llama, ids, texts, 384, scored),
    }
    print(result["quality"], flush=True)
    llama.clear()
    write_json(out, result)
    result["speed"] = speed(engines, llama, ids, rounds, steps)
    write_json(out, result)


def llama_version() -> str:
    """The version of llama-cpp-python."""
    from importlib.metadata import version

    return version("llama-cpp-python")


if __name__ == "__main__":
    typer.run(main)
