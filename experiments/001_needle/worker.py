"""The two processes of the needle experiment: `ingest` reads a haystack, `ask` asks for needles.

Each reads its task as one JSON document on standard input and writes one JSON document a line on standard output.
After `ingest` has said that it is done, it waits to be killed or told to close.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.haystack import build_haystack, choose_asked, make_needles
from experiments.provenance import circumstances, peak_memory_bytes
from livingkv import Memory, Settings
from livingkv.models import LoadedModel, load_model
from livingkv.results import to_json

SOURCE = "haystack"


def tell(kind: str, **values: Any) -> None:
    """Writes one line."""
    print(json.dumps({"kind": kind, **values}, ensure_ascii=False), flush=True)


def ingest(task: dict[str, Any]) -> None:
    """Builds the haystack, reads it into the store, and says so when it is durable."""
    model, described = loaded_model(task)

    def count_tokens(texts: Sequence[str]) -> list[int]:
        return [len(ids) for ids in model.tokenizer(list(texts), add_special_tokens=False)["input_ids"]]

    needles = make_needles(task["needles"], seed=task["seed"])
    haystack = build_haystack(task["tokens"], needles, seed=task["seed"], count_tokens=count_tokens)
    text = haystack.text.encode()
    settings = Settings.from_dict(task["settings"])
    with Memory.open(task["store"], model=model, settings=settings) as memory:
        result = memory.ingest(
            SOURCE, text=text, progress=lambda done, total: tell("progress", done_bytes=done, total_bytes=total)
        )
        tell(
            "done",
            ingested=to_json(result),
            haystack={"digest": haystack.digest, "n_sentences": haystack.n_sentences, "n_tokens": haystack.n_tokens},
            **described,
            peak_memory_bytes=peak_memory_bytes(),
            circumstances=circumstances(),
        )
        sys.stdin.read()


def ask(task: dict[str, Any]) -> None:
    """Asks for the needles that were not asked for yet, one line an answer."""
    model, described = loaded_model(task)
    needles = make_needles(task["needles"], seed=task["seed"])
    known = {(row["phrasing"], row["key"]) for row in task["answered"]}
    settings = Settings.from_dict(task["settings"])
    with Memory.open(task["store"], model=model, settings=settings, read_only=True) as memory:
        for phrasing in task["phrasings"]:
            for needle in choose_asked(needles, task["ask"], seed=task["seed"]):
                if (phrasing, needle.key) in known:
                    continue
                question = needle.question(phrasing)
                answer = memory.ask(question, mode=task["mode"], max_tokens=task["max_tokens"])
                ranks = [rank for rank, found in enumerate(answer.evidence, 1) if needle.sentence in found.text]
                tell(
                    "answer",
                    phrasing=phrasing,
                    key=needle.key,
                    question=question,
                    expected=needle.value,
                    correct=needle.answered_by(answer.answer),
                    evidence_rank=ranks[0] if ranks else None,
                    **without_texts(asdict(answer)),
                )
    tell("end", **described, peak_memory_bytes=peak_memory_bytes(), circumstances=circumstances())


def loaded_model(task: dict[str, Any]) -> tuple[LoadedModel, dict[str, Any]]:
    """The task's model, and what a result says of it."""
    start = time.perf_counter()
    model = load_model(task["model"])
    described = {
        "name": model.name,
        "digest": model.model_digest,
        "quantization": model.quantization,
        "dtype": str(model.dtype),
        "device": str(model.device),
    }
    return model, {"model": described, "load_seconds": time.perf_counter() - start}


def without_texts(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with its evidence as spans and scores; the texts can be rebuilt from the seed."""
    evidence = [{key: value for key, value in found.items() if key != "text"} for found in answer["evidence"]]
    return {**answer, "evidence": evidence}


def main() -> None:
    """Reads the task, whose "role" says which of the two it is."""
    task = json.loads(sys.stdin.readline())
    Path(task["store"]).parent.mkdir(parents=True, exist_ok=True)
    {"ingest": ingest, "ask": ask}[task["role"]](task)


if __name__ == "__main__":
    main()
