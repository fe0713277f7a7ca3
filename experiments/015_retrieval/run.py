"""What is found first: words, meaning, both, and the model's judgement behind them, for four kinds of questions.

    python experiments/015_retrieval/run.py [--embedder tokens,states,minilm] [--filler 1200] [--model MODEL]
    python experiments/015_retrieval/run.py --no-judge --filler 30000 --embedder tokens --raw FILE --out FILE

questions.json holds 162 sentences with a question each: 64 paraphrased almost without shared words, 30 lexical, 32
about code, 36 in 21 other languages. With them stand the notes of 002_retrieval, 100 needles of one type and docstring
prose in one session. For every embedder the vectors are made anew and every question probed once: the place of the
right sentence in each channel, in the fusion, and among the judged candidates, with each candidate's signs. From them
the result has recall and reciprocal ranks, orders by other weights, and weights fitted on one half of the questions and
tested on the other. --no-judge reads no text through the model: the index alone. Writes after every question; started
again with the same files it goes on.
"""

from __future__ import annotations

import json
import random
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import make_needles, shuffled_filler  # noqa: E402
from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.asking import Asking  # noqa: E402
from livingkv.index import Hit  # noqa: E402
from livingkv.index.fusion import RANK_OFFSET, WEIGHT_OF_SALIENCE  # noqa: E402
from livingkv.passages import Judged  # noqa: E402

HERE = Path(__file__).parent
SEED, N_NEEDLES, NEEDLE_STEP, DEPTH = 1, 100, 5, 128
SIGNS = ("gain", "rest_gain", "coverage", "salience")
WEIGHTS: dict[str, dict[str, float]] = {
    "gain alone": {"gain": 1.0},
    "gain + 3 coverage": {"gain": 1.0, "coverage": 3.0},
    "salience alone": {"salience": 1.0},
    **{
        f"gain + {c} coverage + {s} salience": {"gain": 1.0, "coverage": c, "salience": s}
        for c in (1.0, 2.0, 3.0)
        for s in (0.1, 0.2, 0.3)
    },
}


@dataclass(frozen=True, slots=True)
class Question:
    """A question, its kind, the half for fitting it belongs to, and the sentence that answers it."""

    kind: str
    half: int
    text: str
    gold: str


def questions() -> list[Question]:
    """Those of questions.json, and the needles in three phrasings."""
    new = json.loads((HERE / "questions.json").read_text("utf-8"))
    found = [Question(q["kind"], q["half"], q["question"], new["sentences"][q["answer"]]) for q in new["questions"]]
    needles = make_needles(N_NEEDLES, seed=SEED)
    for phrasing in (1, 2, 3):
        for index, needle in list(enumerate(needles))[::NEEDLE_STEP]:
            found.append(
                Question(f"needle, phrasing {phrasing}", index % 2, needle.question(phrasing), needle.sentence)
            )
    return found


def text_of(n_filler: int) -> bytes:
    """Notes and needles in random order, filler spread between them. Code and other languages stand in paragraphs of
    their own, the rest in paragraphs of six sentences and more."""
    new = json.loads((HERE / "questions.json").read_text("utf-8"))
    kinds = {q["answer"]: q["kind"] for q in new["questions"]}
    rows = [(text, kinds[i] in ("code", "multilingual")) for i, text in enumerate(new["sentences"])]
    notes = json.loads((HERE.parent / "002_retrieval" / "notes.json").read_text("utf-8"))["sentences"]
    rows += [(text, True) for text in notes]
    rows += [(needle.sentence, False) for needle in make_needles(N_NEEDLES, seed=SEED)]
    random.Random(f"order {SEED}").shuffle(rows)
    filler, share = shuffled_filler(SEED), n_filler / len(rows)
    paragraphs: list[list[str]] = [[]]
    for index, (text, alone) in enumerate(rows):
        paragraphs += [[text], []] if alone else []
        paragraphs[-1] += [] if alone else [text]
        paragraphs[-1] += [next(filler) for _ in range(int((index + 1) * share) - int(index * share))]
        paragraphs += [[]] if len(paragraphs[-1]) >= 6 else []
    return ("\n\n".join(" ".join(sentences) for sentences in paragraphs if sentences) + "\n").encode()


