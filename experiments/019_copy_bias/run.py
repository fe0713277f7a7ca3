"""Does a bias toward the tokens of the recalled text make stored KV be read right more often?

    python experiments/019_copy_bias/run.py [--people 40] [--each 40] [--biases 0,0.5,1,2,4]

One text of facts about people and needles of one type in docstring prose. Each question is answered from the stored KV
of the passage with its fact (mode kv, nothing is read again), greedy, once for each bias: so many nats are added to the
logits of all tokens that stand in the passage. Writes after every question; started again it goes on. Several processes
share the questions with --shard I/N and a --raw of their own; put together (cat), they are the raw file of one run.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.progress import track
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.facts import Kind, make_facts, make_questions  # noqa: E402
from experiments.haystack import make_needles, shuffled_filler  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory  # noqa: E402
from livingkv.asking import Asking  # noqa: E402
from livingkv.sampling import Sampler, Sampling  # noqa: E402

HERE = Path(__file__).parent
MAX_TOKENS = 28


class Biased(Sampler):
    """Picks as Sampler does, from logits with `bias` nats more for the given tokens."""

    def __init__(self, token_ids: Iterable[int], bias: float) -> None:
        super().__init__(Sampling())
        self._ids = torch.tensor(sorted(set(token_ids)))
        self._bias = bias

    def pick(self, logits: Tensor) -> int:
        """The next token for `logits` [vocabulary]."""
        biased = logits.detach().float().cpu().clone()
        biased[self._ids] += self._bias
        return super().pick(biased)


class Question(NamedTuple):
    """A question, its kind, its answer and the sentence that holds it."""

    kind: str
    text: str
    value: str
    gold: str


def questions(people: int, each: int, seed: int) -> tuple[list[Question], list[str]]:
    """What is asked, and the rows of the text that are not filler."""
    facts, needles = make_facts(people, 4, seed=seed), make_needles(100, seed=seed)
    asked = [
        Question(f"fact, phrasing {q.phrasing}", q.text, q.value, q.fact)
        for q in make_questions(facts, each, seed=seed)
        if q.kind is Kind.STORED and q.value is not None and q.fact is not None
    ]
    for index, needle in enumerate(needles[:each]):
        phrasing = index % 3 + 1
        asked.append(Question(f"needle, phrasing {phrasing}", needle.question(phrasing), needle.value, needle.sentence))
    return asked, [*(needle.sentence for needle in needles), *(fact.text for fact in facts)]


def text_of(rows: Sequence[str], seed: int) -> bytes:
    """The rows in random order, two sentences of prose after each, in paragraphs of six."""
    rows, filler = list(rows), shuffled_filler(seed)
    random.Random(f"order {seed}").shuffle(rows)
    lines = [line for row in rows for line in (row, next(filler), next(filler))]
    return ("\n\n".join(" ".join(lines[lo : lo + 6]) for lo in range(0, len(lines), 6)) + "\n").encode()


def answers(memory: Memory, asked: Question, biases: Sequence[float]) -> dict[str, Any]:
    """The question with its answer for each bias; none where the index does not find the sentence."""
    asking = Asking(memory._home, asked.text)
    probed = asking.probe(None)
    gold = [hit for hit in asking.judge(probed) if asked.gold.strip() in hit.sentence.text]
    row: dict[str, Any] = asked._asdict() | {"answers": []}
    if not gold:
        return row
    passages = asking.passages(gold[:1])
    ids = [
        int(token)
        for passage in passages
        for token in memory._home.store().token_ids(passage.session_id, passage.token_lo, passage.token_hi)
    ]
    for bias in biases:
        prepared = asking.prepare("kv", probed, passages, MAX_TOKENS)
        said = asking.complete(prepared, MAX_TOKENS, Biased(ids, bias), (), None).text
        right = asked.value.replace(",", "").casefold() in said.replace(",", "").casefold()
        row["answers"].append({"bias": bias, "right": right, "answer": said.strip()})
    return row


def report(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Right answers by kind of question and bias, and the answers that a bias mended and broke."""
    kinds: dict[str, dict[str, list[bool]]] = {}
    changed: dict[str, dict[str, int]] = {}
    for row in rows:
        plain = next((each["right"] for each in row["answers"] if each["bias"] == 0.0), None)
        for each in row["answers"]:
            for kind in (row["kind"].split(",")[0], "all"):
                kinds.setdefault(kind, {}).setdefault(f"{each['bias']:g}", []).append(each["right"])
            change = changed.setdefault(f"{each['bias']:g}", {"mended": 0, "broken": 0})
            change["mended"] += bool(each["right"] and plain is False)
            change["broken"] += bool(plain and not each["right"])
    right = {kind: {b: {"n": len(v), "right": sum(v)} for b, v in by.items()} for kind, by in kinds.items()}
    return {"right": right, "changed": changed, "not_found": sum(not row["answers"] for row in rows)}


def asked_of(raw: Path) -> Iterator[dict[str, Any]]:
    """What a raw file holds."""
    if raw.exists():
        yield from map(json.loads, raw.read_text("utf-8").splitlines())


def main(
    people: Annotated[int, typer.Option(help="People with four stored facts each.")] = 40,
    each: Annotated[int, typer.Option(help="Questions about facts, and as many about needles.")] = 40,
    biases: Annotated[str, typer.Option(help="Nats, with commas between them; 0 is the yardstick.")] = "0,0.5,1,2,4",
    model: str | None = None,
    seed: int = 0,
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
    shard: Annotated[str, typer.Option(help="I/N: every N-th question from the I-th on; no report.")] = "",
) -> None:
    """Ask, print the table and write result.json."""
    wanted, rows = questions(people, each, seed)
    if shard:
        first, step = (int(number) for number in shard.split("/"))
        wanted = wanted[first::step]
    done = {row["text"] for row in asked_of(raw)}
    if todo := [asked for asked in wanted if asked.text not in done]:
        with (
            tempfile.TemporaryDirectory() as scratch,
            Memory.open(Path(scratch) / "copy.lkv", model=model) as memory,
        ):
            memory.ingest("text", text=text_of(rows, seed))
            for asked in track(todo, "asking"):
                row = answers(memory, asked, [float(number) for number in biases.split(",")])
                with raw.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
    if shard:
        return
    found = report(list(asked_of(raw)))
    write_json(HERE / "result.json", {"circumstances": circumstances(), "seed": seed, "each": each} | found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    typer.run(main)
