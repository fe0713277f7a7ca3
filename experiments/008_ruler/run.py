"""RULER-11 without the QA tasks: full attention, text retrieval and livingkv's modes on the same texts and questions.

    python experiments/008_ruler/run.py --tokens 4096,8192 --samples 2

For every length, sample and task: one text is made, read into a store of its own, and every system answers the one
question; then the store is removed. Writes raw JSON after every answer; started again it goes on where it stopped, also
with more lengths, tasks, samples or systems. Several processes share the work with --tasks, or --first-sample and
--samples, each with an --out and a --store-dir of its own; merge.py puts their results together. Then plot.py draws
what is in the JSON.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.haystack import docstring_sentences  # noqa: E402
from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import circumstances, peak_memory_bytes, write_json  # noqa: E402
from experiments.ruler.instances import Instance, Materials, string_match_all  # noqa: E402
from experiments.ruler.report import print_report  # noqa: E402
from experiments.ruler.tasks import LABEL, TASKS, make_instance  # noqa: E402
from experiments.systems import DEFAULT_SYSTEMS, FULL, Answered, Models, check_names, open_systems  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.results import to_json  # noqa: E402

RESULT = Path(__file__).with_name("result.json")


@dataclass(frozen=True, slots=True)
class Plan:
    """What all answers of one result file have in common."""

    seed: int
    model: str | None
    settings: dict[str, Any]
    examples: bool


@dataclass(frozen=True, slots=True)
class Case:
    """One text with its question. A system beyond its context is not asked."""

    tokens: int
    sample: int
    task: str


class Bench:
    """Models, materials and the result, which is written after every step."""

    def __init__(self, plan: Plan, model: str | None, out: Path, stores: Path, progress: Progress) -> None:
        self.plan = plan
        self.models = Models(model)
        self.settings = Settings.from_dict(plan.settings)
        self.progress = progress
        self._out = out
        self._stores = stores
        self._materials: Materials | None = None
        found = json.loads(out.read_text("utf-8")) if out.exists() else {}
        self.result: dict[str, Any] = found or {"label": LABEL, "plan": asdict(plan), "texts": [], "answers": []}
        if self.result["plan"] != json.loads(json.dumps(asdict(plan))):
            raise typer.BadParameter(f"{out} holds the result of another plan; name another file or move it away")

    def missing(self, case: Case, systems: Sequence[str]) -> list[str]:
        """The systems that have not answered a case yet."""
        rows = self.result["answers"]
        done = {row["system"] for row in rows if Case(row["tokens"], row["sample"], row["task"]) == case}
        return [name for name in systems if name not in done]

    def run(self, case: Case, systems: Sequence[str], bar: Any) -> None:
        """Has the systems answer a case that they have not answered yet."""
        instance = self._instance(case)
        needs_store = bool(set(systems) - {FULL})
        store = self._stores / f"{case.tokens}-{case.sample}-{case.task}-seed{self.plan.seed}"
        if needs_store:
            self._read(case, instance, store)
        opened = open_systems(
            systems,
            models=self.models,
            store=store if needs_store else None,
            text=instance.text,
            settings=self.settings,
        )
        with opened as answering:
            for name, system in answering.items():
                self.progress.update(bar, description=f"{case.tokens:,} tokens, {case.task}, {name}")
                answered = system.answer(instance.question, max_tokens=instance.max_tokens)
                self.result["answers"].append(asdict(case) | {"system": name} | scored(instance, answered))
                self.result["end"] = {"peak_memory_bytes": peak_memory_bytes(), "circumstances": circumstances()}
                self.write()
                self.progress.advance(bar)
        shutil.rmtree(store, ignore_errors=True)

    def _instance(self, case: Case) -> Instance:
        if self._materials is None:
            waiting = self.progress.add_task("collecting prose", total=None)
            self._materials = Materials.of(docstring_sentences())
            self.progress.remove_task(waiting)
        tokenizer = self.models.served.tokenizer
        return make_instance(
            case.task,
            n_tokens=case.tokens,
            seed=self.plan.seed,
            sample=case.sample,
            materials=self._materials,
            count_tokens=lambda texts: [
                len(ids) for ids in tokenizer(list(texts), add_special_tokens=False)["input_ids"]
            ],
            example=self.plan.examples,
        )

    def _read(self, case: Case, instance: Instance, store: Path) -> None:
        """The text into its store, unless it is there."""
        reading = self.progress.add_task(f"{case.tokens:,} tokens, {case.task}: read (bytes)", total=None)
        store.parent.mkdir(parents=True, exist_ok=True)
        with Memory.open(store, model=self.models.served, settings=self.settings) as memory:
            ingested = memory.ingest(
                "text",
                text=instance.text.encode(),
                progress=lambda done, total: self.progress.update(reading, completed=done, total=total),
            )
        self.progress.remove_task(reading)
        facts = {"digest": instance.digest, "question": instance.question, "references": instance.references}
        if not ingested.skipped:
            self.result["texts"].append(asdict(case) | facts | {"ingested": to_json(ingested)})

    def describe_model(self) -> None:
        """Notes which model it is."""
        model = self.models.served
        self.result["model"] = {
            "name": model.name,
            "digest": model.model_digest,
            "quantization": model.quantization,
            "dtype": str(model.dtype),
            "device": str(model.device),
            "native_context": model.shape.native_context,
        }

    def write(self) -> None:
        """The result so far, to its file."""
        write_json(self._out, self.result)


def scored(instance: Instance, answered: Answered) -> dict[str, Any]:
    """One answer as a row: what was said, its score, what of the references was before the model, what it cost."""
    recalled = None if answered.recalled is None else "\n".join(answered.recalled)
    return {
        "digest": instance.digest,
        "references": instance.references,
        "answer": answered.text,
        "score": string_match_all(answered.text, instance.references),
        "recalled_share": None if recalled is None else string_match_all(recalled, instance.references),
        "prefilled_tokens": answered.prefilled_tokens,
        "seconds": answered.seconds,
        "extra": answered.extra,
    }


def main(
    tokens: Annotated[str, typer.Option(help="Lengths, answer and chat frame included, with commas.")] = "4096,8192",
    tasks: Annotated[str, typer.Option(help="Tasks, with commas between them.")] = ",".join(TASKS),
    samples: Annotated[int, typer.Option(help="Texts of each task and length.")] = 2,
    systems: Annotated[str, typer.Option(help="Systems, with commas between them.")] = ",".join(DEFAULT_SYSTEMS),
    first_sample: Annotated[
        int, typer.Option(help="Texts begin with this one: processes side by side share them.")
    ] = 0,
    seed: int = 0,
    model: Annotated[str | None, typer.Option(help="As for livingkv; the default model without it.")] = None,
    settings: Annotated[str, typer.Option(help="Settings of the memory, as JSON.")] = "{}",
    examples: Annotated[bool, typer.Option(help="vt and cwe begin with a solved small example.")] = True,
    store_dir: Annotated[Path, typer.Option(help="Where the stores are put meanwhile.")] = Path("scratch/008_ruler"),
    out: Annotated[Path, typer.Option(help="The result, raw JSON.")] = RESULT,
) -> None:
    """Compare systems on the eleven tasks of RULER that need no outside data."""
    names, asked = systems.split(","), tasks.split(",")
    try:
        check_names(names)
        if unknown := set(asked) - set(TASKS):
            raise ValueError(f"there is no task {min(unknown)}; there are {', '.join(TASKS)}")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    cases = [
        Case(int(n), sample, task)
        for n in tokens.split(",")
        for sample in range(first_sample, first_sample + samples)
        for task in asked
    ]
    plan = Plan(seed, model and Path(model).name, json.loads(settings), examples)  # no folder of this machine
    with progress_bar() as progress:
        bench = Bench(plan, model, out, store_dir, progress)
        bench.describe_model()
        context = bench.models.served.shape.native_context
        todo = {
            case: [name for name in bench.missing(case, names) if name != FULL or case.tokens <= context]
            for case in cases
        }
        bar = progress.add_task("answers", total=sum(map(len, todo.values())))
        start = time.time()
        for case, missing in todo.items():
            if missing:
                bench.run(case, missing, bar)
        bench.result.setdefault("seconds", []).append(time.time() - start)
        bench.write()
    print_report(bench.result)


if __name__ == "__main__":
    typer.run(main)
