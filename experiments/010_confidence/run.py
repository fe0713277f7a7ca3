"""How sure may auto be? Facts and needles, half of the questions without an answer, every way of reading tried.

    python experiments/010_confidence/run.py [--people 60] [--each 40] [--filler 800]

Reads one text (facts about people, needles of one type, notes in ten languages, docstring prose between them), asks
questions that are known to be answerable or not, and notes every way of reading: its signs, and whether the answer is
right. Half of the properties and needles fit a logistic regression, the other half test it; the weights are those of
livingkv/confidence.py. Writes after every question; started again with the same arguments it goes on. Several
processes can share the questions: each takes one shard and writes a raw file of its own; put together (cat), they are
the raw file of one run, which the same command without --shard fits.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.facts import PROPERTIES, Fact, fold, make_facts, make_questions  # noqa: E402
from experiments.haystack import make_needles, shuffled_filler  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory, confidence  # noqa: E402
from livingkv.asking import Asking  # noqa: E402
from livingkv.auto import ways  # noqa: E402
from livingkv.confidence import MOST_LIFT  # noqa: E402
from livingkv.question import names_held, names_in  # noqa: E402
from livingkv.sampling import Sampling  # noqa: E402

HERE = Path(__file__).parent
NOTES = json.loads((HERE.parent / "002_retrieval" / "notes.json").read_text("utf-8"))
NAMES = ("rest_gain", "behind", "names", "found", "bound", "lift")
IN_USE = [*(confidence._WEIGHTS[name] for name in NAMES), confidence._BIAS]
N_NEEDLES = 100
N_PARAGRAPHS = 20


@dataclass(frozen=True, slots=True)
class Asked:
    """A question, what kind it is, which half it belongs to, and the value that answers it."""

    kind: str
    text: str
    half: int
    value: str | None
    gold: str | None


def rows_of(people: int, seed: int) -> tuple[list[Fact], list[str]]:
    """The facts that are asked for, and all rows of the text that are not filler."""
    facts = make_facts(people, 4, seed=seed)
    known = {fact.person for fact in facts}
    told = {item.name: item for item in PROPERTIES}
    paragraphs: dict[str, str] = {}
    for fact in make_facts(people + 3 * N_PARAGRAPHS, 3, seed=seed + 9):
        if fact.person in known or (fact.person not in paragraphs and len(paragraphs) == N_PARAGRAPHS):
            continue
        again = told[fact.name].again.format(v=fact.value)
        paragraphs[fact.person] = f"{paragraphs[fact.person]} {again}" if fact.person in paragraphs else fact.text
    needles = [needle.sentence for needle in make_needles(N_NEEDLES, seed=seed)]
    return facts, [*needles, *(fact.text for fact in facts), *NOTES["sentences"], *paragraphs.values()]


def text_of(rows: Sequence[str], n_filler: int, seed: int) -> bytes:
    """The rows in random order with filler between them, in paragraphs of six."""
    generator = random.Random(f"order {seed}")
    rows = list(rows)
    generator.shuffle(rows)
    filler = shuffled_filler(seed)
    share = n_filler / len(rows)
    lines: list[str] = []
    for index, row in enumerate(rows):
        lines.append(row)
        lines += [next(filler) for _ in range(int((index + 1) * share) - int(index * share))]
    return ("\n\n".join(" ".join(lines[lo : lo + 6]) for lo in range(0, len(lines), 6)) + "\n").encode()


def questions(facts: Sequence[Fact], each: int, seed: int) -> Iterator[Asked]:
    """Answerable ones and others, in random order."""
    found = [
        Asked(f"fact {q.kind.name}, phrasing {q.phrasing}", q.text, fold(q.name), q.value, q.fact)
        for q in make_questions(facts, each, seed=seed)
    ]
    needles = make_needles(2 * N_NEEDLES, seed=seed)
    for index in range(each):
        phrasing, there, absent = index % 3 + 1, needles[index], needles[N_NEEDLES + index]
        found.append(
            Asked(f"needle, phrasing {phrasing}", there.question(phrasing), index % 2, there.value, there.sentence)
        )
        found.append(Asked(f"needle absent, phrasing {phrasing}", absent.question(phrasing), index % 2, None, None))
    found += [Asked("note absent", text, index % 2, None, None) for index, text in enumerate(NOTES["unanswerable"])]
    random.Random(f"asked {seed}").shuffle(found)
    yield from found


def is_right(value: str | None, answer: str) -> bool:
    """Whether the value stands in the answer, separators of thousands or not."""
    return value is not None and value.replace(",", "").casefold() in answer.replace(",", "").casefold()


def tried(memory: Memory, asked: Asked) -> dict[str, Any]:
    """Every way of reading for one question: its signs, its answer, and whether it is right; and what was found."""
    home = memory._home
    asking = Asking(home, asked.text)
    probed = asking.probe(None)
    judged = asking.judge(probed)
    gold = (asked.gold or "-").strip()
    row: dict[str, Any] = asdict(asked) | {
        "rank": next((i for i, hit in enumerate(judged, 1) if gold in hit.sentence.text), None),
        "hits": [
            [hit.gain, hit.rest_gain, hit.coverage, hit.salience, names_held(names_in(asked.text), [hit.sentence.text])]
            for hit in judged
        ],
        "ways": [],
    }
    for way in ways(judged, names_in(asked.text)):
        passages = asking.passages(way.hits, grown=way.grown)
        answer = asking.read(way.mode, probed, passages, 28, Sampling(), (), None, way.reason)
        assert asking.signs is not None
        right = is_right(asked.value, answer.answer)
        row["ways"].append(
            {"mode": answer.mode, "grown": way.grown, "right": right, "answer": answer.answer}
            | asdict(asking.signs)
            | {"log_probabilities": [round(value, 3) for value in asking.log_probabilities]}
        )
    return row


def features(way: dict[str, Any]) -> list[float]:
    """What the regression sees of one way of reading; raw files hold more."""
    return [min(MOST_LIFT, way[name]) if name == "lift" else way[name] for name in NAMES]


def fit(rows: Sequence[tuple[list[float], bool]], *, penalty: float = 0.01) -> np.ndarray:
    """Weights and bias of a logistic regression by Newton steps; classes weighted as they come."""
    x = np.array([[*features, 1.0] for features, _ in rows])
    y = np.array([right for _, right in rows], float)
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-x @ w))
        gradient = x.T @ (p - y) + penalty * len(y) * w * ([1.0] * (len(w) - 1) + [0.0]) / 10
        hessian = (x * (p * (1 - p))[:, None]).T @ x + np.eye(len(w)) * penalty * len(y) / 10
        w -= np.linalg.solve(hessian, gradient)
    return w


def main(
    people: Annotated[int, typer.Option(help="People with four stored facts each.")] = 60,
    each: Annotated[int, typer.Option(help="Questions of each kind.")] = 40,
    filler: Annotated[int, typer.Option(help="Sentences of docstring prose.")] = 800,
    model: str | None = None,
    seed: int = 0,
    folder: Annotated[Path | None, typer.Option(help="Keep the store there.")] = None,
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
    out: Annotated[Path, typer.Option(help="The fit and its test.")] = HERE / "result.json",
    shard: Annotated[str, typer.Option(help="I/N: every N-th question from the I-th on, asked and not fitted.")] = "",
) -> None:
    """Ask, fit, test; print the table and write the result."""
    facts, rows = rows_of(people, seed)
    wanted = list(questions(facts, each, seed))
    if shard:
        first, step = (int(part) for part in shard.split("/"))
        wanted = wanted[first::step]
    done = {json.loads(line)["text"] for line in raw.read_text("utf-8").splitlines()} if raw.exists() else set()
    if todo := [asked for asked in wanted if asked.text not in done]:
        with (
            tempfile.TemporaryDirectory() as scratch,
            Memory.open((folder or Path(scratch)) / "confidence.lkv", model=model) as memory,
        ):
            memory.ingest("text", text=text_of(rows, filler, seed))
            for asked in track(todo, "asking"):
                with raw.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(tried(memory, asked)) + "\n")
    if shard:
        return
    report = judged_rows([json.loads(line) for line in raw.read_text("utf-8").splitlines()])
    write_json(out, {"circumstances": circumstances(), "seed": seed, "each": each} | report)
    print(json.dumps(report, indent=1))


def judged_rows(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Fit on half 0, test on half 1: first convincing way, as auto does."""
    training = [(features(way), way["right"]) for row in rows if row["half"] == 0 for way in row["ways"]]
    weights = fit(training)
    test = [row for row in rows if row["half"] == 1]
    report: dict[str, Any] = {"weights": dict(zip((*NAMES, "bias"), map(float, weights), strict=True))}
    report["n_training"] = len(training)
    for name, part in (("training", [row for row in rows if row["half"] == 0]), ("test", test)):
        report[name] = outcome(part, weights)
    report["with the weights in use, all rows"] = outcome(rows, np.array(IN_USE))
    return report


