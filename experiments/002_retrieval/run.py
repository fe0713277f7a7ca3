"""What the index finds first: words, meaning and both, on notes in many languages and on needles of one type.

    python experiments/002_retrieval/run.py MODEL_FOLDER [--filler 2000,30000] [--embedder tokens,states,minilm]

notes.json holds 74 sentences (notes, code, ten languages) and 64 questions of six kinds; the filler is docstring prose.
The dense channel is made of the model's input embeddings, of its own states, or by MiniLM where that extra is there;
what an earlier run found of embedders that are left out stays in the result. Recall at 1, 4, 8, 16 and the mean
reciprocal rank of each channel and of the fusion, other fusions and term weights beside them, then the time and the
space that the index takes.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import torch
import typer
from rich.progress import track
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import PHRASINGS, docstring_sentences, make_needles  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.embedder_choice import make_embedder  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.errors import ModelNotFound  # noqa: E402
from livingkv.index import (  # noqa: E402
    Embedder,
    Entry,
    Hit,
    Index,
    TokenEmbedder,
    map_embedding_matrix,
)
from livingkv.index.fusion import RANK_OFFSET, SEMANTIC_WEIGHT  # noqa: E402
from livingkv.models import load_model  # noqa: E402
from livingkv.settings import Settings  # noqa: E402

HERE = Path(__file__).parent
SEED = 1
N_NEEDLES = 100
DEPTH = 128  # all that both channels return
BATCH = 500
COST_TURNS, COST_SENTENCES = 5, 40

Ranking = Callable[[Sequence[Hit]], list[int]]


@dataclass(frozen=True, slots=True)
class Question:
    """A question and the place of its answer among the sentences."""

    kind: str
    text: str
    answer: int


def main(
    model: Annotated[Path, typer.Argument(help="Hugging Face folder: tokenizer.json and safetensors.")],
    filler: Annotated[str, typer.Option(help="Filler sentences, one run for each number.")] = "2000,30000",
    embedder: Annotated[str, typer.Option(help="Which embedders.")] = "tokens,states,minilm",
) -> None:
    """Run everything and write result.json beside this file."""
    others = docstring_sentences()
    random.Random(SEED).shuffle(others)
    earlier = json.loads((HERE / "result.json").read_text("utf-8"))
    document: dict[str, Any] = {**earlier, "seed": SEED, "model": model.name}
    counts = [int(number) for number in filler.split(",") if number]
    for name, made in embedders(model, embedder.split(",")):
        if counts:
            document["runs"] = [run for run in document["runs"] if run.get("name") != name]
        for count in counts:
            run = {"name": name, **measure(made, others[:count]), "circumstances": circumstances()}
            document["runs"].append(run)
            show(run)
        if name == "states":
            document["cost_of_states"] = cost_of_states(Engine.of(load_model(model), "int8"), others)
            print(json.dumps(document["cost_of_states"], indent=1))
        if name == "tokens":
            document["costs"] = costs(made, others)
            print(json.dumps(document["costs"], indent=1))
    write_json(HERE / "result.json", document)


def embedders(model: Path, names: Sequence[str]) -> Iterator[tuple[str, Embedder]]:
    """Those of the names that can be had."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    for name in names:
        try:
            if name == "tokens":
                yield name, TokenEmbedder(map_embedding_matrix(model), encode, name=model.name)
            else:
                yield name, make_embedder(Engine.of(load_model(model), "int8"), name)
        except ModelNotFound as error:
            print(error)


class Remembering:
    """An embedder that embeds each text once: a question is asked for many rankings."""

    def __init__(self, embedder: Embedder) -> None:
        self.id, self.dimension = embedder.id, embedder.dimension
        self._embedder = embedder
        self._known: dict[str, npt.NDArray[np.float32]] = {}

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See Embedder."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        self._known.update(zip(new, self._embedder.embed(new), strict=True))
        return np.stack([self._known[text] for text in texts])


