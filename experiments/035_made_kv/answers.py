"""Facts that an assistant told, asked for later: KV of its replies made in three ways, answers by three weights.

    python experiments/035_made_kv/answers.py --folder scratch/035

One conversation (register.py) is stored three times with the same token ids; the KV of the assistant's words is made by
steps of int8 or int4 weights, as if they had been generated, or read in bf16. A side is a store and the weights
that generate answers from it. Every question is asked of every side as mode auto asks, each way noted with its signs
and tokens up to the first that convinces; needles in mode resume, too, which attends all of the conversation. Writes a
line for each question and side; started again with the same folder it goes on, and the last to start reports all.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # an experiment is a script of the repository

from compared import report  # noqa: E402
from making import GENERATING, Making, engines, say, with_weights  # noqa: E402
from register import Asked, Exchange, register  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv import Memory  # noqa: E402
from livingkv.asking import Asking  # noqa: E402
from livingkv.auto import ways  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.models import LoadedModel, load_model  # noqa: E402
from livingkv.passages import Judged  # noqa: E402
from livingkv.question import names_in  # noqa: E402
from livingkv.recall import Probed  # noqa: E402
from livingkv.sampling import Sampling  # noqa: E402

HERE = Path(__file__).parent
SESSION = "register"
MAX_TOKENS = 28


ASKERS: dict[Making, tuple[Making, ...]] = {
    "bf16 read": ("bf16 steps", "int8 steps"),
    "int8 steps": ("bf16 steps", "int8 steps"),
    "int4 steps": ("int4 steps",),
}
"""Of each store, by whose steps its answers are generated."""


def make_store(path: Path, model: LoadedModel, making: Making, exchanges: Sequence[Exchange]) -> list[int]:
    """The conversation's token ids; what is stored already is not said again."""
    n_said = 0
    if path.exists():
        with opened(path, model) as memory:
            n_said = {info.name: info.n_turns for info in memory.sessions()}.get(SESSION, 0)
    if n_said < len(exchanges):
        with Memory.open(path, model=with_weights(model, GENERATING[making])) as memory:
            for user, reply in exchanges[n_said:]:
                say(memory, SESSION, user, reply, making)
    with opened(path, model) as memory:
        store = memory._home.store()
        row = store.session(SESSION)
        return [int(token) for token in np.asarray(store.token_ids(row.session_id, 0, row.n_tokens))]


def opened(path: Path, model: LoadedModel) -> Memory:
    """A store as it is, to be asked."""
    return Memory.open(path, model=with_weights(model, None), read_only=True)


def place(folder: Path, making: Making) -> Path:
    """Where the store is whose KV is made so."""
    return folder / making.replace(" ", "_")


def rows_of(memory: Memory, of: dict[Making, Engine], made: Making, asked: Asked) -> Iterator[dict[str, Any]]:
    """One question to one store, by each asker. What was found is judged once: all askers read in bf16."""
    asking = Asking(memory._home, asked.text)
    probed = asking.probe(None)
    judged = asking.judge(probed)
    for asker in ASKERS[made]:
        asking.engine = of[asker]
        tried = list(up_to_a_convincing(asking, probed, judged, asked))
        row: dict[str, Any] = {"side": f"{made}, asked by {asker.split()[0]}", **asked._asdict(), "ways": tried}
        if asked.kind == "needle STORED":
            answer = asking.read("resume", probed, [], MAX_TOKENS, Sampling(), (), None, "asked for").answer
            row["resume"] = {"answer": answer, "right": asked.answered_by(answer)}
        yield row


def up_to_a_convincing(
    asking: Asking, probed: Probed, judged: Sequence[Judged], asked: Asked
) -> Iterator[dict[str, Any]]:
    """The ways of mode auto."""
    for way in ways(judged, names_in(asked.text)):
        passages = asking.passages(way.hits, grown=way.grown)
        answer = asking.read(way.mode, probed, passages, MAX_TOKENS, Sampling(), (), None, way.reason)
        assert asking.signs is not None and asking.generated is not None
        yield {
            "mode": answer.mode,
            "grown": way.grown,
            "first_hit": way.hits[0].sentence.sentence_id,
            "answer": answer.answer,
            "right": asked.answered_by(answer.answer),
            "confident": answer.confident,
            "confidence": answer.confidence,
            "tokens": list(asking.generated.token_ids),
            "nats": sum(asking.log_probabilities),
            **asdict(asking.signs),
        }
        if answer.confident:
            return


def main(
    folder: Annotated[Path, typer.Option(help="Where the stores are and stay.")],
    made: Annotated[str, typer.Option(help="Ways in which KV is made, with commas; bf16 read first.")] = ",".join(
        ASKERS
    ),
    shard: Annotated[
        str, typer.Option(help="I/N: every N-th question from the I-th on. For several processes.")
    ] = "0/1",
    threads: Annotated[int, typer.Option(min=1)] = 1,
    seed: int = 0,
    model: Annotated[str | None, typer.Option(help="A model spec; left out: the default model.")] = None,
    raw: Annotated[Path, typer.Option(help="One JSON document a question and side.")] = HERE / "answers.jsonl",
    out: Annotated[Path, typer.Option(help="The comparison.")] = HERE / "answers.json",
) -> None:
    """Make the stores, ask, compare."""
    torch.set_num_threads(threads)
    loaded = load_model(model, device="cpu", weights="bf16")
    exchanges, questions = register(seed)
    makings = [making for making in ASKERS if making in made.split(",")]
    ids = {making: make_store(place(folder, making), loaded, making, exchanges) for making in makings}
    assert all(each == ids["bf16 read"] for each in ids.values()), "all stores hold the same tokens"
    rows = [json.loads(line) for line in raw.read_text("utf-8").splitlines()] if raw.exists() else []
    of = engines(loaded)
    told = {"circumstances": circumstances(), "model": loaded.name, "seed": seed, "n_threads": threads}
    told |= {"n_tokens": len(ids["bf16 read"]), "n_exchanges": len(exchanges)}
    with ExitStack() as closing:
        memories = {making: closing.enter_context(opened(place(folder, making), loaded)) for making in makings}
        first, step = map(int, shard.split("/"))
        for asked in questions[first::step]:
            for making, memory in memories.items():
                if not any(row["text"] == asked.text and row["side"].startswith(f"{making},") for row in rows):
                    found = list(rows_of(memory, of, making, asked))
                    rows += found
                    with raw.open("a", encoding="utf-8") as file:
                        file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found))
            write_json(out, told | report(rows))
            print(asked.text, flush=True)


if __name__ == "__main__":
    typer.run(main)