def outcome(rows: Sequence[dict[str, Any]], weights: np.ndarray) -> dict[str, Any]:
    """What auto would have said with these weights, by kind of question, and the reliability of its confidence."""
    kinds: dict[str, dict[str, int]] = {}
    bins: dict[int, list[bool]] = {}
    for row in rows:
        sure, right = 0.0, False
        for way in row["ways"]:
            score = float(np.dot([*features(way), 1.0], weights))
            surer = 1.0 / (1.0 + np.exp(-score))
            if surer > sure:
                sure, right = surer, way["right"]
            if surer >= confidence.CONFIDENT:
                break
        bins.setdefault(min(9, int(sure * 10)), []).append(right)
        kind = kinds.setdefault(row["kind"], {"n": 0, "given": 0, "right": 0, "first": 0})
        kind["n"] += 1
        kind["first"] += row["rank"] == 1
        kind["given"] += bool(sure >= confidence.CONFIDENT)
        kind["right"] += bool(sure >= confidence.CONFIDENT and right)
    reliability = {f"{b / 10:.1f}": {"n": len(v), "right": sum(v) / len(v)} for b, v in sorted(bins.items())}
    return {"kinds": dict(sorted(kinds.items())), "totals": totals(kinds), "reliability": reliability}


def totals(kinds: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    """The kinds together: with an answer, without one, and of these the known persons."""
    parts = {
        "answerable": [kind for name, kind in kinds.items() if "STORED" in name or name.startswith("needle,")],
        "unanswerable": [kind for name, kind in kinds.items() if not ("STORED" in name or name.startswith("needle,"))],
        "known person": [kind for name, kind in kinds.items() if "OTHER_PROPERTY" in name],
    }
    return {name: {key: sum(kind[key] for kind in part) for key in part[0]} for name, part in parts.items() if part}


if __name__ == "__main__":
    typer.run(main)
