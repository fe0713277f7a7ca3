"""8-bit pages against lossless ones on real text: perplexity, greedy agreement, KL, bytes per token.

    python experiments/003_codec/run.py [--tokens 4608] [--model M]

Two texts of one kind each (examples/notes: prose; the statistics module of Python: docs and code) are read in blocks of
512 that attend everything before. Every block is read twice: once with all older tokens coded to 8-bit pages and back,
once with lossless KV; both are teacher-forced on the same tokens. The first block has no cold pages and is not scored.
Bytes per token are of a real store with everything counted, ingested from haystack prose.
"""

from __future__ import annotations

import inspect
import math
import statistics
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import shuffled_filler  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.codec import KV  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.models import load_model  # noqa: E402
from livingkv.workspace import Workspace  # noqa: E402

BLOCK = 512
RESULT = Path(__file__).with_name("result.json")


def coded(engine: Engine, kv: KV, first: int) -> KV:
    """What comes back from 8-bit pages."""
    pages = engine.codec.encode(kv, first)
    return engine.codec.decode(pages, list(range(first, first + kv.keys.shape[2], 64)), engine.model.device)


def compare(engine: Engine, ids: Tensor) -> dict[str, Any]:
    """Score every token after the first block under both kinds of cold KV."""
    plain, cold = engine.workspace(len(ids)), engine.workspace(len(ids))
    sums = {"nll_lossless": 0.0, "nll_int8": 0.0, "kl": 0.0, "agree": 0.0}
    n = 0
    for lo in track(range(0, len(ids) - 1, BLOCK), "scoring"):
        part = ids[lo : lo + BLOCK]
        before, after = (distribution(engine, part, space) for space in (plain, cold))
        end = cold.end
        cold.put(lo, coded(engine, cold.view(lo, end), lo), lo)
        if lo == 0:
            continue
        target = ids[lo + 1 : lo + BLOCK + 1]
        m = len(target)
        sums["nll_lossless"] -= float(before[:m].gather(1, target[:, None]).sum())
        sums["nll_int8"] -= float(after[:m].gather(1, target[:, None]).sum())
        sums["kl"] += float((before[:m].exp() * (before[:m] - after[:m])).sum())
        sums["agree"] += float((before[:m].argmax(-1) == after[:m].argmax(-1)).sum())
        n += m
    ratio = math.exp((sums["nll_int8"] - sums["nll_lossless"]) / n)
    return {
        "n_scored": n,
        "perplexity_lossless": math.exp(sums["nll_lossless"] / n),
        "perplexity_ratio": ratio,
        "greedy_agreement": sums["agree"] / n,
        "kl_nats": sums["kl"] / n,
    }


def distribution(engine: Engine, part: Tensor, space: Workspace) -> Tensor:
    """Log-probabilities after each token of `part`."""
    return engine.runner.logits(part, space, "all")[0].log_softmax(-1)


def real_text() -> str:
    """The example notes, then a module of the standard library: about 4,700 and 14,000 tokens."""
    notes = "".join(path.read_text("utf-8") for path in sorted((ROOT / "examples" / "notes").glob("*.md")))
    return notes + inspect.getsource(statistics)


def stored_bytes(text: str, model: str | None, codec: str) -> dict[str, Any]:
    """Bytes of a real store of the text, index included, by part."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings.from_dict({"codec": codec})
        with Memory.open(Path(folder) / "store", model=model, settings=settings) as memory:
            memory.ingest("prose", text=text.encode())
        with Memory.open(Path(folder) / "store", read_only=True) as memory:
            stats = memory.stats()
    assert stats.bytes_per_token is not None and stats.bf16_bytes_per_token is not None
    return {
        "n_tokens": stats.n_tokens,
        "bytes_per_token": stats.bytes_per_token,
        "share_of_bf16": stats.bytes_per_token / stats.bf16_bytes_per_token,
        "bytes_by_part": stats.bytes_by_part,
    }


def main(
    tokens: Annotated[int, typer.Option(help="Tokens to score, a multiple of 512.")] = 6144,
    store_tokens: Annotated[int, typer.Option(help="Tokens of the store whose bytes are counted.")] = 16000,
    model: Annotated[str | None, typer.Option(help="A model spec.")] = None,
    seed: int = 0,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
) -> None:
    """Run both parts and write the raw result."""
    engine = Engine.of(load_model(model), "int8")
    result: dict[str, Any] = {
        "circumstances": circumstances(),
        "model": engine.model.name,
        "seed": seed,
        "block": BLOCK,
        "quality": compare(engine, torch.tensor(engine.words.encode(real_text())[:tokens])),
    }
    words = engine.words.encode(" ".join(islice(shuffled_filler(seed), store_tokens // 10)))[:store_tokens]
    text = engine.model.tokenizer.decode(words)
    result["bytes"] = {codec: stored_bytes(text, model, codec) for codec in ("int8", "lossless")}
    write_json(out, result)


if __name__ == "__main__":
    typer.run(main)