def rows_of(
    memory: Memory, embedder: str, todo: Sequence[Question], *, judge: bool, candidates: int
) -> Iterator[dict[str, Any]]:
    """One row a question: where the right sentence stands, and the signs of every judged candidate."""
    home = memory._home
    gold_of = {s.text.strip(): s.sentence_id for s in home.store().sentences_after(None, 1 << 30)}
    index = home.index.current()
    for asked in todo:
        gold = gold_of[asked.gold] if asked.gold in gold_of else _containing(gold_of, asked.gold)
        started = perf_counter()
        hits = index.probe(asked.text, limit=DEPTH)
        row: dict[str, Any] = {"embedder": embedder} | asdict(asked) | {"probe_ms": 1000 * (perf_counter() - started)}
        row["places"] = {name: _place(order(hits), gold) for name, order in CHANNELS.items()}
        if judge:
            asking = Asking(home, asked.text)
            probed = asking.probe(None)
            started = perf_counter()
            judged = asking.judge(probed)
            row["judge_ms"] = 1000 * (perf_counter() - started)
            row["places"]["judged"] = _place([hit.sentence.sentence_id for hit in judged], gold)
            row["candidates"] = [
                {name: getattr(hit, name) for name in SIGNS} | {"right": hit.sentence.sentence_id == gold}
                for hit in sorted(judged, key=lambda hit: -hit.score)[:candidates]
                if isinstance(hit, Judged) and hit.gain is not None
            ]
        yield row


def _containing(gold_of: dict[str, int], sentence: str) -> int:
    return next(i for text, i in gold_of.items() if sentence in text)


def _place(order: Sequence[int], gold: int) -> int | None:
    return order.index(gold) + 1 if gold in order else None


def _by(field: str) -> Callable[[Sequence[Hit]], list[int]]:
    def order(hits: Sequence[Hit]) -> list[int]:
        ranks = [(rank, hit.sentence_id) for hit in hits if (rank := getattr(hit, field)) is not None]
        return [sentence_id for _, sentence_id in sorted(ranks)]

    return order


def _weighed(weight: Callable[[float], float]) -> Callable[[Sequence[Hit]], list[int]]:
    """The fusion with another weight of meaning, from how far its first hit stands out."""

    def order(hits: Sequence[Hit]) -> list[int]:
        first = max((hit.salience or 0.0 for hit in hits if hit.semantic_rank == 1), default=0.0)
        change = weight(first) - WEIGHT_OF_SALIENCE * max(0.0, first)
        values = [
            (-hit.score - (change / (RANK_OFFSET + hit.semantic_rank) if hit.semantic_rank else 0.0), hit.sentence_id)
            for hit in hits
        ]
        return [sentence_id for _, sentence_id in sorted(values)]

    return order


CHANNELS: dict[str, Callable[[Sequence[Hit]], list[int]]] = {
    "lexical": _by("lexical_rank"),
    "dense": _by("semantic_rank"),
    "fused": lambda hits: [hit.sentence_id for hit in hits],
    "fused, weight 0.25": _weighed(lambda first: 0.25),
    "fused, weight 0.04 salience": _weighed(lambda first: 0.04 * first),
    "fused, weight 0.06 salience": _weighed(lambda first: 0.06 * first),
    "fused, weight 0.1 (salience - 3)": _weighed(lambda first: 0.1 * max(0.0, first - 3.0)),
}


def scores(places: Sequence[int | None]) -> dict[str, float]:
    """Recall at 1, 4, 8, 16 and 32, and the mean reciprocal rank; None is not found."""
    n = len(places)
    row: dict[str, float] = {f"at_{k}": sum(p is not None and p <= k for p in places) / n for k in (1, 4, 8, 16, 32)}
    return {"n": n, **row, "mrr": statistics.fmean(0.0 if p is None else 1 / p for p in places)}


def place_by(candidates: Sequence[dict[str, Any]], weights: dict[str, float]) -> int | None:
    """The place of the right candidate by a weighted sum of signs."""
    values = [(-sum(weights[name] * each[name] for name in weights), each["right"]) for each in candidates]
    return next((i for i, (_, right) in enumerate(sorted(values), 1) if right), None)


