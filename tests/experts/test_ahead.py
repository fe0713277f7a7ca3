"""Reads ahead: they make way, are never read twice, are given up, and are counted; guesses are those of the routers."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from livingkv.errors import ExpertReadError, InputError
from livingkv.experts import EmulatedSource, ExpertIndex, ExpertKey, Source, StreamedModel, load_streamed
from livingkv.experts.alternation import Alternation, Stretches
from livingkv.experts.arena import RowState
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.foretelling import Foreteller
from livingkv.experts.plugging import plug_in_ahead
from livingkv.experts.pread_source import PreadSource
from tests.experts.conftest import MadeOf
from tests.experts.tiny_moe import N_EXPERTS, make_checkpoint, plain_network

A, B, C = ExpertKey(0, 0), ExpertKey(1, 1), ExpertKey(2, 2)


class Gate:
    """os.preadv, which lets one read pass at a time, when it is told to."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self._passes = threading.Semaphore(0)
        self._begun = threading.Semaphore(0)

    def preadv(self, descriptor: int, targets: list[memoryview], offset: int) -> int:
        self.offsets.append(offset)
        self._begun.release()
        assert self._passes.acquire(timeout=5)
        return os.preadv(descriptor, targets, offset)

    def wait(self) -> None:
        """Until one more read has begun."""
        assert self._begun.acquire(timeout=5)

    def open(self, n_reads: int) -> None:
        self._passes.release(n_reads)


@contextmanager
def gated(folder: Path, n_threads: int = 1) -> Iterator[tuple[PreadSource, Gate, Callable[[ExpertKey], list[int]]]]:
    """A source behind a gate, and which offsets belong to an expert."""
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        index, gate = streamed.index, Gate()
    source = PreadSource(index, CheckpointFiles(index.checkpoint, direct=False, preadv=gate.preadv), n_threads, 4096)

    def offsets(key: ExpertKey) -> list[int]:
        return [at for run in index.placement(key).runs for at in range(run.block_lo, run.block_hi, 4096)]

    try:
        yield source, gate, offsets
    finally:
        gate.open(100)
        source.close()


def row() -> memoryview:
    return memoryview(bytearray(8192 + 4096))


def test_a_needed_read_goes_before_what_is_read_ahead_even_in_its_middle(checkpoint_of: MadeOf) -> None:
    with gated(checkpoint_of("qwen3_moe")) as (source, gate, offsets):
        ahead = source.read(A, row(), ahead=True)
        gate.wait()
        others = [source.read(C, row(), ahead=True), source.read(B, row())]
        gate.open(100)
        for future in [ahead, *others]:
            future.result(timeout=5)
        assert len(offsets(A)) > 1
        assert gate.offsets == offsets(A)[:1] + offsets(B) + offsets(A)[1:] + offsets(C)


def test_nothing_is_read_ahead_while_a_needed_piece_is_being_read(checkpoint_of: MadeOf) -> None:
    with gated(checkpoint_of("qwen3_moe"), n_threads=3) as (source, gate, offsets):
        needed = source.read(A, row())
        ahead = source.read(B, row(), ahead=True)
        for _ in offsets(A):
            gate.wait()
        assert sorted(gate.offsets) == offsets(A)
        gate.open(len(offsets(A)) - 1)
        with pytest.raises(TimeoutError):
            ahead.result(timeout=0.02)
        assert len(gate.offsets) == len(offsets(A))
        gate.open(100)
        needed.result(timeout=5)
        ahead.result(timeout=5)


def test_what_becomes_needed_is_moved_up_and_read_once(checkpoint_of: MadeOf) -> None:
    with gated(checkpoint_of("qwen3_moe")) as (source, gate, offsets):
        first = source.read(A, row())
        gate.wait()
        futures = [source.read(B, row(), ahead=True), source.read(C, row(), ahead=True)]
        source.need(futures[1])
        source.need(futures[1])
        gate.open(100)
        for future in [first, *futures]:
            future.result(timeout=5)
        assert gate.offsets == offsets(A) + offsets(C) + offsets(B)
        source.need(futures[1])
        assert source.counts().n_experts == 3


