"""Does stored KV get better when a block of a document attends similar earlier passages while it is read?

    python experiments/017_ingest_recall/run.py [--tokens 6000] [--each 24] [--recalled 0,3,16]

One text of facts and needles (experiments/mixed_text.py), read once for every number of recalled sentences a cell
(cells.py). The sentence that answers is given, so that only reading is measured, and greedy answers come from the
stored KV of that sentence alone, of it among the three sentences most like it, and of its passage of up to 96 tokens.
The reranker ranks it among the fifteen sentences most like it: its place, and by how much it leads the best other. A
JSON line a question; what is there is not asked again. Asks in one process: the text is short.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.mixed_text import Asked, find_row, mixed_questions, mixed_text  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.shards import append_line, lines_of  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.likelihood import Candidate, question_gains  # noqa: E402
from livingkv.models import load_model  # noqa: E402
from livingkv.recall import QUESTION_LEAD  # noqa: E402
from livingkv.text import split_sentences  # noqa: E402

HERE = Path(__file__).parent
Span = importlib.import_module("experiments.011_span.run")
Cells = importlib.import_module("experiments.017_ingest_recall.cells")

PASSAGE_TOKENS = 96
N_OTHERS, N_RANKED = 3, 15


def document_of(engine: Engine, text: bytes) -> Any:
    """The text as a Document; sentences without tokens are left out."""
    spans = split_sentences(text)
    encoded = engine.words.encode_sentences(text, spans)
    lead = engine.words.framing.prologue
    kept = [
        (text[span.byte_lo : span.byte_hi].decode().strip(), (lo + len(lead), hi + len(lead)))
        for span, (lo, hi) in zip(spans, encoded.sentence_tokens, strict=True)
        if lo < hi
    ]
    texts = [words for words, _ in kept]
    vectors = engine.embedder().embed(texts)
    return Cells.Document([*lead, *encoded.token_ids], [span for _, span in kept], texts, vectors)


class Bench:
    """The document as it was read in every way, and what is tried on it."""

    def __init__(self, engine: Engine, document: Any, recalled: Sequence[int]) -> None:
        self._engine, self._document = engine, document
        self._n_sinks = len(engine.words.framing.prologue)
        self.read: dict[int, Any] = {}
        self.cost: dict[str, dict[str, float]] = {}
        for n in recalled:
            start = perf_counter()
            self.read[n] = Cells.ReadDocument(engine, document, self._n_sinks, n)
            if engine.model.device.type == "cuda":
                torch.cuda.synchronize(engine.model.device)
            seconds = perf_counter() - start
            self.cost[str(n)] = {"seconds": round(seconds, 2), "recalled_tokens": self.read[n].n_attended}

    def tried(self, asked: Asked) -> dict[str, Any]:
        """Answers and ranks for one question, by the number of recalled sentences."""
        gold = find_row(self._document.texts, asked.gold)
        likeness = self._document.vectors @ self._document.vectors[gold]
        others = [int(each) for each in np.argsort(-likeness, kind="stable") if each != gold]
        lo, hi = self._passage(gold)
        ways: dict[str, Candidate] = {}
        for n, read in self.read.items():
            ways[f"sentence, {n}"] = read.sentence(gold)
            ways[f"among four, {n}"] = read.together([gold, *others[:N_OTHERS]])
            ways[f"passage, {n}"] = read.run(lo, hi)
        sinks = next(iter(self.read.values())).run(0, self._n_sinks)
        texts = Span.answers(self._engine, sinks, list(ways.values()), asked.text)
        said = dict(zip(ways, texts, strict=True))
        ranks = {str(n): self._ranked(read, sinks, asked, [gold, *others[:N_RANKED]]) for n, read in self.read.items()}
        right = {way: asked.answered_by(text) for way, text in said.items()}
        return {"kind": asked.kind, "phrasing": asked.phrasing, "right": right, "ranked": ranks, "said": said}

    def _passage(self, gold: int) -> tuple[int, int]:
        """The sentence with what follows and what stands before it, in turns, up to 96 tokens."""
        lo = hi = gold
        spans = self._document.spans
        grown = True
        while grown:
            grown = False
            if hi + 1 < len(spans) and spans[hi + 1][1] - spans[lo][0] <= PASSAGE_TOKENS:
                hi, grown = hi + 1, True
            if lo > 0 and spans[hi][1] - spans[lo - 1][0] <= PASSAGE_TOKENS:
                lo, grown = lo - 1, True
        return spans[lo][0], spans[hi][1]

    def _ranked(self, read: Any, sinks: Candidate, asked: Asked, indices: Sequence[int]) -> dict[str, float]:
        """Place of the first candidate by gain, and by how many nats a token it leads (or trails) the best other."""
        words = self._engine.words
        candidates = [read.sentence(index) for index in indices]
        lead, question = words.encode(QUESTION_LEAD), words.encode(asked.text)
        gains = question_gains(self._engine.runner, sinks, candidates, lead, question).mean(1)
        return {
            "rank": int((gains > gains[0]).sum()) + 1,
            "lead": round(float(gains[0] - gains[1:].max()), 4),
            "gain": round(float(gains[0]), 4),
        }


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Right answers and ranks by the number of recalled sentences, of facts and needles apart too."""
    kinds = {"all": list(lines)} | {kind: [row for row in lines if row["kind"] == kind] for kind in ("fact", "needle")}
    found: dict[str, Any] = {"n": {kind: len(rows) for kind, rows in kinds.items()}}
    found["right"] = {
        way: {kind: sum(row["right"][way] for row in rows) for kind, rows in kinds.items()}
        for way in sorted(lines[0]["right"])
    }
    found["reranker"] = {
        n: {
            kind: {
                "first": sum(row["ranked"][n]["rank"] == 1 for row in rows),
                "median_lead": sorted(row["ranked"][n]["lead"] for row in rows)[len(rows) // 2],
                "median_gain": sorted(row["ranked"][n]["gain"] for row in rows)[len(rows) // 2],
            }
            for kind, rows in kinds.items()
            if rows
        }
        for n in lines[0]["ranked"]
    }
    return found


def main(
    tokens: Annotated[int, typer.Option(help="Length of the text.")] = 6000,
    each: Annotated[int, typer.Option(help="Questions, facts and needles in turn; at most 80.")] = 24,
    recalled: Annotated[str, typer.Option(help="Sentences that a cell attends, with commas between.")] = "0,3,16",
    model: str | None = None,
    seed: int = 0,
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
    out: Annotated[Path, typer.Option(help="The summary.")] = HERE / "result.json",
) -> None:
    """Read the text in every way, ask, and write the summary."""
    loaded = load_model(model)
    engine = Engine.of(loaded, "lossless")

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in loaded.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    numbers = list(map(int, recalled.split(",")))
    document = document_of(engine, mixed_text(tokens, seed=seed, count_tokens=count))
    done = {line["text"] for line in lines_of(raw)}
    if todo := [asked for asked in mixed_questions(each, seed=seed) if asked.text not in done]:
        bench = Bench(engine, document, numbers)
        print(json.dumps(bench.cost))
        for asked in track(todo, "asking"):
            append_line(raw, {"text": asked.text, "cost": bench.cost} | bench.tried(asked))
    lines = lines_of(raw)
    head = {"circumstances": circumstances(), "model": loaded.name, "seed": seed, "tokens": len(document.token_ids)}
    write_json(out, head | {"cost": lines[-1]["cost"]} | summary(lines))
    print(json.dumps(summary(lines), indent=1))


if __name__ == "__main__":
    typer.run(main)
