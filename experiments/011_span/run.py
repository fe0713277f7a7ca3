"""How far back may a document look? Answers from KV that was stored with spans from 4,096 down to 64 tokens.

    python experiments/011_span/run.py [--spans 4096,512,256,128,64] [--each 20]

Reads the text of 010_confidence (facts about people, needles, notes, docstring prose) once for every span, and asks for
facts and needles in three phrasings. The sentence that answers is given, so that only reading is measured: answers
decoded greedily from the stored KV of the sentence, and of its passage of up to 96 tokens, and from both read again
behind the sinks. All ways of one question are decoded as one batch. A JSON line a question; what is there is not asked
again. Summary in result.json.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.progress import track
from torch import Tensor

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory, Settings  # noqa: E402
from livingkv.attention import Partition, attend  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.likelihood import Candidate, CandidateBatch  # noqa: E402
from livingkv.models import load_model  # noqa: E402
from livingkv.passages import Judged, grow_passages  # noqa: E402
from livingkv.positions import rotate, rotation  # noqa: E402
from livingkv.recall import QUESTION_LEAD  # noqa: E402
from livingkv.store import Sentence, SessionRow, Store  # noqa: E402
from livingkv.stored_kv import StoredKV  # noqa: E402

HERE = Path(__file__).parent
PASSAGE_TOKENS = 96
ANSWER_TOKENS = 20
Mixed = importlib.import_module("experiments.010_confidence.run")


class Rows(CandidateBatch):
    """Candidates side by side that tokens are appended to."""

    def __init__(self, sinks: Candidate, candidates: Sequence[Candidate], engine: Engine) -> None:
        super().__init__(sinks, candidates, engine.model.rope)
        self._appended: dict[int, tuple[Tensor, Tensor]] = {}

    def begin(self, n_tokens: int) -> None:
        """See AttentionState."""
        first = self._length + self._n_read
        self._own = rotation(torch.arange(first, first + n_tokens, device=self._keys.device), self._rope)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """See AttentionState."""
        assert self._own is not None
        query, key = rotate(query, self._own), rotate(key, self._own)
        parts = [Partition(query, self._keys[layer], self._values[layer], key_mask=self._mask)]
        before = self._appended.get(layer)
        if before is not None:
            parts.append(Partition(query, *before))
        parts.append(Partition(query, key, value, causal=True))
        out = attend(parts, scale * self._rope.attention_factor**2)
        both = (key, value) if before is None else (torch.cat([before[0], key], 2), torch.cat([before[1], value], 2))
        self._appended[layer] = both
        return out

    def finish(self, n_tokens: int) -> None:
        """See AttentionState."""
        self._n_read += n_tokens


@dataclass(frozen=True)
class Reader:
    """One memory that was read with one span."""

    store: Store
    kv: StoredKV
    session: SessionRow

    def stored(self, lo: int, hi: int) -> Candidate:
        """Stored KV of tokens [lo, hi)."""
        return Candidate(self.kv.run(self.session, lo, hi), lo)


@torch.inference_mode()
def answers(engine: Engine, sinks: Candidate, candidates: Sequence[Candidate], question: str) -> list[str]:
    """Greedy answers, one for each candidate."""
    state = Rows(sinks, candidates, engine)
    words = engine.words
    ids = torch.tensor([*words.encode(QUESTION_LEAD + question), *words.framing.answer], device=engine.model.device)
    hidden = engine.runner.hidden(ids.expand(len(candidates) + 1, -1), state)
    tokens: list[list[int]] = [[] for _ in candidates]
    done = [False] * len(candidates)
    for _ in range(ANSWER_TOKENS):
        nxt = engine.runner.head(hidden[:, -1:].contiguous())[:, 0].argmax(-1)
        for row, token in enumerate(nxt[1:].tolist()):
            done[row] = done[row] or token in engine.model.stop_ids
            if not done[row]:
                tokens[row].append(token)
        if all(done):
            break
        hidden = engine.runner.hidden(nxt[:, None], state)
    return [str(engine.model.tokenizer.decode(row)) for row in tokens]


def asked_for(reader: Reader, asked: Any, engine: Engine, readers: dict[int, Reader], n_sinks: int) -> dict[str, bool]:
    """For one question: which ways of reading answer it."""
    sentence = next(each for each in _sentences(reader.store) if (asked.gold or "").strip() in each.text)
    hit = Judged(sentence, 0.0, None, None, 0.0)
    (grown,) = grow_passages([hit], reader.store.neighbours, budget_tokens=PASSAGE_TOKENS)
    spans = {"sentence": (sentence.token_lo, sentence.token_hi), "passage": (grown.token_lo, grown.token_hi)}
    ways = {f"{name}, {span}": each.stored(*lo_hi) for name, lo_hi in spans.items() for span, each in readers.items()}
    for name, (lo, hi) in spans.items():
        ways[f"{name}, read again"] = Candidate(reader.kv.read_again(reader.session, lo, hi, n_sinks), n_sinks)
    sinks = Candidate(reader.kv.sinks(reader.session, n_sinks), 0)
    said = answers(engine, sinks, list(ways.values()), asked.text)
    return {way: Mixed.is_right(asked.value, text) for way, text in zip(ways, said, strict=True)}


def _sentences(store: Store) -> list[Sentence]:
    found: list[Sentence] = []
    while batch := store.sentences_after(found[-1].sentence_id if found else None, 2000):
        found += batch
    return found


def main(
    spans: Annotated[str, typer.Option(help="Spans in tokens, with commas between them.")] = "4096,512,256,128,64",
    each: Annotated[int, typer.Option(help="Facts and needles asked for.")] = 20,
    filler: Annotated[int, typer.Option(help="Sentences of docstring prose.")] = 400,
    model: str | None = None,
    seed: int = 0,
    raw: Annotated[Path, typer.Option(help="One JSON document a question.")] = HERE / "raw.jsonl",
) -> None:
    """Read with every span, ask, and write result.json."""
    facts, rows = Mixed.rows_of(60, seed)
    text = Mixed.text_of(rows, filler, seed)
    wanted = [asked for asked in Mixed.questions(facts, each, seed) if asked.value is not None]
    random.Random(seed).shuffle(wanted)
    lines = [json.loads(line) for line in raw.read_text("utf-8").splitlines()] if raw.exists() else []
    done = {line["text"] for line in lines}
    loaded = load_model(model)
    with tempfile.TemporaryDirectory() as folder:
        readers: dict[int, Reader] = {}
        for span in map(int, spans.split(",")):
            settings = Settings(window_tokens=max(4096, span), span_tokens=span)
            memory = Memory.open(Path(folder) / f"{span}.lkv", model=loaded, settings=settings)
            memory.ingest("text", text=text)
            home = memory._home
            engine, n_sinks = home.engine(), home.n_sinks
            readers[span] = Reader(
                home.store(), StoredKV(home.store(), engine, home.pages()), home.store().session("default")
            )
        first = next(iter(readers.values()))
        for asked in track([asked for asked in wanted if asked.text not in done], "asking"):
            line = {"kind": asked.kind, "text": asked.text, "right": asked_for(first, asked, engine, readers, n_sinks)}
            lines.append(line)
            with raw.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    ways = lines[0]["right"]
    right = {way: sum(line["right"][way] for line in lines) for way in ways}
    write_json(HERE / "result.json", {"circumstances": circumstances(), "seed": seed, "n": len(lines), "right": right})
    print(json.dumps(right, indent=1))


if __name__ == "__main__":
    typer.run(main)