def fitted(rows: Sequence[dict[str, Any]], *, steps: int = 400, penalty: float = 0.01) -> dict[str, float]:
    """Weights of the signs, gain's set to 1: most likely to choose the right one of each question's candidates."""
    sets = [np.array([[c[s] for s in SIGNS] for c in row["candidates"]]) for row in rows]
    right = [np.array([c["right"] for c in row["candidates"]]) for row in rows]
    pairs = [(x, y) for x, y in zip(sets, right, strict=True) if y.any()]
    w = np.zeros(len(SIGNS))
    for _ in range(steps):
        gradient = penalty * w
        for x, y in pairs:
            p = np.exp(x @ w - (x @ w).max())
            gradient = gradient + (p / p.sum() - y / y.sum()) @ x / len(pairs)
        w = w - 0.5 * gradient
    scale = w[0] if w[0] > 1e-6 else 1.0
    return {name: float(value / scale) for name, value in zip(SIGNS, w, strict=True)}


def report(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """By embedder: scores of each channel and order by kind, the fitted weights with their test, and times."""
    document: dict[str, Any] = {}
    for embedder in dict.fromkeys(row["embedder"] for row in rows):
        own = [row for row in rows if row["embedder"] == embedder]
        kinds = {kind: [row for row in own if row["kind"] == kind] for kind in dict.fromkeys(r["kind"] for r in own)}
        names = list(own[0]["places"])
        part = {name: {k: scores([r["places"][name] for r in v]) for k, v in kinds.items()} for name in names}
        entry: dict[str, Any] = {"scores": part, "probe_ms": statistics.median(row["probe_ms"] for row in own)}
        if "judged" in names:
            for name, weights in WEIGHTS.items():
                part[name] = {k: scores([place_by(r["candidates"], weights) for r in v]) for k, v in kinds.items()}
            halves = [fitted([row for row in own if row["half"] == half]) for half in (0, 1)]
            part["fitted on the other half"] = {
                k: scores([place_by(r["candidates"], halves[1 - r["half"]]) for r in v]) for k, v in kinds.items()
            }
            entry |= {"fitted": halves, "judge_ms": statistics.median(row["judge_ms"] for row in own)}
        document[embedder] = entry
    return document


def main(
    embedder: Annotated[str, typer.Option(help="Which embedders, in turn.")] = "tokens,states,minilm",
    filler: Annotated[int, typer.Option(help="Sentences of docstring prose.")] = 1200,
    candidates: Annotated[int, typer.Option(help="Hits that the model judges.")] = 32,
    judge: Annotated[bool, typer.Option(help="Read the text through the model and have it judge.")] = True,
    model: str | None = None,
    folder: Annotated[Path | None, typer.Option(help="Keep the store there.")] = None,
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
    out: Path = HERE / "result.json",
) -> None:
    """Ask everything that was not asked yet; write result.json and print a table."""
    done = [json.loads(line) for line in raw.read_text("utf-8").splitlines()] if raw.exists() else []
    asked = {(row["embedder"], row["text"]) for row in done}
    settings = Settings(n_candidates=candidates)
    with (
        tempfile.TemporaryDirectory() as scratch,
        progress_bar() as progress,
        Memory.open((folder or Path(scratch)) / "retrieval.lkv", model=model, settings=settings) as memory,
    ):
        for name in embedder.split(","):
            todo = [question for question in questions() if (name, question.text) not in asked]
            if not todo:
                continue
            memory.ingest("text", text=text_of(filler), kv=judge)
            memory._home.engine()
            memory.reembed(name)
            bar = progress.add_task(name, total=len(todo))
            for row in rows_of(memory, name, todo, judge=judge, candidates=candidates):
                done.append(row)
                with raw.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
                progress.advance(bar)
    result = report(done)
    write_json(out, {"circumstances": circumstances(), "filler": filler, "candidates": candidates, "found": result})
    for name, entry in result.items():
        for order, kinds in entry["scores"].items():
            print(f"{name:8} {order:34}", *(f"{k} {v['at_1']:.2f}/{v['at_16']:.2f};" for k, v in kinds.items()))


if __name__ == "__main__":
    typer.run(main)
