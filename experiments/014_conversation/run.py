"""Conversations of one user, in the shape of LongMemEval: is the right turn recalled, and is the answer right?

    python experiments/014_conversation/run.py --sessions 8 --session-tokens 400 --limit 2
    python experiments/014_conversation/run.py --histories 4 --shard 0/4 --out part-0.json
    python experiments/014_conversation/run.py --merge part-0.json,part-1.json --out result.json

A history of dialogue (experiments/dialogues.py) is read into a store, a session for each conversation, its messages
as turns; then every system answers the same questions. auto: `Memory.ask` over all sessions. chat: the question is the
next turn of one more session, which recalls; plain: the same without recall. text: text retrieval with the same
budget. full: everything is read, where the model's context holds it. ranked: the sentences that recall ranks, without
an answer. Retrieval and answers are counted apart. Writes raw JSON after every answer; started again it goes on where
it stopped, also with more histories, types or systems.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer
from rich.progress import Progress, TaskID

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.dialogue_report import merged, print_report, scored  # noqa: E402
from experiments.dialogues import TYPES, DialogueQuestion, History, make_history  # noqa: E402
from experiments.progress import progress_bar  # noqa: E402
from experiments.provenance import circumstances, peak_memory_bytes, write_json  # noqa: E402
from experiments.systems import Answered, FullAttention, MemoryMode, Models, System, TextRetrieval  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.asking import Asking  # noqa: E402
from livingkv.home import Home  # noqa: E402
from livingkv.results import Recall  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
SYSTEMS = ("ranked", "auto", "chat", "text", "plain", "full")
MAX_TOKENS = 48


@dataclass(frozen=True, slots=True)
class Plan:
    """What all answers of one result file have in common."""

    seed: int
    model: str | None
    sessions: int
    session_tokens: int
    settings: dict[str, Any]


class NextTurn:
    """The question as the first turn of one more session, which is forgotten again: no question sees another."""

    def __init__(self, memory: Memory, recall: Recall) -> None:
        self._memory = memory
        self._recall = recall

    def answer(self, question: str, *, max_tokens: int) -> Answered:
        """Raises what `Memory.chat` raises."""
        start = perf_counter()
        turn = self._memory.chat(question, session="asked", max_tokens=max_tokens, recall=self._recall)
        seconds = perf_counter() - start
        self._memory.forget(session="asked")
        extra = {
            "mode": turn.mode,
            "reason": turn.reason,
            "confident": turn.confident,
            "confidence": turn.confidence,
            "reused_tokens": turn.reused_tokens,
            "timings_ms": asdict(turn.timings_ms),
        }
        texts = tuple(found.text for found in turn.evidence)
        return Answered(turn.answer, turn.prefilled_tokens, seconds, texts, extra)


class Ranked:
    """What recall finds, ranked as it is read; nothing is answered."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def answer(self, question: str, *, max_tokens: int) -> Answered:
        """An empty answer; the ranks and roles of the hits."""
        start = perf_counter()
        asking = Asking(self._home, question)
        judged = asking.judge(asking.probe(None))
        extra = {
            "ranks": [round(hit.rank_score, 3) for hit in judged],
            "coverage": [round(hit.coverage, 3) for hit in judged],
            "roles": [hit.sentence.role for hit in judged],
        }
        texts = tuple(hit.sentence.text for hit in judged)
        return Answered("", asking.n_prefilled(), perf_counter() - start, texts, extra)