def measure(embedder: Embedder, others: Sequence[str]) -> dict[str, Any]:
    """Recall of every ranking over notes, needles and filler in one index."""
    notes = json.loads((HERE / "notes.json").read_text("utf-8"))
    needles = make_needles(N_NEEDLES, seed=SEED)
    sentences = [*notes["sentences"], *(needle.sentence for needle in needles), *others]
    questions = [Question(row["kind"], row["question"], row["answer"]) for row in notes["questions"]]
    first = len(notes["sentences"])
    for phrasing in PHRASINGS:
        kind = f"needles, phrasing {phrasing}"
        questions += [Question(kind, one.question(phrasing), first + row) for row, one in enumerate(needles)]
    with tempfile.TemporaryDirectory() as folder, Index.recreate(Path(folder), Remembering(embedder)) as index:
        feed(index, sentences)
        rows = {name: score(index, questions, ranking) for name, ranking in RANKINGS.items()}
        for name, setting, value in ABLATIONS:
            with patch(f"livingkv.index.analysis.{setting}", value):
                rows[name] = score(index, questions, by_rank("lexical_rank"))
    return {"embedder": embedder.id, "dimension": embedder.dimension, "n_sentences": len(sentences), "scores": rows}


def feed(index: Index, sentences: Sequence[str]) -> None:
    """Add all sentences, in batches, and make them durable."""
    for lo in track(range(0, len(sentences), BATCH), "indexing"):
        index.add(Entry(lo + row, 0, text) for row, text in enumerate(sentences[lo : lo + BATCH]))
        index.commit(min(lo + BATCH, len(sentences)) - 1)
    index.flush()


def score(index: Index, questions: Sequence[Question], ranking: Ranking) -> dict[str, dict[str, float]]:
    """Recall at 1, 4, 8, 16 and the mean reciprocal rank, by kind of question; "notes" is all of notes.json."""
    places: dict[str, list[float]] = {}
    for question in questions:
        found = ranking(index.probe(question.text, limit=DEPTH))
        place = found.index(question.answer) + 1 if question.answer in found else float("inf")
        places.setdefault(question.kind, []).append(place)
        if not question.kind.startswith("needles"):
            places.setdefault("notes", []).append(place)
    return {kind: summary(values) for kind, values in places.items()}


def summary(places: Sequence[float]) -> dict[str, float]:
    """Places into recalls and reciprocal rank."""
    row: dict[str, float] = {f"at_{k}": sum(place <= k for place in places) / len(places) for k in (1, 4, 8, 16)}
    return {"n": len(places), **row, "mrr": statistics.fmean(1 / place for place in places)}


def fused(hits: Sequence[Hit]) -> list[int]:
    """As the index orders them."""
    return [hit.sentence_id for hit in hits]


def by_rank(field: str) -> Ranking:
    """One channel alone."""

    def ranking(hits: Sequence[Hit]) -> list[int]:
        found = [(rank, hit.sentence_id) for hit in hits if (rank := getattr(hit, field)) is not None]
        return [sentence_id for _, sentence_id in sorted(found)]

    return ranking


def constant(offset: int, weight: float) -> Ranking:
    """Reciprocal rank fusion with a constant weight of the semantic channel."""

    def ranking(hits: Sequence[Hit]) -> list[int]:
        def value(hit: Hit) -> float:
            lexical = 1 / (offset + hit.lexical_rank) if hit.lexical_rank else 0.0
            return lexical + (weight / (offset + hit.semantic_rank) if hit.semantic_rank else 0.0)

        return [hit.sentence_id for hit in sorted(hits, key=lambda hit: (-value(hit), hit.sentence_id))]

    return ranking


def by_share(weight: float) -> Ranking:
    """As `fused`, with another weight of the semantic channel."""

    def ranking(hits: Sequence[Hit]) -> list[int]:
        def value(hit: Hit) -> float:
            semantic = 1 / (RANK_OFFSET + hit.semantic_rank) if hit.semantic_rank else 0.0
            return hit.score + (weight - SEMANTIC_WEIGHT) * semantic

        return [hit.sentence_id for hit in sorted(hits, key=lambda hit: (-value(hit), hit.sentence_id))]

    return ranking


