"""Token streams of which some tokens are made step by step and the end is scored: prose, code, dialogues, own replies.

Everything follows from the seed and the model.
"""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.dialogues import make_history
from livingkv.engine import Engine
from livingkv.generation import collect
from livingkv.sampling import Sampler, Sampling

ROOT = Path(__file__).resolve().parents[2]
N_BEFORE, N_MADE, N_SCORED = 64, 128, 192
N_REPLY, N_AGAIN = 128, 64

PROMPTS = (
    "Tell me a short story about a lighthouse keeper and a storm.",
    "Explain how a bicycle stays upright.",
    "Write a Python function that merges two sorted lists, and explain it.",
    "What should I keep in mind when I plan a vegetable garden?",
    "Describe an ordinary day in a small harbor town.",
    "How does a library lend books, step by step?",
)
AGAIN = "Please say that again in other words."


class Part(NamedTuple):
    """Tokens that were generated, or read."""

    ids: list[int]
    is_made: bool


class Stream(NamedTuple):
    """kind: prose, code, dialogue or reply. before: what comes first; scored: what follows it, read in bf16."""

    kind: str
    number: int
    before: list[Part]
    scored: list[int]


def streams(engine: Engine, n_each: int, known: Collection[tuple[str, int]] = ()) -> Iterator[Stream]:
    """So many of each kind, by turns, without those that are known; twice as many own replies."""
    for number in range(n_each):
        for kind, text in (("prose", notes()), ("code", inspect.getsource(statistics))):
            if (kind, number) not in known:
                yield from_text(engine, kind, text, number, n_each)
        if ("dialogue", number) not in known:
            yield dialogue(engine, number)
        for place in (2 * number, 2 * number + 1):
            if ("reply", place) not in known:
                yield own_reply(engine, place, PROMPTS[place])


def from_text(engine: Engine, kind: str, text: str, number: int, n_each: int) -> Stream:
    """One of so many places that are spread over a text."""
    ids, n = engine.words.encode(text), N_BEFORE + N_MADE + N_SCORED
    lo = (len(ids) - n) * number // max(1, n_each - 1)
    part = ids[lo : lo + n]
    before = [Part(part[:N_BEFORE], False), Part(part[N_BEFORE : N_BEFORE + N_MADE], True)]
    return Stream(kind, number, before, part[N_BEFORE + N_MADE :])


def notes() -> str:
    """The example notes."""
    return "".join(path.read_text("utf-8") for path in sorted((ROOT / "examples" / "notes").glob("*.md")))


def dialogue(engine: Engine, number: int) -> Stream:
    """A made-up conversation; the assistant's messages of its first two thirds are made, the last third is scored."""
    framing, encode = engine.words.framing, engine.words.encode
    (messages, *_) = make_history(2, 400, seed=number).sessions
    parts = [Part(list(framing.prologue), False)]
    for message in messages:
        ids = encode(str(message["content"]))
        if message["role"] == "user":
            parts += [Part(ids, False), Part(list(framing.answer), False)]
        else:
            parts += [Part(ids, True), Part(list(framing.reopen), False)]
    n_before = len(parts) * 2 // 3
    return Stream("dialogue", number, parts[:n_before], [token for part in parts[n_before:] for token in part.ids])


def own_reply(engine: Engine, number: int, prompt: str) -> Stream:
    """A reply that the engine generates, and what it says when it is asked to say it again, which is scored."""
    framing, encode = engine.words.framing, engine.words.encode
    asked = [*framing.prologue, *encode(prompt), *framing.answer]
    reply = generated(engine, asked, N_REPLY, number)
    then = [*framing.reopen, *encode(AGAIN), *framing.answer]
    again = generated(engine, [*asked, *reply, *then], N_AGAIN, number)
    return Stream("reply", number, [Part(asked, False), Part(reply, True), Part(then, False)], again)


def generated(engine: Engine, before: list[int], n_tokens: int, seed: int) -> list[int]:
    """Sampled at temperature 0.8."""
    space = engine.workspace(len(before) + n_tokens)
    logits = engine.runner.logits(engine.on_device(before), space)
    tokens = engine.runner.generate(logits, space, Sampler(Sampling(temperature=0.8, seed=seed)), n_tokens)
    return list(collect(tokens, engine.words.stream(), n_tokens).token_ids)
