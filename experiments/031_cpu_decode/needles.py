"""Answers from one store by generation with bf16, int8 and int4 weights.

    python experiments/031_cpu_decode/needles.py [--tokens 4000] [--ask 10]

One haystack is read once, in bf16 as always. Then every side opens that store and answers the same questions, in two
phrasings, in mode kv.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import CountTokens, build_haystack, choose_asked, make_needles  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory  # noqa: E402
from livingkv.models import LoadedModel, Weights, load_model  # noqa: E402

RESULT = Path(__file__).with_name("needles.json")
SIDES: tuple[Weights, ...] = ("bf16", "int8", "int4")
PHRASINGS = (1, 3)


def counter(model: LoadedModel) -> CountTokens:
    """Counts tokens of texts."""
    return lambda texts: [len(ids) for ids in model.tokenizer(list(texts))["input_ids"]]


def main(
    tokens: Annotated[int, typer.Option(help="Length of the haystack.")] = 4000,
    needles: Annotated[int, typer.Option(min=1)] = 40,
    ask: Annotated[int, typer.Option(min=1, help="Needles asked for.")] = 10,
    seed: int = 0,
    model: Annotated[str | None, typer.Option(help="A model spec.")] = None,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
) -> None:
    """Read, ask on every side, write the raw result."""
    hidden = make_needles(needles, seed=seed)
    answers: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for side in SIDES:
            loaded = load_model(model, device="cpu", weights=side)
            with Memory.open(Path(folder) / "store", model=loaded) as memory:
                if side == SIDES[0]:
                    haystack = build_haystack(tokens, hidden, seed=seed, count_tokens=counter(loaded))
                    memory.ingest("haystack", text=haystack.text.encode())
                answers[side] = [
                    {"key": needle.key, "phrasing": phrasing, "answer": given, "right": needle.answered_by(given)}
                    for phrasing in PHRASINGS
                    for needle in choose_asked(hidden, ask, seed=seed)
                    for given in [memory.ask(needle.question(phrasing), mode="kv", max_tokens=32).answer]
                ]
            print(side, sum(each["right"] for each in answers[side]), "of", len(answers[side]), flush=True)
    right = {side: sum(each["right"] for each in given) for side, given in answers.items()}
    result = {"circumstances": circumstances(), "n_tokens": haystack.n_tokens, "seed": seed, "right": right}
    write_json(out, result | {"n_asked": len(answers[SIDES[0]]), "answers": answers})


if __name__ == "__main__":
    typer.run(main)