RANKINGS: dict[str, Ranking] = {
    "lexical": by_rank("lexical_rank"),
    "dense": by_rank("semantic_rank"),
    "fused": fused,
    **{f"semantic weight {weight}": by_share(weight) for weight in (0.15, 0.25, 0.35, 0.5, 0.7, 1.0)},
    "constant weights, offset 60, semantic 0.5": constant(60, 0.5),
    "constant weights, offset 60, semantic 1": constant(60, 1.0),
    "constant weights, offset 1, semantic 0.5": constant(1, 0.5),
    "constant weights, offset 1, semantic 1": constant(1, 1.0),
}

ABLATIONS = (
    ("lexical without stems and prefixes", "_VARIANT_WEIGHT", 0.0),
    ("lexical, question words at full weight", "_QUESTION_WORD_WEIGHT", 1.0),
)


def costs(embedder: Embedder, sentences: Sequence[str]) -> dict[str, Any]:
    """Milliseconds and bytes: a chat turn of four sentences, a flush, a probe, an open."""
    with tempfile.TemporaryDirectory() as folder:
        index = Index.recreate(Path(folder), embedder)
        feed(index, sentences)
        n = len(sentences)
        turns, flushes = [], []
        for turn in range(100):
            index.add(Entry(n + 4 * turn + row, 1, sentences[4 * turn + row]) for row in range(4))
            turns.append(milliseconds(partial(index.commit, n + 4 * turn + 3)))
            if turn % 10 == 9:
                flushes.append(milliseconds(index.flush))
        asked = [f"What does it say about {text.split()[3]} and {text.split()[-1]}" for text in sentences[:100]]
        probes = [milliseconds(partial(index.probe, text, limit=8)) for text in asked]
        size = index.size_bytes
        index.close()
        opening = [
            milliseconds(lambda: Index.open(Path(folder), embedder, "read").probe("x", limit=1)) for _ in range(5)
        ]
    return {
        "n_sentences": n,
        "commit_of_a_turn_ms": spread(turns),
        "flush_ms": spread(flushes),
        "probe_ms": spread(probes),
        "open_and_first_probe_ms": spread(opening),
        "bytes_per_sentence": size / (n + 400),
    }


def cost_of_states(engine: Engine, sentences: Sequence[str]) -> dict[str, Any]:
    """CPU seconds of reading a text into a session, and of embedding its sentences by the model's states; in turns."""
    embedder = engine.state_embedder()
    embedder.embed(["Measured first."])
    reads, embeds, n_tokens = [], [], 0
    for turn in range(COST_TURNS):
        texts = sentences[turn * COST_SENTENCES : (turn + 1) * COST_SENTENCES]
        ids = engine.words.encode(" ".join(texts))
        hot = engine.hot_window(Settings(), len(engine.words.framing.prologue))
        engine.runner.read(torch.tensor(engine.words.framing.prologue), hot)
        cpu = time.process_time()
        engine.runner.read(torch.tensor(ids), hot)
        read = time.process_time()
        embedder.embed(texts)
        reads.append(read - cpu)
        embeds.append(time.process_time() - read)
        n_tokens += len(ids)
    shares = [embed / read for embed, read in zip(embeds, reads, strict=True)]
    return {
        "circumstances": circumstances(),
        "n_sentences": COST_TURNS * COST_SENTENCES,
        "n_tokens": n_tokens,
        "read_cpu_s": spread(reads),
        "embed_cpu_s": spread(embeds),
        "embed_to_read": spread(shares),
    }


def milliseconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    started = time.perf_counter()
    call()
    return (time.perf_counter() - started) * 1000


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median and extremes."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def show(run: dict[str, Any]) -> None:
    """One line for each ranking."""
    print(f"\n{run['embedder']}, {run['n_sentences']} sentences: recall at 1 / 4 / 8, MRR")
    for name, kinds in run["scores"].items():
        cells = (
            f"{kind} {row['at_1']:.2f} {row['at_4']:.2f} {row['at_8']:.2f} {row['mrr']:.2f}"
            for kind, row in kinds.items()
        )
        print(f"  {name}: " + "; ".join(cells))


if __name__ == "__main__":
    typer.run(main)
