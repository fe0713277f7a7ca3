"""Lengths times depths: single needles at given depths, and 100 or 1,000 of one type, modes side by side.

    python experiments/001_needle/grid.py --tokens 8000,128000,1000000 --texts single,100,1000 --processes 8

Every text is read once into a store of its own; all modes ask that store, which is only read. Texts and questions are
shared by the processes, the longest texts first. A JSON line an answer in the raw file; started again with the same
arguments, also with more lengths, texts, samples or modes, it goes on where it stopped. Writes a summary; plot.py draws
the heat map.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, peak_memory_bytes, write_json  # noqa: E402
from experiments.shards import append_line, lines_of, part_of, run_shards  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.models import LoadedModel, load_model  # noqa: E402
from livingkv.results import Mode  # noqa: E402

HERE = Path(__file__).parent
Texts = importlib.import_module("experiments.001_needle.texts")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured."""

    texts: tuple[Any, ...]
    depths: tuple[int, ...]
    phrasings: tuple[int, ...]
    modes: tuple[str, ...]
    ask: int
    seed: int
    max_tokens: int
    settings: Settings

    def questions(self) -> list[tuple[str, Any]]:
        """(mode, question) of everything that is asked, text by text."""
        return [
            (mode, question)
            for text in self.texts
            for mode in self.modes
            for question in Texts.questions(text, self.depths, self.phrasings, self.ask, self.seed)
        ]


def identity(row: dict[str, Any]) -> tuple[Any, ...]:
    """What an answer belongs to."""
    return row["tokens"], row["needles"], row["sample"], row["mode_asked"], row["question"]


def read_texts(plan: Plan, texts: Sequence[Any], model: LoadedModel, stores: Path, raw: Path) -> None:
    """Each text into its store. What is there is skipped, what was broken off goes on."""

    def count(rows: Sequence[str]) -> list[int]:
        return [len(ids) for ids in model.tokenizer(list(rows), add_special_tokens=False)["input_ids"]]

    done = {row["text"] for row in lines_of(raw)}
    for text in texts:
        if text.name in done:
            continue
        body = Texts.write_text(text, plan.depths, plan.seed, count)
        with Memory.open(stores / f"{text.name}-seed{plan.seed}", model=model, settings=plan.settings) as memory:
            start = time.perf_counter()
            memory.ingest("haystack", text=body)
            row = {"text": text.name, "bytes": len(body), "seconds": time.perf_counter() - start}
            row |= {"stored_tokens": memory.session("default").n_tokens, "peak_memory_bytes": peak_memory_bytes()}
        append_line(raw, row)


