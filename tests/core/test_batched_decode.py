"""Steps of several states in one pass: what each would have been alone, up to rounding, and errors of one its own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep, Outcome
from livingkv.engine import Engine
from livingkv.errors import RecordDamaged
from livingkv.hot_window import HotWindow
from livingkv.models import DualChunk
from livingkv.settings import CodecName, LookBack
from livingkv.workspace import AttentionState, Workspace
from tests.core.test_exactness import tokens
from tests.core.test_hot_window import N_SINKS, SETTINGS, engine_of
from tests.tiny import FAMILIES, tiny_model

LENGTHS = (1, 63, 64, 100, 519)
INT8 = ("qwen2", "int8", 5e-3, 40)
"""A page is sealed on the way: a last bit may become a step of the codec."""


def windows(engine: Engine, lengths: Sequence[int] = LENGTHS) -> list[HotWindow]:
    """Sessions of these lengths; the second one is a document on a grid."""
    made = []
    for number, n_tokens in enumerate(lengths):
        look = LookBack(64, 64) if number == 1 else None
        hot = engine.hot_window(SETTINGS, N_SINKS, look)
        engine.runner.read(tokens(n_tokens, seed=number), hot)
        made.append(hot)
    return made


def of(outcome: Outcome) -> Tensor:
    """The logits [vocabulary] of a row that did not fail."""
    assert isinstance(outcome, Tensor), outcome
    return outcome[0, -1]


def greedy_together(engine: Engine, states: Sequence[AttentionState], n: int) -> list[Tensor]:
    """Logits of `n` greedy steps of all states, [steps, vocabulary] of each."""
    picked, rows = [5 + row for row in range(len(states))], [list[Tensor]() for _ in states]
    for _ in range(n):
        steps = [DecodeStep(token, state) for token, state in zip(picked, states, strict=True)]
        logits = [of(each) for each in engine.runner.logits_of(steps)]
        picked = [int(each.argmax()) for each in logits]
        for row, each in zip(rows, logits, strict=True):
            row.append(each)
    return [torch.stack(row) for row in rows]


def greedy_alone(engine: Engine, state: AttentionState, token: int, n: int) -> Tensor:
    rows = []
    for _ in range(n):
        rows.append(engine.runner.step(token, state)[0, -1])
        token = int(rows[-1].argmax())
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("family", "codec", "within", "n"), [*((name, "lossless", 1e-4, 6) for name in FAMILIES), INT8]
)
def test_rows_are_what_they_are_alone(family: str, codec: CodecName, within: float, n: int) -> None:
    engine = Engine.of(tiny_model(family), codec)
    together = greedy_together(engine, windows(engine), n)
    for row, (got, hot) in enumerate(zip(together, windows(engine), strict=True)):
        want = greedy_alone(engine, hot, 5 + row, n)
        assert torch.equal(got.argmax(-1), want.argmax(-1))
        torch.testing.assert_close(got, want, rtol=within, atol=within)


def test_rows_with_dual_chunk_positions() -> None:
    engine = engine_of("lossless", dual_chunk=DualChunk(96, 32, 4096))
    together = greedy_together(engine, windows(engine), 10)
    for row, (got, hot) in enumerate(zip(together, windows(engine), strict=True)):
        torch.testing.assert_close(got, greedy_alone(engine, hot, 5 + row, 10), rtol=1e-4, atol=1e-4)


def test_pages_that_rows_seal_are_those_of_states_alone() -> None:
    engine = engine_of("lossless")
    together, alone = windows(engine, (60, 62)), windows(engine, (60, 62))
    greedy_together(engine, together, 8)
    for row, (one, other) in enumerate(zip(together, alone, strict=True)):
        greedy_alone(engine, other, 5 + row, 8)
        assert one.n_tokens == other.n_tokens and one.n_sealed == other.n_sealed == 64
        got, want = one.workspace.view(*ends(one)), other.workspace.view(*ends(other))
        torch.testing.assert_close(got.keys, want.keys, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got.values, want.values, rtol=1e-4, atol=1e-4)


def ends(hot: HotWindow) -> tuple[int, int]:
    return hot.workspace.start, hot.workspace.end


def test_one_step_is_a_pass_of_its_own_to_the_last_bit() -> None:
    engine = engine_of("int8", dtype=torch.bfloat16)
    one, other = (windows(engine, (200,))[0] for _ in range(2))
    for token in (3, 5, 9):
        (got,) = engine.runner.logits_of([DecodeStep(token, one)])
        assert torch.equal(of(got), engine.runner.logits(torch.tensor([token]), other)[0, -1])


def test_passes_and_tokens_are_counted() -> None:
    engine = engine_of("int8")
    states, before = windows(engine, (3, 70, 9)), engine.runner.n_prefilled
    n_passes = engine.runner.n_passes
    greedy_together(engine, states, 2)
    assert (engine.runner.n_prefilled - before, engine.runner.n_passes - n_passes) == (6, 2)


class Damaged(Workspace):
    """A state whose pages turn out to be damaged in one layer of a pass."""

    layer = 1

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        if layer == self.layer:
            raise RecordDamaged("a page")
        return super().attend(layer, query, key, value, scale)


@pytest.mark.parametrize("n_rows", [1, 3])
def test_an_error_of_one_row_is_its_own(n_rows: int) -> None:
    engine = engine_of("lossless")
    model = engine.model
    damaged = Damaged(engine.shape, model.rope, 8, model.device)
    others, alone = windows(engine, (60, 130))[: n_rows - 1], windows(engine, (60, 130))[: n_rows - 1]
    states: list[AttentionState] = [*others[:1], damaged, *others[1:]]
    steps = [DecodeStep(7, state) for state in states]
    outcomes = engine.runner.logits_of(steps)
    assert isinstance(outcomes.pop(min(1, n_rows - 1)), RecordDamaged)
    for got, hot, left in zip(outcomes, alone, others, strict=True):
        torch.testing.assert_close(of(got), engine.runner.step(7, hot)[0, -1], rtol=1e-4, atol=1e-4)
        assert left.n_tokens == hot.n_tokens
    assert damaged.end == 0, "the token is not part of it"


def test_a_state_takes_one_token_at_a_time() -> None:
    engine = engine_of("lossless")
    (hot,) = windows(engine, (5,))
    with pytest.raises(AssertionError, match="one token at a time"):
        engine.runner.logits_of([DecodeStep(1, hot), DecodeStep(2, hot)])


def test_a_step_asks_whether_it_may_join() -> None:
    engine = engine_of("lossless")
    hot, other = windows(engine, (5,)) + windows(engine, (5,))
    asked: list[DecodeStep] = []
    told = torch.zeros(1, 1, 8)

    def join(step: DecodeStep) -> Tensor | None:
        asked.append(step)
        return told if len(asked) == 1 else None

    engine.runner.join = join
    n_read = engine.runner.n_prefilled
    assert engine.runner.step(4, hot) is told and hot.n_tokens == 5
    assert torch.equal(engine.runner.step(4, hot), engine.runner.logits(torch.tensor([4]), other))
    with engine.runner.uninterrupted():
        engine.runner.step(4, hot)
    assert asked == [DecodeStep(4, hot)] * 2 and engine.runner.n_prefilled == n_read + 4
