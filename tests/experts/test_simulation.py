"""Simulated caches against brute force, against the arena, and against a streamed model that was recorded."""

from __future__ import annotations

from concurrent.futures import Future
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.errors import InputError
from livingkv.experts import load_streamed
from livingkv.experts.arena import RowArena, n_kept_of
from livingkv.experts.eviction import LeastRecent
from livingkv.experts.keys import ExpertKey
from livingkv.experts.route_trace import RouteRecorder, Trace, TracedPass, read_trace
from livingkv.experts.simulation import OptimalCache, RuleCache, passes_of, simulate
from tests.experts.conftest import MadeOf

N_LAYERS, N_EXPERTS = 2, 5
PASSES = st.lists(st.lists(st.integers(0, N_EXPERTS - 1), min_size=1, max_size=4), max_size=14).map(
    lambda passes: [
        sorted({ExpertKey(number % N_LAYERS, expert) for expert in experts}) for number, experts in enumerate(passes)
    ]
)


def trace_of(passes: list[list[ExpertKey]]) -> Trace:
    chosen = [np.array([[key.expert for key in needed]], np.uint16) for needed in passes]
    routed = tuple(TracedPass(needed[0].layer, rows) for needed, rows in zip(passes, chosen, strict=True))
    return Trace((N_EXPERTS,) * N_LAYERS, routed)


def best_possible(passes: list[list[ExpertKey]], n_kept: int) -> int:
    """The most hits that any choice of what is kept can have, by trying all of them."""

    @cache
    def best(number: int, held: frozenset[ExpertKey]) -> int:
        if number == len(passes):
            return 0
        after = held | set(passes[number])
        kept = combinations(sorted(after), min(n_kept, len(after)))
        return len(held & set(passes[number])) + max(best(number + 1, frozenset(one)) for one in kept)

    return best(0, frozenset())


@settings(max_examples=40)
@given(PASSES.map(lambda passes: passes[:7]), st.integers(1, 4))
def test_the_optimum_is_what_brute_force_finds(passes: list[list[ExpertKey]], n_kept: int) -> None:
    optimum = OptimalCache(n_kept, passes)
    assert sum(optimum.run(needed) for needed in passes) == best_possible(passes, n_kept)


@given(PASSES, st.integers(1, N_LAYERS * N_EXPERTS))
def test_no_rule_has_more_hits_than_the_optimum(passes: list[list[ExpertKey]], n_rows: int) -> None:
    found = {one.rule: one for one in simulate(trace_of(passes), [n_rows], [10, 1000])}
    n_uses = sum(len(needed) for needed in passes)
    for one in found.values():
        assert one.n_hits <= found["optimum"].n_hits and one.n_hits + one.n_misses == n_uses
        assert one.read_bytes % 10 == 0 and (one.read_bytes > 0) == (one.n_misses > 0)
    if n_rows == N_LAYERS * N_EXPERTS:
        assert len({one.n_hits for one in found.values()}) == 1


@settings(max_examples=60)
@given(PASSES, st.integers(4, N_LAYERS * N_EXPERTS))
def test_the_least_recent_rule_hits_what_the_arena_hits(passes: list[list[ExpertKey]], n_rows: int) -> None:
    n_needed = N_LAYERS * N_EXPERTS
    simulated = RuleCache(n_kept_of(n_rows, n_needed), LeastRecent(N_LAYERS, n_kept_of(n_rows, n_needed)))
    arena = RowArena(n_rows, 4096, n_needed=n_needed, eviction=lambda n: LeastRecent(N_LAYERS, n))
    done: Future[None] = Future()
    done.set_result(None)
    for needed in passes:
        rows = [arena.use(key) for key in needed]
        held = [row for row in rows if row is not None]
        assert simulated.run(needed) == len(held)
        for key in (key for key, row in zip(needed, rows, strict=True) if row is None):
            row = arena.take(key, len(needed))
            while row is None:  # as in a pass: what is computed makes room
                arena.release(held.pop(0))
                row = arena.take(key, len(needed))
            arena.begin(row, key, done)
            arena.finish(row)
            held.append(row)
        for row in held:
            arena.release(row)
        assert arena.check() == []
    arena.close()


@pytest.mark.parametrize("n_rows", [10, 16, 24])
def test_a_recorded_run_is_simulated_as_it_was_measured(checkpoint_of: MadeOf, tmp_path: Path, n_rows: int) -> None:
    path = tmp_path / "routes"
    with load_streamed(
        checkpoint_of("qwen3_moe"), ram_bytes=n_rows * 8192 + 8192, n_threads=2, piece_bytes=4096, read_ahead="off"
    ) as streamed:
        layers = streamed.index.layers
        with RouteRecorder(path, tuple(layer.n_experts for layer in layers)) as recorder, torch.no_grad():
            streamed.stream.on_asked = recorder.record
            random = torch.Generator().manual_seed(1)
            for n_tokens in (1, 1, 9, 1, 1, 2, 1, 1, 1, 1):
                streamed.network(torch.randint(0, 96, (1, n_tokens), generator=random))
        counts = streamed.counts()
        n_bytes = [streamed.index.expert_bytes(layer) for layer in range(len(layers))]
    trace = read_trace(path)
    assert [one.chosen.shape for one in trace.passes[6:9]] == [(9, 2)] * 3 and len(trace.passes) == 30
    found = {one.rule: one for one in simulate(trace, [n_rows], n_bytes)}
    assert found["least recent"].n_hits == counts.n_hits > 0
    assert found["least recent"].n_misses == counts.n_misses == counts.source.n_experts
    assert found["optimum"].n_hits >= counts.n_hits and 0 < found["optimum"].hit_share < 1


def test_a_trace_that_was_broken_off_ends_at_its_last_whole_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    passes = [[ExpertKey(0, 1), ExpertKey(0, 4)], [ExpertKey(1, 0)], [ExpertKey(0, 2), ExpertKey(0, 3)]]
    path = tmp_path / "routes"
    with RouteRecorder(path, (N_EXPERTS, N_EXPERTS)) as recorder:
        for one in trace_of(passes).passes:
            recorder.record(_Routed(one.layer, one.chosen.tolist()))
    whole = path.read_bytes()
    assert passes_of(read_trace(path)) == passes and caplog.records == []
    for n_bytes in range(len(whole) - 15, len(whole)):
        path.write_bytes(whole[:n_bytes])
        assert passes_of(read_trace(path)) == passes[:2]
    path.write_bytes(whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:])
    assert passes_of(read_trace(path)) == passes[:2]
    assert "2 passes are whole" in caplog.records[-1].message
    for damaged in (
        b"",
        whole[:9],
        b"X" + whole[1:],
        whole[:8] + b"\x09" + whole[9:],
        whole[:12] + b"\x77" + whole[13:],
    ):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"trace: got .*routes; it"):
            read_trace(path)
    with pytest.raises(FileExistsError):
        RouteRecorder(path, (1,))


class _Routed:
    def __init__(self, layer: int, chosen: list[list[int]]) -> None:
        self.layer, self.chosen = layer, chosen
