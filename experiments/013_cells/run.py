"""What do several cells of a document's grid in one forward pass change? Speed, passes, KV and likelihood by block.

    python experiments/013_cells/run.py [--tokens 2048] [--blocks 256,512,2048] [--rounds 3] [--commit 4096]

A block of 256 is one cell a pass. Rounds alternate between the blocks. Each ingests the same text into a store of its
own: tokens/s of the whole ingest (pages to disk and index included), forward passes, the peak of device memory, and
how far stored keys and values are from those of the first block of the round. The mean log-probability of a text, read
as a document, is taken once for each block. A JSON line an ingest in raw.jsonl, summary in result.json.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import shuffled_filler  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.codec import KV  # noqa: E402
from livingkv.models import LoadedModel, load_model  # noqa: E402

HERE = Path(__file__).parent


def text_of(model: LoadedModel, n_tokens: int, seed: int) -> bytes:
    """Prose of about `n_tokens` tokens."""
    rows, total = [], 0
    for sentence in shuffled_filler(seed):
        rows.append(sentence)
        total += len(model.tokenizer(sentence, add_special_tokens=False)["input_ids"])
        if total >= n_tokens:
            break
    return " ".join(rows).encode()


def ingested(model: LoadedModel, text: bytes, settings: Settings, folder: Path) -> tuple[dict[str, Any], KV]:
    """One ingest into a new store: what it took, and the KV that is stored, on the CPU."""
    on_gpu = model.device.type == "cuda"
    with Memory.open(folder, model=model, settings=settings) as memory:
        memory.ingest("warm", text=b"The first cell of a session is a pass of its own.", session="warm")
        home = memory._home
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
        runner = home.engine().runner
        started, n_before = time.process_time(), runner.n_passes
        done = memory.ingest("text", text=text)
        cpu_s, n_passes = time.process_time() - started, runner.n_passes - n_before
        row, store, codec = home.store().session("default"), home.store(), home.engine().codec
        firsts = range(0, row.n_sealed_tokens, 64)
        runs = [
            codec.decode(store.read_pages(row.session_id, [first // 64]), [first], torch.device("cpu"))
            for first in firsts
        ]
    kv = KV(torch.cat([run.keys for run in runs], 2), torch.cat([run.values for run in runs], 2))
    line = {
        "tokens": done.n_tokens,
        "seconds": done.seconds,
        "tokens_per_s": done.n_tokens / done.seconds,
        "cpu_seconds": cpu_s,
        "passes": n_passes,
        "peak_device_bytes": torch.cuda.max_memory_allocated() if on_gpu else None,
    }
    return line, kv


def likelihood(model: LoadedModel, text: bytes, settings: Settings, folder: Path, scored: int) -> float:
    """Mean log-probability of the first tokens of the text, read as a document is."""
    with Memory.open(folder, model=model, settings=settings) as memory:
        engine = memory._home.engine()
        ids = [*engine.words.framing.prologue, *engine.words.encode(text.decode())][: scored + 1]
        hot = engine.hot_window(settings, len(engine.words.framing.prologue), settings.document)
        at = torch.tensor(ids, device=engine.model.device)
        return engine.runner.log_likelihood(at, hot, n_scored=len(ids) - 1) / (len(ids) - 1)


def differences(kv: KV, first: KV) -> dict[str, float]:
    """How far `kv` is from `first`."""
    found = {}
    for name, one, two in zip(("keys", "values"), kv, first, strict=True):
        apart = (one.float() - two.float()).abs()
        found[f"{name}_max_difference"] = float(apart.max())
        found[f"{name}_mean_difference"] = float(apart.mean())
        found[f"{name}_mean_size"] = float(two.float().abs().mean())
    return found


def main(
    tokens: Annotated[int, typer.Option(help="Tokens of the text.")] = 2048,
    blocks: Annotated[str, typer.Option(help="Tokens in a pass, with commas between them.")] = "256,512,2048",
    rounds: int = 3,
    scored: Annotated[int, typer.Option(help="Tokens whose likelihood is taken, once for each block.")] = 1024,
    commit: Annotated[int, typer.Option(help="Tokens between two commits.")] = 4096,
    model: str | None = None,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="Folder of raw.jsonl and result.json.")] = HERE,
) -> None:
    """Ingest with every block, write raw.jsonl and result.json. Rounds that are in raw.jsonl are not made again."""
    loaded = load_model(model)
    text, sizes = text_of(loaded, tokens, seed), [int(block) for block in blocks.split(",")]
    raw = out / "raw.jsonl"
    lines = [json.loads(line) for line in raw.read_text("utf-8").splitlines()] if raw.exists() else []
    for index in range(max((line["round"] + 1 for line in lines), default=0), rounds):
        first: KV | None = None
        made = []
        for block in sizes:
            settings = Settings(block_tokens=block, commit_tokens=commit)
            with tempfile.TemporaryDirectory() as folder:
                line, kv = ingested(loaded, text, settings, Path(folder) / "s.lkv")
                first = first or kv
                line |= {"round": index, "block": block} | differences(kv, first)
                if index == 0 and scored:
                    line["mean_log_probability"] = likelihood(loaded, text, settings, Path(folder) / "s.lkv", scored)
            print(json.dumps(line), flush=True)
            made.append(line)
        with raw.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in made)
        lines += made
    write_json(out / "result.json", summary(loaded, lines, sizes, {"seed": seed, "tokens": tokens, "commit": commit}))


def summary(model: LoadedModel, lines: list[dict[str, Any]], sizes: list[int], asked: dict[str, int]) -> dict[str, Any]:
    """Medians over the rounds, by block; CPU seconds say more than the clock where a machine is shared."""
    by_block = {block: [line for line in lines if line["block"] == block] for block in sizes}
    return {
        "circumstances": circumstances(),
        "model": model.model_digest,
        "device": str(model.device),
        "threads": torch.get_num_threads(),
        **asked,
        "n_rounds": len(by_block[sizes[0]]),
        "tokens_per_s": {block: _medians([line["tokens_per_s"] for line in each]) for block, each in by_block.items()},
        "tokens_per_cpu_s": {
            block: _medians([line["tokens"] / line["cpu_seconds"] for line in each]) for block, each in by_block.items()
        },
        "passes": {block: each[0]["passes"] for block, each in by_block.items()},
        "largest_difference": {
            block: max(max(line["keys_max_difference"], line["values_max_difference"]) for line in each)
            for block, each in by_block.items()
        },
        "mean_log_probability": {block: each[0].get("mean_log_probability") for block, each in by_block.items()},
        "peak_device_bytes": {block: each[0]["peak_device_bytes"] for block, each in by_block.items()},
    }


def _medians(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


if __name__ == "__main__":
    typer.run(main)
