"""Where should recalled KV stand, and does it pay to run a part of it through the model again?

    python experiments/016_placement/run.py --tokens 4000,32000 --each 24 [--processes 8]

One text of facts and needles for every length (experiments/mixed_text.py), the sentence that answers given, so that
only reading is measured. Recalled are that sentence alone, its passage of up to 96 tokens, and the sentence among three
others that the index finds (in the order of the document). Read in mode kv with the placements compact, absolute and
dual_chunk (the model loaded with dual-chunk positions; below the length of a chunk it is absolute); compact with a part
made anew: the first 4 or 16 or the last 8 tokens of each passage, the 0.15, 0.3 or 0.5 of tokens that change most
(CacheBlend), all; and ground, the text read again. Answers are greedy. A JSON line a question and length; what is there
is not asked again, and several processes share the questions.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import torch
import typer
from rich.progress import track

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.mixed_text import Asked, mixed_questions, mixed_text  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from experiments.shards import append_line, lines_of, part_of, run_shards  # noqa: E402
from livingkv import Memory  # noqa: E402
from livingkv.codec import KV  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.generation import collect  # noqa: E402
from livingkv.likelihood import Candidate  # noqa: E402
from livingkv.models import DualChunk, LoadedModel, load_model  # noqa: E402
from livingkv.modes import question_ids  # noqa: E402
from livingkv.passages import Judged, Passage, grow_passages, sentence_passages  # noqa: E402
from livingkv.positions import period  # noqa: E402
from livingkv.recall import Probed, attend_passages  # noqa: E402
from livingkv.sampling import Sampler, Sampling  # noqa: E402
from livingkv.settings import Placement  # noqa: E402
from livingkv.store import Sentence  # noqa: E402
from livingkv.stored_kv import StoredKV  # noqa: E402

HERE = Path(__file__).parent
Span = importlib.import_module("experiments.011_span.run")
Recompute = importlib.import_module("experiments.016_placement.recompute")

CHUNK = DualChunk(chunk_tokens=32768, local_tokens=4096, original_context=32768)
"""Those of the default model: its native context, and a local part of an eighth."""

PASSAGE_TOKENS = 96
N_OTHERS = 3


class Bench:
    """One store, read only, and everything that is tried on it."""

    def __init__(self, memory: Memory, contexts: Sequence[str]) -> None:
        home = memory._home
        self._wanted = contexts
        self._store, self._index = home.store(), home.index
        self.engine: Engine = home.engine()
        self._kv = StoredKV(self._store, self.engine, home.pages())
        self._session = self._store.session("default")
        self._n_sinks = home.n_sinks
        self._sinks = self._kv.sinks(self._session, self._n_sinks)
        self._sentences = sentences_of(memory)
        self.n_tokens = self._session.n_tokens

    def tried(self, asked: Asked) -> dict[str, Any]:
        """Every context and way for one question: answer, right or not, tokens through the model, seconds."""
        gold = next(sentence for sentence in self._sentences if asked.gold in sentence.text)
        said: dict[str, str] = {}
        cost: dict[str, list[float]] = {}
        for context, passages in self._contexts(asked, gold).items():
            ways = self._ways(passages)
            candidates = []
            for way, make in ways.items():
                (kv, tokens), seconds = self._timed(make)
                candidates.append(Candidate(kv, self._n_sinks))
                cost[f"{context}, {way}"] = [round(tokens, 1), round(seconds, 5)]
            texts = Span.answers(self.engine, Candidate(self._sinks, 0), candidates, asked.text)
            said |= {f"{context}, {way}": text for way, text in zip(ways, texts, strict=True)}
            for placement in self._placements():
                said[f"{context}, {placement}"] = self._placed(passages, placement, asked.text)
        right = {way: asked.answered_by(text) for way, text in said.items()}
        return {"kind": asked.kind, "phrasing": asked.phrasing, "right": right, "said": said, "cost": cost}

    def _contexts(self, asked: Asked, gold: Sentence) -> dict[str, list[Passage]]:
        hit = Judged(gold, 0.0, None, None, 0.0)
        grown = grow_passages([hit], self._store.neighbours, budget_tokens=PASSAGE_TOKENS)
        found = self._index.current().probe(asked.text, limit=2 * N_OTHERS + 2, session_ids=None)
        ids = [one.sentence_id for one in found if one.sentence_id != gold.sentence_id][:N_OTHERS]
        four = [hit, *(Judged(self._store.sentence(each), 0.0, None, None, 0.0) for each in ids)]
        among = sorted(sentence_passages(four, self._store.neighbours), key=lambda passage: passage.token_lo)
        known = {"sentence": sentence_passages([hit], self._store.neighbours), "passage": grown, "among four": among}
        return {name: known[name] for name in self._wanted}

    def _ways(self, passages: Sequence[Passage]) -> dict[str, Callable[[], tuple[KV, float]]]:
        def anew(make: Callable[[Any], Any]) -> Callable[[], tuple[KV, float]]:
            def made() -> tuple[KV, float]:
                done = make(self._recalled(passages))
                return done.kv, done.tokens

            return made

        return {
            "compact": anew(lambda recalled: recalled.stored()),
            "first 4": anew(lambda recalled: recalled.first(4)),
            "first 16": anew(lambda recalled: recalled.first(16)),
            "last 8": anew(lambda recalled: recalled.last(8)),
            "changed 0.15": anew(lambda recalled: recalled.most_changed(0.15)),
            "changed 0.3": anew(lambda recalled: recalled.most_changed(0.3)),
            "changed 0.5": anew(lambda recalled: recalled.most_changed(0.5)),
            "all": anew(lambda recalled: recalled.all()),
            "ground": lambda: self._read_again(passages),
        }

    def _recalled(self, passages: Sequence[Passage]) -> Any:
        at, parts, ids = self._n_sinks, [], []
        for passage in passages:
            run = self._kv.run(self._session, passage.token_lo, passage.token_hi)
            parts.append(KV(self.engine.moved(run.keys, at - passage.token_lo), run.values))
            ids.append(self._store.token_ids(self._session.session_id, passage.token_lo, passage.token_hi).tolist())
            at += passage.n_tokens
        return Recompute.Recalled(self.engine, self._sinks, parts, ids)

    def _read_again(self, passages: Sequence[Passage]) -> tuple[KV, float]:
        """As mode ground reads: the texts with blank lines between them, behind the sinks."""
        ids = self.engine.words.encode("\n\n".join(passage.text for passage in passages))
        space = self.engine.workspace(self._n_sinks + len(ids))
        space.push(self._sinks, 0)
        space.next_position = self._n_sinks
        self.engine.runner.read(torch.tensor(ids, device=self.engine.model.device), space)
        return space.view(self._n_sinks, space.end), float(len(ids))

    def _placements(self) -> tuple[Placement, ...]:
        beyond = self.n_tokens > period(CHUNK)
        return ("absolute", "dual_chunk") if beyond else ("absolute",)

    def _placed(self, passages: Sequence[Passage], placement: Placement, question: str) -> str:
        ids, most = question_ids(self.engine, question), Span.ANSWER_TOKENS
        probed = Probed((self._session,), ())
        extra = len(ids) + most
        space = attend_passages(self.engine, self._kv, probed, passages, self._n_sinks, extra, placement)
        logits = self.engine.runner.logits(torch.tensor(ids, device=self.engine.model.device), space)
        tokens = self.engine.runner.generate(logits, space, Sampler(Sampling()), most)
        return collect(tokens, self.engine.words.stream(), most).text

    def _timed(self, make: Callable[[], tuple[KV, float]]) -> tuple[tuple[KV, float], float]:
        start = perf_counter()
        made = make()
        if self.engine.model.device.type == "cuda":
            torch.cuda.synchronize(self.engine.model.device)
        return made, perf_counter() - start


def sentences_of(memory: Memory) -> list[Sentence]:
    """All sentences of a store, in order."""
    found: list[Sentence] = []
    while batch := memory._home.store().sentences_after(found[-1].sentence_id if found else None, 2000):
        found += batch
    return found


def store_of(folder: Path, n_tokens: int, seed: int) -> Path:
    """Where the store of one length is."""
    return folder / f"{n_tokens}-seed{seed}.lkv"


def read_text(model: LoadedModel, n_tokens: int, folder: Path, seed: int) -> None:
    """The text of one length into its store, unless it is there."""

    def count(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in model.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    with Memory.open(store_of(folder, n_tokens, seed), model=model) as memory:
        memory.ingest("text", text=mixed_text(n_tokens, seed=seed, count_tokens=count))


def ask(
    model: LoadedModel,
    lengths: Sequence[int],
    wanted: Sequence[Asked],
    contexts: Sequence[str],
    folder: Path,
    raw: Path,
    seed: int,
) -> None:
    """A line for every question of every length that has none yet."""
    done = {(line["tokens"], line["text"]) for line in lines_of(raw)}
    for n_tokens in lengths:
        todo = [asked for asked in wanted if (n_tokens, asked.text) not in done]
        if not todo:
            continue
        with Memory.open(store_of(folder, n_tokens, seed), model=model, read_only=True) as memory:
            bench = Bench(memory, contexts)
            for asked in track(todo, f"{n_tokens:,} tokens"):
                append_line(raw, {"tokens": n_tokens, "text": asked.text} | bench.tried(asked))


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """For every length: right answers of each way, of facts and needles apart too, and the cost (mean tokens, median
    seconds)."""
    found: dict[str, Any] = {}
    for n_tokens in sorted({line["tokens"] for line in lines}):
        rows = [line for line in lines if line["tokens"] == n_tokens]
        kinds = {"all": rows} | {kind: [row for row in rows if row["kind"] == kind] for kind in ("fact", "needle")}
        ways = [way for way in rows[0]["right"] if all(way in row["right"] for row in rows)]
        found[str(n_tokens)] = {
            "n": {kind: len(part) for kind, part in kinds.items()},
            "right": {
                way: {kind: sum(row["right"][way] for row in part) for kind, part in kinds.items()} for way in ways
            },
            "cost": {way: _cost([row["cost"][way] for row in rows]) for way in ways if way in rows[0]["cost"]},
        }
    return found


def _cost(rows: Sequence[Sequence[float]]) -> dict[str, float]:
    return {
        "mean_tokens": round(sum(row[0] for row in rows) / len(rows), 1),
        "median_seconds": sorted(row[1] for row in rows)[len(rows) // 2],
    }


def main(
    tokens: Annotated[str, typer.Option(help="Lengths of the text, with commas between them.")] = "4000,32000",
    each: Annotated[int, typer.Option(help="Questions, facts and needles in turn; at most 80.")] = 24,
    contexts: Annotated[str, typer.Option(help="What is recalled, with commas.")] = "sentence,passage,among four",
    model: str | None = None,
    seed: int = 0,
    processes: Annotated[int, typer.Option(help="So many processes ask at once.")] = 1,
    shard: Annotated[str, typer.Option(help="I/N: every N-th question from the I-th on, no summary.")] = "",
    store_dir: Annotated[Path, typer.Option(help="Where the stores are put.")] = Path("scratch/016_placement"),
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
    out: Annotated[Path, typer.Option(help="The summary.")] = HERE / "result.json",
) -> None:
    """Read the texts, ask, and write the summary."""
    lengths = [int(part) for part in tokens.split(",")]
    loaded = load_model(model, dual_chunk=CHUNK)
    if not shard:
        store_dir.mkdir(parents=True, exist_ok=True)
        for n_tokens in lengths:
            read_text(loaded, n_tokens, store_dir, seed)
    if processes > 1 and not shard:
        run_shards(Path(__file__), sys.argv[1:], processes)
    else:
        wanted = part_of(mixed_questions(each, seed=seed), shard)
        ask(loaded, lengths, wanted, contexts.split(","), store_dir, raw, seed)
    if shard:
        return
    lines = lines_of(raw)
    described = {"name": loaded.name, "dtype": str(loaded.dtype), "device": str(loaded.device)}
    head = {"circumstances": circumstances(), "model": described, "seed": seed}
    write_json(out, head | {"lengths": summary(lines)})
    for length, row in summary(lines).items():
        print(length, json.dumps(row["n"]))
        for way, right in row["right"].items():
            print(f"  {way:28}", *right.values(), row["cost"].get(way, ""))


if __name__ == "__main__":
    typer.run(main)
