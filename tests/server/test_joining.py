"""Decode steps of several calls in one pass: batches, sampling of each, errors and leaving, counts."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import pytest
import torch
from torch import Tensor

from livingkv.decoding.attending import TorchAttention
from livingkv.decoding.decoder import Decoder, Eager
from livingkv.decoding.network import PlainStep
from livingkv.decoding.ops import TorchOps
from livingkv.decoding.parts import parts_of
from livingkv.decoding.recording import NoRecorder
from livingkv.engine import Engine
from livingkv.errors import RecordDamaged
from livingkv.hot_window import HotWindow
from livingkv.models import LoadedModel
from livingkv.sampling import Sampler, Sampling, pick_all
from livingkv.server.joining import Joining
from livingkv.server.stepwise import in_steps
from livingkv.workspace import AttentionState
from tests.core.test_exactness import tokens
from tests.core.test_hot_window import N_SINKS, SETTINGS, engine_of

LENGTHS = (5, 70, 130)
SAMPLINGS = (Sampling(), Sampling(temperature=2.0, seed=11), Sampling(temperature=1.0, top_k=5, seed=3))
Call = Generator[None, None, tuple[list[int], int]]


class Together:
    """Calls that generate, in rounds as the inference thread gives them out."""

    def __init__(self, engine: Engine, max_batch: int) -> None:
        self.rows: list[int] = []
        self.joining = Joining(max_batch, self.rows.append)
        self.joining.take_part(engine.runner)
        self.engine = engine
        self.found: dict[int, tuple[list[int], int]] = {}
        self.errors: dict[int, Exception] = {}

    def call(self, state: AttentionState, sampling: Sampling, n: int, first: int = 9) -> Call:
        """Generate n tokens; they, and how many the runner counted."""
        runner, sampler = self.engine.runner, Sampler(sampling)

        def generate() -> tuple[list[int], int]:
            logits, before = runner.logits(torch.tensor([first]), state), runner.n_prefilled
            made = list(runner.generate(logits, state, sampler, n))
            return made, runner.n_prefilled - before

        return in_steps(generate)

    def run(self, calls: dict[int, Call]) -> None:
        """Steps until all have ended."""
        while calls:
            self.joining.run()
            for key in list(calls):
                try:
                    next(calls[key])
                except StopIteration as ended:
                    self.found[key] = ended.value
                except RecordDamaged as error:
                    self.errors[key] = error
                else:
                    continue
                del calls[key]


def window(engine: Engine, n_tokens: int) -> HotWindow:
    hot = engine.hot_window(SETTINGS, N_SINKS)
    engine.runner.read(tokens(n_tokens, seed=n_tokens), hot)
    return hot


def replies(max_batch: int, lengths: Sequence[int] = LENGTHS, n: int = 12) -> tuple[Together, list[list[int]]]:
    engine = engine_of("lossless")
    together = Together(engine, max_batch)
    pairs = zip(lengths, SAMPLINGS, strict=False)
    together.run({key: together.call(window(engine, each), how, n) for key, (each, how) in enumerate(pairs)})
    assert all(n_counted == len(made) - 1 for made, n_counted in together.found.values() if len(made) == n)
    return together, [together.found[key][0] for key in range(len(lengths))]


@pytest.mark.parametrize(("max_batch", "most"), [(8, 3), (2, 2), (1, 1)])
def test_replies_are_those_of_calls_alone(max_batch: int, most: int) -> None:
    together, got = replies(max_batch)
    assert max(together.rows) == most
    engine = engine_of("lossless")
    for made, n_tokens, how in zip(got, LENGTHS, SAMPLINGS, strict=True):
        hot = window(engine, n_tokens)
        logits = engine.runner.logits(torch.tensor([9]), hot)
        assert made == list(engine.runner.generate(logits, hot, Sampler(how), 12))


def test_recorded_steps_pick_for_the_calls_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    _, want = replies(8)
    asked: list[list[int]] = []

    def recorded(model: LoadedModel, eager: Eager, head: object) -> Decoder:
        parts = parts_of(model.network)
        way = "parts", lambda table: PlainStep(parts, table, TorchAttention(table), TorchOps())
        return Decoder(model, eager, NoRecorder(), [[way]])

    def noted(samplers: Sequence[Sampler], logits: Tensor) -> list[int]:
        asked.append(pick_all(samplers, logits))
        return asked[-1]

    monkeypatch.setattr("livingkv.runner.decoder_for", recorded)
    monkeypatch.setattr("livingkv.decoding.decoder.pick_all", noted)
    together, got = replies(8)
    assert got == want and max(together.rows) == 3
    assert max(map(len, asked)) == 2, "those that draw, at once; the likeliest token comes with the step"


def test_one_that_ends_or_leaves_does_not_touch_the_others() -> None:
    engine = engine_of("lossless")
    together = Together(engine, 8)
    calls = {n: together.call(window(engine, each), Sampling(), 12) for n, each in enumerate(LENGTHS)}
    calls[3] = together.call(window(engine, 9), Sampling(), 3)
    for call in calls.values():
        next(call)  # pauses before its prompt
    leaving = calls.pop(1)
    next(leaving)
    assert together.joining.n_waiting == 1
    leaving.close()
    assert together.joining.n_waiting == 0
    together.run(calls)
    _, want = replies(8)
    assert together.found[0][0] == want[0] and set(together.found) == {0, 2, 3} and len(together.found[3][0]) <= 3
    alone, hot = engine_of("lossless"), window(engine_of("lossless"), 130)
    logits = alone.runner.logits(torch.tensor([9]), hot)
    assert together.found[2][0] == list(alone.runner.generate(logits, hot, Sampler(Sampling()), 12))


class Damaging(HotWindow):
    """A hot window that cannot be read any more after some steps."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if layer == 2 and self.n_tokens >= 74:
            raise RecordDamaged("a page")
        return super().attend(layer, query, key, value, scale)


def test_a_damaged_page_is_told_to_the_call_that_needs_it() -> None:
    engine = engine_of("lossless")
    together = Together(engine, 8)
    calls = {
        n: together.call(window(engine, each), how, 12)
        for n, (each, how) in enumerate(zip(LENGTHS, SAMPLINGS, strict=True))
    }
    bad = window(engine, 70)
    bad.__class__ = Damaging
    calls[7] = together.call(bad, Sampling(), 12)
    together.run(calls)
    assert isinstance(together.errors[7], RecordDamaged) and 7 not in together.found
    assert [together.found[n][0] for n in range(3)] == replies(8)[1]


def test_an_error_of_the_shared_part_is_told_to_all(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of("lossless")
    together = Together(engine, 8)
    calls = {n: together.call(window(engine, each), Sampling(), 12) for n, each in enumerate(LENGTHS)}
    quick, n_rows = engine.runner.head, []

    def head(hidden: Tensor) -> Tensor:
        n_rows.append(hidden.shape[0])
        if n_rows.count(3) == 2:
            raise RecordDamaged("the device is out of memory")
        return quick(hidden)

    monkeypatch.setattr(engine.runner, "head", head)
    together.run(calls)
    assert set(together.errors) == {0, 1, 2} and together.joining.n_waiting == 0


def test_where_nobody_runs_the_steps_a_call_does_its_own() -> None:
    engine = engine_of("lossless")
    together = Together(engine, 8)
    call = together.call(window(engine, 5), Sampling(), 6)
    while True:
        try:
            next(call)
        except StopIteration as ended:
            assert ended.value[0] == replies(8, (5,), 6)[1][0] and not together.rows
            return