class Bench:
    """Models and the result, which is written after every step."""

    def __init__(self, plan: Plan, model: str | None, out: Path, stores: Path, progress: Progress) -> None:
        self.plan = plan
        self.models = Models(model)
        self._settings = Settings.from_dict(plan.settings)
        self._progress = progress
        self._out = out
        self._stores = stores
        found = json.loads(out.read_text("utf-8")) if out.exists() else {}
        self.result: dict[str, Any] = found or {"plan": asdict(plan), "histories": [], "answers": []}
        if self.result["plan"] != json.loads(json.dumps(asdict(plan))):
            raise typer.BadParameter(f"{out} holds the result of another plan; name another file or move it away")

    def missing(self, number: int, question: DialogueQuestion, systems: Sequence[str]) -> list[str]:
        """The systems that have not answered a question of a history yet."""
        rows = [row for row in self.result["answers"] if (row["history"], row["question"]) == (number, question.text)]
        return [name for name in systems if name not in {row["system"] for row in rows}]

    def run(self, number: int, history: History, todo: dict[DialogueQuestion, list[str]], bar: TaskID) -> None:
        """Has the systems answer the questions of one history that they have not answered yet."""
        store = self._stores / f"{number}-{self.plan.sessions}x{self.plan.session_tokens}-seed{self.plan.seed}"
        with ExitStack() as closing:
            systems = self._opened(number, history, {name for names in todo.values() for name in names}, store, closing)
            for name in SYSTEMS:
                for question in (one for one, names in todo.items() if name in names):
                    self._progress.update(bar, description=f"history {number}, {question.type}, {name}")
                    self._progress.advance(bar)
                    if name in systems:
                        self._ask(number, name, systems[name], question)
        shutil.rmtree(store, ignore_errors=True)

    def _ask(self, number: int, name: str, system: System, question: DialogueQuestion) -> None:
        answered = system.answer(question.text, max_tokens=MAX_TOKENS)
        self.result["answers"].append({"history": number, "system": name} | scored(question, answered))
        self.write()

    def _opened(
        self, number: int, history: History, names: set[str], store: Path, closing: ExitStack
    ) -> dict[str, System]:
        """The systems of these names; full attention only where the text fits."""
        systems: dict[str, System] = {}
        if names - {"full"}:
            home = Home(store, self.models.served, self._settings, read_only=False, create=True)
            memory = closing.enter_context(Memory(home))
            self._read(number, history, memory)
            systems = {
                "ranked": Ranked(home),
                "auto": MemoryMode(memory, "auto"),
                "chat": NextTurn(memory, "all"),
                "plain": NextTurn(memory, "off"),
            }
            if "text" in names:
                systems["text"] = TextRetrieval(self.models.plain, home)
        if "full" in names:
            plain, text = self.models.plain, history.transcript
            if plain.count_tokens([text])[0] + 512 <= plain.native_context:
                systems["full"] = FullAttention(plain, text)
        return {name: system for name, system in systems.items() if name in names}

    def _read(self, number: int, history: History, memory: Memory) -> None:
        """The sessions that the store does not hold yet, one commit each."""
        known = {info.name for info in memory.sessions() if info.n_turns} if memory._home.path.exists() else set()
        reading = self._progress.add_task(f"history {number}: sessions read", total=len(history.sessions))
        start = perf_counter()
        for place, messages in enumerate(history.sessions):
            if f"talk {place}" not in known:
                memory.add_messages(messages, session=f"talk {place}")
            self._progress.advance(reading)
        self._progress.remove_task(reading)
        if not known:
            stats = memory.stats()
            row = {"history": number, "n_tokens": stats.n_tokens, "n_sentences": stats.n_sentences}
            self.result["histories"].append(row | {"seconds": perf_counter() - start})

    def write(self) -> None:
        """The result so far, to its file."""
        self.result["end"] = {"peak_memory_bytes": peak_memory_bytes(), "circumstances": circumstances()}
        write_json(self._out, self.result)


def main(
    histories: Annotated[int, typer.Option(help="Histories, each with its own store.")] = 1,
    sessions: Annotated[int, typer.Option(min=2, help="Conversations in each.")] = 40,
    session_tokens: Annotated[int, typer.Option(help="About so many tokens in each conversation.")] = 600,
    types: Annotated[str, typer.Option(help="Types of question, with commas.")] = ",".join(TYPES),
    limit: Annotated[int | None, typer.Option(help="At most so many questions of a type and history.")] = None,
    systems: Annotated[str, typer.Option(help="Systems, with commas.")] = ",".join(SYSTEMS),
    shard: Annotated[str, typer.Option(help="I/N: of all histories every Nth from I on.")] = "0/1",
    seed: int = 0,
    model: Annotated[str | None, typer.Option(help="As for livingkv; the default model without it.")] = None,
    settings: Annotated[str, typer.Option(help="Settings of the memory, as JSON.")] = "{}",
    store_dir: Annotated[Path, typer.Option(help="Where stores are put meanwhile.")] = Path("scratch/014_conversation"),
    out: Annotated[Path, typer.Option(help="The result, raw JSON.")] = RESULT,
    merge: Annotated[str, typer.Option(help="Results to put together into --out, with commas; asks nothing.")] = "",
) -> None:
    """Ask about conversations, by several systems."""
    if merge:
        write_json(out, merged([json.loads(Path(name).read_text("utf-8")) for name in merge.split(",")]))
        print_report(json.loads(out.read_text("utf-8")))
        return
    names, kinds = systems.split(","), types.split(",")
    for given, known in ((names, SYSTEMS), (kinds, TYPES)):
        if unknown := set(given) - set(known):
            raise typer.BadParameter(f"there is no {min(unknown)}; there are {', '.join(known)}")
    first, step = map(int, shard.split("/"))
    plan = Plan(seed, model and Path(model).name, sessions, session_tokens, json.loads(settings))
    with progress_bar() as progress:
        bench = Bench(plan, model, out, store_dir, progress)
        bar = progress.add_task("answers", total=None)
        todo = {}
        for number in range(first, histories, step):
            history = make_history(sessions, session_tokens, seed=1000 * seed + number)
            asked = [one for kind in kinds for one in [q for q in history.questions if q.type == kind][:limit]]
            missing = {question: bench.missing(number, question, names) for question in asked}
            todo[number] = history, {question: left for question, left in missing.items() if left}
        progress.update(bar, total=sum(len(left) for _, each in todo.values() for left in each.values()))
        for number, (history, each) in todo.items():
            if each:
                bench.run(number, history, each, bar)
        bench.write()
    print_report(bench.result)


if __name__ == "__main__":
    typer.run(main)