def ask(plan: Plan, wanted: Sequence[tuple[str, Any]], model: LoadedModel, stores: Path) -> Iterator[dict[str, Any]]:
    """One row an answer. A store is opened once for all that is asked of it."""
    memory: Memory | None = None
    opened = None
    try:
        for mode, question in track(wanted, "asking"):
            if question.text != opened or memory is None:
                if memory is not None:
                    memory.close()
                store = stores / f"{question.text.name}-seed{plan.seed}"
                memory = Memory.open(store, model=model, settings=plan.settings, read_only=True)
                opened = question.text
            answer = memory.ask(question.question, mode=cast(Mode, mode), max_tokens=plan.max_tokens)
            ranks = [rank for rank, found in enumerate(answer.evidence, 1) if question.sentence in found.text]
            yield {
                **{key: value for key, value in asdict(question).items() if key not in ("text", "sentence")},
                **asdict(question.text),
                "mode_asked": mode,
                "correct": Texts.answered(question, answer.answer),
                "evidence_rank": ranks[0] if ranks else None,
                "answer": answer.answer,
                "mode": answer.mode,
                "confident": answer.confident,
                "confidence": answer.confidence,
                "prefilled_tokens": answer.prefilled_tokens,
                "reused_tokens": answer.reused_tokens,
                "total_ms": answer.timings_ms.total,
            }
    finally:
        if memory is not None:
            memory.close()


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For every length, kind of text and mode: n, right ones, wrong but confident ones; by depth or by phrasing."""
    found = []
    for tokens, needles, mode in sorted({(row["tokens"], row["needles"], row["mode_asked"]) for row in rows}):
        part = [row for row in rows if (row["tokens"], row["needles"], row["mode_asked"]) == (tokens, needles, mode)]
        name = "phrasing" if needles else "depth"
        found.append(
            {"tokens": tokens, "needles": needles, "mode": mode, **counts(part)}
            | {f"by_{name}": {str(at): counts([row for row in part if row[name] == at]) for at in _values(part, name)}}
        )
    return found


def _values(rows: Sequence[dict[str, Any]], name: str) -> list[int]:
    return sorted({row[name] for row in rows})


def counts(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Answers counted, and the median of their times."""
    return {
        "n": len(rows),
        "correct": sum(row["correct"] for row in rows),
        "wrong_but_confident": sum(row["confident"] and not row["correct"] for row in rows),
        "evidence_first": sum(row["evidence_rank"] == 1 for row in rows),
        "median_ms": round(sorted(row["total_ms"] for row in rows)[len(rows) // 2], 1),
    }


def run_here(plan: Plan, shard: str, phase: str, model: str | None, stores: Path, raw: Path, reads: Path) -> None:
    """One process's part of the reading, of the asking, or of both."""
    loaded = load_model(model)
    longest_first = sorted(plan.texts, key=lambda text: -text.tokens)
    if phase in ("read", "both"):
        read_texts(plan, part_of(longest_first, shard), loaded, stores, reads)
    if phase in ("ask", "both"):
        done = {identity(row) for row in lines_of(raw)}
        todo = [
            (mode, one)
            for mode, one in part_of(plan.questions(), shard)  # the same parts, whatever others have answered meanwhile
            if (one.text.tokens, one.text.needles, one.text.sample, mode, one.question) not in done
        ]
        for row in ask(plan, todo, loaded, stores):
            append_line(raw, row)


def main(
    tokens: Annotated[str, typer.Option(help="Lengths, with commas between them.")] = "8000,32000",
    texts: Annotated[str, typer.Option(help="single, or numbers of needles of one type, with commas.")] = "single,100",
    depths: Annotated[str, typer.Option(help="In percent, at most eleven.")] = "0,10,20,30,40,50,60,70,80,90,100",
    samples: Annotated[int, typer.Option(help="Texts of each length and kind.")] = 1,
    modes: Annotated[str, typer.Option(help="With commas between them.")] = "auto,kv,ground",
    phrasing: Annotated[str, typer.Option(help="Which of the three phrasings, with commas.")] = "1,2,3",
    ask_n: Annotated[int, typer.Option("--ask", help="Needles of one type asked for, in each phrasing.")] = 20,
    seed: int = 0,
    model: str | None = None,
    max_tokens: Annotated[int, typer.Option(help="The longest answer, in tokens.")] = 32,
    settings: Annotated[str, typer.Option(help="Settings of the memory, as JSON.")] = "{}",
    processes: Annotated[int, typer.Option(help="So many processes read, then ask, at once.")] = 1,
    shard: Annotated[str, typer.Option(help="I/N: one process's part, no summary.")] = "",
    phase: Annotated[str, typer.Option(help="read, ask or both.")] = "both",
    store_dir: Annotated[Path, typer.Option(help="Where the stores are put.")] = Path("scratch/001_grid"),
    out: Annotated[Path, typer.Option(help="The summary; the raw file stands beside it.")] = HERE / "grid.json",
) -> None:
    """Read the texts, ask in every mode, and write the summary."""
    plan = Plan(
        texts=tuple(
            Texts.Text(int(n), 0 if kind == "single" else int(kind), sample)
            for n in tokens.split(",")
            for kind in texts.split(",")
            for sample in range(samples)
            if kind == "single" or int(n) >= 60 * int(kind)
        ),
        depths=tuple(map(int, depths.split(","))),
        phrasings=tuple(map(int, phrasing.split(","))),
        modes=tuple(modes.split(",")),
        ask=ask_n,
        seed=seed,
        max_tokens=max_tokens,
        settings=Settings.from_dict(json.loads(settings)),
    )
    raw, reads = out.with_suffix(".jsonl"), out.with_name(f"{out.stem}_read.jsonl")
    store_dir.mkdir(parents=True, exist_ok=True)
    if shard or processes == 1:
        run_here(plan, shard, phase, model, store_dir, raw, reads)
    else:
        for each in ("read", "ask") if phase == "both" else (phase,):
            run_shards(Path(__file__), [*sys.argv[1:], "--phase", each], processes)
    if shard:
        return
    rows = lines_of(raw)
    described = {"model": model and Path(model).name, "seed": seed, "settings": json.loads(settings)}
    found = summary(rows)
    write_json(out, {"circumstances": circumstances(), **described, "read": lines_of(reads), "summary": found})
    for row in found:
        print(json.dumps({key: value for key, value in row.items() if not isinstance(value, dict)}))


if __name__ == "__main__":
    typer.run(main)
