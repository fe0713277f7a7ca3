"""The seed's settings against livingkv: 100 needles of one type, the questions of 001_needle, one run.

    python experiments/018_seed/run.py --tokens 8000,32000 --ask 20 --phrasing 1,2,3

Both read the same text with the same model. The seed's memory (seed_memory.py) is asked as the seed has it, and in
kinder variants: the mean of the question as the probe, a budget of 1,024 tokens instead of 256, the chat template's
first tokens attended as sinks, and the right sentence handed to it, so that only its reading is measured. A JSON line a
question; what is there is not asked again.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import Haystack, Needle, build_haystack, choose_asked, make_needles  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.shards import append_line, lines_of  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.models import LoadedModel, load_model  # noqa: E402
from livingkv.text import split_sentences  # noqa: E402

HERE = Path(__file__).parent
Seed = importlib.import_module("experiments.018_seed.seed_memory")

VARIANTS: dict[str, dict[str, Any]] = {
    "seed": {},
    "seed, mean of the question": {"probe": "mean"},
    "seed, 1,024 tokens": {"budget": 4 * Seed.BUDGET},
    "seed, told the sentence": {"told": True},
    "seed, with sinks": {"sinks": True},
    "seed, all kinder": {"probe": "mean", "budget": 4 * Seed.BUDGET, "sinks": True},
    "seed, told the sentence, with sinks": {"told": True, "sinks": True},
}


def haystack_of(model: LoadedModel, n_tokens: int, needles: Sequence[Needle], seed: int) -> Haystack:
    """That of 001_needle."""

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in model.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    return build_haystack(n_tokens, needles, seed=seed, count_tokens=count)


def compare(
    model: LoadedModel, haystack: Haystack, asked: Sequence[tuple[int, Needle]], store: Path, max_tokens: int
) -> Iterator[dict[str, Any]]:
    """One row a question: what each of them says, and whether it is right."""
    text = haystack.text.encode()
    with Memory.open(store, model=model, settings=Settings()) as memory:
        memory.ingest("haystack", text=text)
        engine = memory._home.engine()
        spans = split_sentences(text)
        encoded = engine.words.encode_sentences(text, spans)
        n_lead = len(engine.words.framing.prologue)
        kept = [(index, span) for index, span in enumerate(encoded.sentence_tokens) if span[0] < span[1]]
        sentences = [text[spans[index].byte_lo : spans[index].byte_hi].decode() for index, _ in kept]
        ids = [*engine.words.framing.prologue, *encoded.token_ids]
        seed_memory = Seed.SeedMemory(engine, ids, [(lo + n_lead, hi + n_lead) for _, (lo, hi) in kept])
        for phrasing, needle in track(asked, f"{haystack.n_tokens:,} tokens"):
            question = needle.question(phrasing)
            gold = next(index for index, sentence in enumerate(sentences) if needle.sentence in sentence)
            row: dict[str, Any] = {"phrasing": phrasing, "key": needle.key, "expected": needle.value, "systems": {}}
            for name, variant in VARIANTS.items():
                sinks = n_lead if variant.get("sinks") else 0
                own = {key: value for key, value in variant.items() if key != "sinks"}
                said = seed_memory.ask(question, gold=gold, max_tokens=max_tokens, n_sinks=sinks, **own)
                row["systems"][name] = asdict(said) | {"right": needle.answered_by(said.text)}
            answer = memory.ask(question, max_tokens=max_tokens)
            ranks = [rank for rank, found in enumerate(answer.evidence, 1) if needle.sentence in found.text]
            row["systems"]["livingkv auto"] = {
                "text": answer.answer,
                "rank": ranks[0] if ranks else None,
                "confident": answer.confident,
                "mode": answer.mode,
                "right": needle.answered_by(answer.answer),
            }
            yield row


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Right answers and right sentences ranked first, by length, system and phrasing."""
    found: dict[str, Any] = {}
    for n_tokens in sorted({row["tokens"] for row in rows}):
        part = [row for row in rows if row["tokens"] == n_tokens]
        found[str(n_tokens)] = {"n": len(part)} | {
            name: {
                "right": sum(row["systems"][name]["right"] for row in part),
                "ranked_first": sum(row["systems"][name]["rank"] == 1 for row in part),
                "right_by_phrasing": {
                    str(phrasing): sum(row["systems"][name]["right"] for row in part if row["phrasing"] == phrasing)
                    for phrasing in sorted({row["phrasing"] for row in part})
                },
            }
            for name in part[0]["systems"]
        }
    return found


def main(
    tokens: Annotated[str, typer.Option(help="Lengths, with commas between them.")] = "8000,32000",
    needles: Annotated[int, typer.Option(help="Needles in each haystack.")] = 100,
    ask: Annotated[int, typer.Option(help="Needles asked for, in each phrasing.")] = 20,
    phrasing: Annotated[str, typer.Option(help="Which of the three phrasings, with commas.")] = "1,2,3",
    model: str | None = None,
    seed: int = 0,
    max_tokens: int = 32,
    store_dir: Annotated[Path, typer.Option(help="Where the stores are put.")] = Path("scratch/018_seed"),
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
    out: Annotated[Path, typer.Option(help="The summary.")] = HERE / "result.json",
) -> None:
    """Read, ask both, and write the summary."""
    loaded = load_model(model)
    hidden = make_needles(needles, seed=seed)
    wanted = [(int(part), needle) for needle in choose_asked(hidden, ask, seed=seed) for part in phrasing.split(",")]
    store_dir.mkdir(parents=True, exist_ok=True)
    for n_tokens in map(int, tokens.split(",")):
        done = {(row["phrasing"], row["key"]) for row in lines_of(raw) if row["tokens"] == n_tokens}
        todo = [(part, needle) for part, needle in wanted if (part, needle.key) not in done]
        if not todo:
            continue
        haystack = haystack_of(loaded, n_tokens, hidden, seed)
        for row in compare(loaded, haystack, todo, store_dir / f"{n_tokens}-seed{seed}", max_tokens):
            append_line(raw, {"tokens": n_tokens} | row)
    described = {"name": loaded.name, "dtype": str(loaded.dtype), "device": str(loaded.device)}
    found = summary(lines_of(raw))
    write_json(out, {"circumstances": circumstances(), "model": described, "seed": seed, "lengths": found})
    for length, row in found.items():
        print(length, json.dumps(row))


if __name__ == "__main__":
    typer.run(main)
