"""What follows, teacher-forced, behind KV that was made in four ways.

    python experiments/035_made_kv/forced.py [--each 2]

Of a stream of tokens (streams.py) some are made by steps of bf16, int8 or int4 weights, or read in bf16; all others are
read in bf16. Then the same tokens are read behind it in bf16 and scored: perplexity, how often the likeliest token is
the same, KL in nats from where everything was read in bf16. `8-bit pages`: the same after what comes before went to
pages of the store's codec and back, as far as pages are full. Writes a line for each stream; started again it goes on.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # an experiment is a script of the repository

from making import MAKINGS, Making, engines, read_into, relative_difference  # noqa: E402
from streams import Stream, streams  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.codec import KV  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.models import load_model  # noqa: E402
from livingkv.settings import PAGE_TOKENS  # noqa: E402
from livingkv.workspace import Workspace  # noqa: E402

HERE = Path(__file__).parent
PAGES = ", 8-bit pages"


def before_of(engine: Engine, stream: Stream, making: Making) -> Workspace:
    """A workspace that holds what comes before, and has room for what is scored."""
    space = engine.workspace(sum(len(part.ids) for part in stream.before) + len(stream.scored))
    for part in stream.before:
        read_into(engine, space, torch.tensor(part.ids), by_steps=part.is_made and making != "bf16 read")
    return space


def distributions(engine: Engine, stream: Stream, space: Workspace) -> Tensor:
    """Log-probabilities [scored - 1, vocabulary] after each token that is scored but the last. The workspace is as
    before afterwards."""
    ids = torch.tensor(stream.scored)
    found = engine.runner.logits(ids, space, "all")[0, :-1].log_softmax(-1)
    space.end -= len(ids)
    space.next_position -= len(ids)
    return found


def through_pages(engine: Engine, space: Workspace) -> None:
    """The full pages of a workspace are what comes back from the codec."""
    n = space.end // PAGE_TOKENS * PAGE_TOKENS
    pages = engine.codec.encode(space.view(0, n), 0)
    space.put(0, engine.codec.decode(pages, list(range(0, n, PAGE_TOKENS)), engine.model.device), 0)


def made_only(stream: Stream, kv: KV) -> KV:
    """The KV of tokens that were made."""
    made = torch.tensor([part.is_made for part in stream.before for _ in part.ids])
    return KV(kv.keys[:, :, made], kv.values[:, :, made])


def scores(own: Tensor, found: Tensor, scored: Sequence[int]) -> dict[str, float]:
    """Means over the tokens."""
    kl = (own.exp() * (own - found)).sum(-1)
    return {
        "nll": -float(found.gather(1, torch.tensor(scored[1:])[:, None]).mean()),
        "kl": float(kl.mean()),
        "most_kl": float(kl.max()),
        "same": float((own.argmax(-1) == found.argmax(-1)).float().mean()),
    }


def measured(of: dict[Making, Engine], stream: Stream) -> dict[str, Any]:
    """One stream by every making."""
    row: dict[str, Any] = {
        "kind": stream.kind,
        "number": stream.number,
        "n_read": sum(len(part.ids) for part in stream.before if not part.is_made),
        "n_made": sum(len(part.ids) for part in stream.before if part.is_made),
        "n_scored": len(stream.scored) - 1,
        "scores": {},
        "kv_difference": {},
    }
    own, own_kv = None, None
    for making in MAKINGS:
        engine = of[making]
        space = before_of(engine, stream, making)
        found, kv = distributions(engine, stream, space), made_only(stream, space.view(0, space.end))
        own, own_kv = (found, kv) if own is None or own_kv is None else (own, own_kv)
        row["scores"][making] = scores(own, found, stream.scored)
        parts = zip(("keys", "values"), kv, own_kv, strict=True)
        row["kv_difference"][making] = {name: relative_difference(made, read) for name, made, read in parts}
        through_pages(engine, space)
        row["scores"][making + PAGES] = scores(own, distributions(engine, stream, space), stream.scored)
    return row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Over all tokens of some streams; the spread of the ratio of perplexities is over streams."""
    n = sum(row["n_scored"] for row in rows)
    told = {}
    for name in rows[0]["scores"]:
        each = [row["scores"][name] for row in rows]
        apart = [row["scores"][name]["nll"] - row["scores"][MAKINGS[0]]["nll"] for row in rows]
        means = {
            key: sum(score[key] * row["n_scored"] for score, row in zip(each, rows, strict=True)) / n
            for key in ("nll", "kl", "same")
        }
        told[name] = {
            "perplexity": math.exp(means["nll"]),
            "perplexity_ratio_median": math.exp(statistics.median(apart)),
            "perplexity_ratio_least_most": [math.exp(min(apart)), math.exp(max(apart))],
            "kl_nats": means["kl"],
            "kl_nats_least_most": [min(score["kl"] for score in each), max(score["kl"] for score in each)],
            "most_kl_nats_of_a_token": max(score["most_kl"] for score in each),
            "same_likeliest_token": means["same"],
        }
    return {"n_streams": len(rows), "n_scored": n, "n_made": sum(row["n_made"] for row in rows), "by": told}


def in_all(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of all streams and of each kind; and how far apart made KV is from KV that was read."""
    kinds = sorted({row["kind"] for row in rows})
    differences = {
        making: {
            part: statistics.median(row["kv_difference"][making][part] for row in rows) for part in ("keys", "values")
        }
        for making in MAKINGS
    }
    told = {kind: summary([row for row in rows if row["kind"] == kind]) for kind in kinds}
    return {"all": summary(rows), "kinds": told, "median_difference_of_kv": differences}


def main(
    each: Annotated[int, typer.Option(min=1, max=3, help="Streams of a kind; twice as many own replies.")] = 2,
    threads: Annotated[int, typer.Option(min=1)] = 1,
    model: Annotated[str | None, typer.Option(help="A model spec; left out: the default model.")] = None,
    raw: Annotated[Path, typer.Option(help="One JSON document a stream.")] = HERE / "forced.jsonl",
    out: Annotated[Path, typer.Option(help="The summary.")] = HERE / "forced.json",
) -> None:
    """Score every stream, write raw rows and the summary."""
    torch.set_num_threads(threads)
    of = engines(load_model(model, device="cpu", weights="bf16"))
    rows = [json.loads(line) for line in raw.read_text("utf-8").splitlines()] if raw.exists() else []
    known = {(row["kind"], row["number"]) for row in rows}
    told = {"circumstances": circumstances(), "model": of["int8 steps"].model.name, "n_threads": threads}
    for stream in streams(of["int8 steps"], each, known):
        rows.append(measured(of, stream))
        with raw.open("a", encoding="utf-8") as file:
            file.write(json.dumps(rows[-1]) + "\n")
        write_json(out, told | in_all(rows))
        print(
            stream.kind, stream.number, {name: round(s["kl"], 5) for name, s in rows[-1]["scores"].items()}, flush=True
        )


if __name__ == "__main__":
    typer.run(main)