def test_what_was_not_begun_is_given_up_and_costs_nothing(checkpoint_of: MadeOf) -> None:
    with gated(checkpoint_of("qwen3_moe")) as (source, gate, offsets):
        begun, waiting = source.read(A, row(), ahead=True), source.read(B, row(), ahead=True)
        gate.wait()
        assert source.give_up(waiting) and not source.give_up(begun)
        with pytest.raises(ExpertReadError, match="it was not wanted any more"):
            waiting.result(timeout=0)
        gate.open(100)
        begun.result(timeout=5)
        assert gate.offsets == offsets(A) and not source.give_up(begun)


def test_closing_finishes_reads_ahead(checkpoint_of: MadeOf) -> None:
    with gated(checkpoint_of("qwen3_moe"), n_threads=3) as (source, gate, offsets):
        needed = source.read(A, row())
        futures = [needed, *(source.read(key, row(), ahead=True) for key in (B, C))]
        gate.open(100)
    assert [future.exception() for future in futures] == [None] * 3
    assert sorted(gate.offsets) == sorted(offsets(A) + offsets(B) + offsets(C))


def test_an_emulated_drive_knows_what_is_needed_too(checkpoint_of: MadeOf) -> None:
    with load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 20) as streamed:
        index = streamed.index
    inner = PreadSource(index, CheckpointFiles(index.checkpoint, direct=False), 2, 4096)
    source = EmulatedSource(inner, index, bytes_per_s=8e5)
    order: list[str] = []
    futures = {}
    for name, key, ahead in (("a", A, False), ("b", B, True), ("c", C, True), ("d", ExpertKey(0, 3), True)):
        futures[name] = source.read(key, row(), ahead=ahead)
        futures[name].add_done_callback(lambda _, name=name: order.append(name))  # type: ignore[misc]
    assert source.give_up(futures["b"])
    source.need(futures["d"])
    futures["c"].result(timeout=5)
    source.close()
    assert order == ["b", "a", "d", "c"] and inner.counts().n_experts == 3


def step(streamed: StreamedModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = streamed.network(torch.tensor([ids])).logits
    return found


def test_layers_that_choose_by_token_id_are_known_in_advance(tmp_path: Path) -> None:
    folder = make_checkpoint("deepseek_v4", tmp_path / "model", mlp_layer_types=["hash_moe", "hash_moe", "moe"])
    with load_streamed(folder, ram_bytes=1 << 20, read_ahead="on", n_ahead=N_EXPERTS) as streamed:
        asked: list[int] = []
        streamed.stream.on_asked = lambda asking: asked.append(asking.layer)
        step(streamed, [5])
        counts = streamed.counts()
        assert asked == [0, 1, 2] and [layer.n_misses for layer in counts.layers[:2]] == [0, 0]
        assert counts.ahead.n_used >= counts.layers[0].n_hits + counts.layers[1].n_hits > 0
        step(streamed, [44, 9, 61])
        layers = streamed.counts().layers
        assert [layer.n_misses for layer in layers[:2]] == [0, 0]


@pytest.mark.parametrize("family", ["qwen3_moe", "qwen3_next", "mixtral", "gpt_oss"])
def test_guesses_are_the_next_routers_choice_of_what_its_norm_would_make(checkpoint_of: MadeOf, family: str) -> None:
    network = plain_network(checkpoint_of(family))
    blocks = [layer.mlp for layer in network.model.layers]
    norms = [layer.post_attention_layernorm for layer in network.model.layers]
    with torch.no_grad():
        for norm in norms:
            norm.weight.normal_(1.0, 0.5)
        teller = Foreteller(network, [f"model.layers.{number}.mlp.experts" for number in range(3)])
        residual = torch.randn(7, 32)
        for layer in (1, 2):
            router = getattr(blocks[layer], "router", None) or blocks[layer].gate
            expected = router(norms[layer](residual))[-1]
            guessed = teller.chosen(layer, norms[layer - 1](residual))
            assert guessed is not None and torch.equal(guessed, expected)
    assert teller.chosen(0, None) is None and teller.chosen(3, residual) is None


def test_hooks_that_note_router_logits_do_not_see_guesses(checkpoint_of: MadeOf) -> None:
    folder = checkpoint_of("qwen3_moe")
    ids = torch.tensor([[5, 17, 80]])
    with load_streamed(folder, ram_bytes=1 << 20, read_ahead="on") as streamed, torch.no_grad():
        found = streamed.network(ids, output_router_logits=True).router_logits
        expected = plain_network(folder)(ids, output_router_logits=True).router_logits
        assert len(found) == len(expected) == 3
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_counts_add_up_and_no_expert_is_read_twice(checkpoint_of: MadeOf) -> None:
    def slow(index: ExpertIndex) -> Source:
        inner = PreadSource(index, CheckpointFiles(index.checkpoint, direct=False), 2, 4096)
        return EmulatedSource(inner, index, bytes_per_s=2e7)

    with load_streamed(checkpoint_of("mixtral"), ram_bytes=1 << 20, source=slow, read_ahead="on") as streamed:
        random = torch.Generator().manual_seed(3)
        for _ in range(12):
            step(streamed, torch.randint(0, 96, (1,), generator=random).tolist())
        counts, ahead = streamed.counts(), streamed.counts().ahead
        held = streamed.arena.keys()
        in_flight = [key for key in held if streamed.arena.state(key) is RowState.READING]
    assert ahead.n_read == ahead.n_used + ahead.n_wasted and ahead.n_used > 0
    assert ahead.read_bytes == ahead.used_bytes + ahead.wasted_bytes > 0
    assert counts.n_misses + ahead.n_read - len(in_flight) <= counts.source.n_experts <= counts.n_misses + ahead.n_read
    assert counts.source.n_experts <= 24 and ahead.is_on and ahead.verdict == "always on"


def test_a_read_ahead_that_fails_is_an_error_where_it_is_needed_only(checkpoint_of: MadeOf) -> None:
    fails = threading.Event()

    def preadv(descriptor: int, targets: list[memoryview], offset: int) -> int:
        if fails.is_set():
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(descriptor, targets, offset)

    folder = checkpoint_of("qwen3_moe")
    expected = plain_network(folder)(torch.tensor([[5, 17]])).logits
    with load_streamed(
        folder,
        ram_bytes=1 << 20,
        read_ahead="on",
        source=lambda index: PreadSource(
            index, CheckpointFiles(index.checkpoint, direct=False, preadv=preadv), 2, 4096
        ),
    ) as streamed:
        ahead, arena = streamed.stream.ahead, streamed.arena
        assert ahead is not None
        fails.set()
        ahead.expect(1, [list(range(N_EXPERTS))], N_EXPERTS)
        ahead.fill()
        with pytest.raises(ExpertReadError):
            step(streamed, [5, 17])
        assert arena.check() == []
        fails.clear()
        for _ in range(2):
            assert torch.equal(step(streamed, [5, 17]), expected) and arena.check() == []


def test_what_does_not_pay_is_switched_off_while_the_model_runs(checkpoint_of: MadeOf) -> None:
    with load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 20) as streamed:
        assert streamed.counts().ahead.verdict == "comparing" and streamed.counts().ahead.is_on
        names = [layer.module for layer in streamed.index.layers]
        pace = _Slower(Stretches(n_pairs=2, n_tokens=2, n_settling=0))
        plug_in_ahead(streamed.network, names, streamed.stream, pace, 2)
        step(streamed, [3, 4])  # a prompt is no token: nobody times it
        for number in range(8):
            assert streamed.counts().ahead.verdict == "comparing"
            step(streamed, [number])
        ahead = streamed.counts().ahead
        assert ahead.verdict == "does not pay" and not ahead.is_on and ahead.on_s == 2.0 and ahead.off_s == 1.0
        step(streamed, [90])
        step(streamed, [91])
        after = streamed.counts().ahead
        assert after.n_read + after.n_given_up == ahead.n_read + ahead.n_given_up


class _Slower(Alternation):
    """Tokens take two seconds with reading ahead, and one without, whatever the clock says."""

    def took(self, seconds: float) -> None:
        super().took(2.0 if self.is_on else 1.0)


def test_bad_settings_are_refused(checkpoint_of: MadeOf) -> None:
    with pytest.raises(InputError, match="n_ahead: got 0; at least 1 is needed"):
        load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 20, n_ahead=0)
    with pytest.raises(InputError, match="read_ahead: got maybe; auto, on and off are allowed"):
        load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 20, read_ahead="maybe")  # type: ignore[arg-type]
