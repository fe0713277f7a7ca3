"""A streamed network answers what the plain eager network answers, to the last bit, whatever RAM holds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from time import sleep
from typing import Any, Literal

import pytest
import torch
from safetensors.torch import load_file, save_file

from livingkv.experts import Asked, EmulatedSource, ExpertIndex, ExpertKey, Source, load_streamed
from livingkv.experts.arena import RowState
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.pread_source import PreadSource
from tests.experts.conftest import MadeOf, index_of
from tests.experts.tiny_moe import FAMILIES, N_EXPERTS, TOP_K, plain_network

PROMPT = torch.tensor([[5, 17, 80, 3, 44, 9, 62, 31, 7, 7, 50, 23, 90, 12]])
N_LAYERS = 3
LAP = N_LAYERS * TOP_K
SLOW = pytest.mark.slow
READ_AHEAD: tuple[Literal["off", "on"], ...] = ("off", "on")
ROWS = {"none": 1, "partial": LAP + 4, "all": N_LAYERS * N_EXPERTS}
FAST = {("qwen3_moe", "none", "on"), ("qwen3_moe", "partial", "off"), ("qwen3_moe", "all", "on")}
"""Besides partial and on of every family."""

pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")


def budget(index_row_bytes: int, n_rows: int, n_threads: int) -> int:
    """RAM for so many rows, with the buffers of so many threads whose pieces are a block."""
    return n_rows * index_row_bytes + n_threads * 4096


def answers(network: Any) -> list[torch.Tensor]:
    """Logits of a prompt, of single tokens behind it, and of two prompts at once; and a greedy generation."""
    prompt = PROMPT.to(network.device)
    with torch.no_grad():
        whole = network(prompt, use_cache=True)
        found = [whole.logits]
        cache = whole.past_key_values
        for token in (4, 61):
            step = network(prompt.new_tensor([[token]]), past_key_values=cache, use_cache=True)
            cache = step.past_key_values
            found.append(step.logits)
        found.append(network(torch.cat([prompt, prompt.flip(1)])).logits)
        found.append(network.generate(prompt, max_new_tokens=4, do_sample=False, use_cache=True))
    return found


@pytest.fixture(scope="module")
def eager_of(checkpoint_of: MadeOf) -> Callable[[str], list[torch.Tensor]]:
    """What a family's plain network answers, made once."""
    made: dict[str, list[torch.Tensor]] = {}

    def find(family: str) -> list[torch.Tensor]:
        if family not in made:
            made[family] = answers(plain_network(checkpoint_of(family)))
        return made[family]

    return find


CASES = [
    pytest.param(*case, marks=() if case[1:] == ("partial", "on") or case in FAST else SLOW)
    for case in product(FAMILIES, ROWS, READ_AHEAD)
]


@pytest.mark.parametrize(("family", "name", "read_ahead"), CASES)
def test_equal_to_eager(
    checkpoint_of: MadeOf,
    eager_of: Callable[[str], list[torch.Tensor]],
    family: str,
    name: str,
    read_ahead: Literal["off", "on"],
) -> None:
    folder, expected = checkpoint_of(family), eager_of(family)
    n_rows, n_threads = ROWS[name], 1 if name == "none" else 3
    ram_bytes = budget(index_of(folder).row_bytes, n_rows, n_threads)
    with load_streamed(
        folder, ram_bytes=ram_bytes, n_threads=n_threads, piece_bytes=4096, read_ahead=read_ahead, n_ahead=3
    ) as streamed:
        assert streamed.arena.n_rows == n_rows
        found = answers(streamed.network)
        assert [torch.equal(a, b) for a, b in zip(expected, found, strict=True)] == [True] * len(expected)
        assert streamed.check() == []
        counts = streamed.counts()
    assert (counts.ahead.n_used > 0) == (read_ahead == "on" and name != "none")
    if read_ahead == "off":
        assert counts.n_misses == counts.source.n_experts
    if name == "all":
        assert counts.source.n_experts <= N_LAYERS * N_EXPERTS
    if name == "none":
        assert counts.n_hits == 0


def test_equal_with_less_than_a_token_needs(checkpoint_of: MadeOf, caplog: pytest.LogCaptureFixture) -> None:
    folder = checkpoint_of("mixtral")
    expected = answers(plain_network(folder))
    with load_streamed(folder, ram_bytes=budget(8192, LAP - 1, 2), n_threads=2, piece_bytes=4096) as streamed:
        found = answers(streamed.network)
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))
        assert streamed.counts().n_hits > 0
    assert [record.message for record in caplog.records if "one token needs 6 experts" in record.message] == [
        record.message for record in caplog.records
    ] and len(caplog.records) == 1


@pytest.mark.parametrize("family", ["qwen3_moe", *(pytest.param(name, marks=SLOW) for name in ("mixtral", "gpt_oss"))])
def test_equal_in_bf16(checkpoint_of: MadeOf, family: str) -> None:
    folder = checkpoint_of(family, torch.bfloat16)
    expected = answers(plain_network(folder, torch.bfloat16))
    with load_streamed(folder, ram_bytes=1 << 16, n_threads=2, piece_bytes=4096, source="buffered") as streamed:
        assert streamed.network.dtype == torch.bfloat16
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))


@pytest.mark.parametrize("name_bytes", [pytest.param(0, marks=SLOW), 3, pytest.param(8, marks=SLOW)])
def test_equal_where_the_file_holds_all_experts_of_a_layer_in_one_tensor(
    checkpoint_of: MadeOf, tmp_path: Path, name_bytes: int
) -> None:
    """transformers maps such tensors from the file, so their addresses follow the length of its header."""
    folder = checkpoint_of("qwen3_moe")
    stored = load_file(folder / "model.safetensors")
    for layer in range(N_LAYERS):
        at = f"model.layers.{layer}.mlp.experts"
        parts = {
            kind: [stored.pop(f"{at}.{e}.{kind}_proj.weight") for e in range(N_EXPERTS)]
            for kind in ("gate", "up", "down")
        }
        stored[f"{at}.gate_up_proj"] = torch.cat([torch.stack(parts["gate"]), torch.stack(parts["up"])], dim=1)
        stored[f"{at}.down_proj"] = torch.stack(parts["down"])
    shutil.copy(folder / "config.json", tmp_path)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt", "longer": "x" * name_bytes})
    expected = answers(plain_network(tmp_path))
    with load_streamed(tmp_path, ram_bytes=8 * 8192, n_threads=2, piece_bytes=4096) as streamed:
        report = streamed.index.report()
        assert report.in_place_share == 1 and report.reads_per_expert == 2
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))


def test_equal_in_another_type_than_the_stored_one(checkpoint_of: MadeOf) -> None:
    folder = checkpoint_of("qwen3_moe", torch.bfloat16)
    expected = answers(plain_network(folder, torch.float32))
    with load_streamed(folder, ram_bytes=1 << 20, dtype=torch.float32) as streamed:
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))


@pytest.mark.parametrize("n_rows", [pytest.param(2, marks=SLOW), 7, pytest.param(11, marks=SLOW)])
def test_equal_in_whatever_order_reads_are_done(checkpoint_of: MadeOf, n_rows: int) -> None:
    delays = Random(n_rows)

    def preadv(descriptor: int, targets: list[memoryview], offset: int) -> int:
        sleep(delays.random() * 0.002)
        return os.preadv(descriptor, targets, offset)

    def shuffled(index: ExpertIndex) -> Source:
        return PreadSource(index, CheckpointFiles(index.checkpoint, direct=True, preadv=preadv), 5, 4096)

    folder = checkpoint_of("mixtral")
    expected = answers(plain_network(folder))
    with load_streamed(folder, ram_bytes=budget(8192, n_rows, 5), source=shuffled) as streamed:
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))
        assert streamed.check() == []


def test_equal_where_somebody_reads_ahead(checkpoint_of: MadeOf) -> None:
    """What is read before it is needed is found, in whatever state, and is never read twice."""
    folder = checkpoint_of("qwen3_moe")
    expected = answers(plain_network(folder))
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        stream = streamed.stream

        def read_ahead(asked: Asked) -> None:
            for expert in range(N_EXPERTS):
                key = ExpertKey((asked.layer + 1) % N_LAYERS, expert)
                if stream.arena.state(key) is RowState.EMPTY:
                    row = stream.arena.take(key, 1)
                    assert row is not None
                    stream.ask(key, row)
                    stream.arena.release(row)

        stream.on_asked = read_ahead
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))
        counts = streamed.counts()
        assert counts.source.n_experts == N_LAYERS * N_EXPERTS
        assert [layer.n_misses for layer in counts.layers[1:]] == [0, 0] and streamed.check() == []


def test_each_expert_is_read_once_in_a_pass_and_one_arrives_after_the_other(checkpoint_of: MadeOf) -> None:
    def slow(index: ExpertIndex) -> Source:
        inner = PreadSource(index, CheckpointFiles(index.checkpoint, direct=False), 2, 4096)
        return EmulatedSource(inner, index, bytes_per_s=2e7, latency_s=0.001)

    folder = checkpoint_of("qwen3_moe")
    with torch.no_grad():
        expected = plain_network(folder)(PROMPT).logits
    with load_streamed(folder, ram_bytes=5 * 8192, source=slow) as streamed:
        asked: list[tuple[int, int]] = []
        streamed.stream.on_asked = lambda asking: asked.append((asking.layer, len(asking.experts)))
        with torch.no_grad():
            assert torch.equal(streamed.network(PROMPT).logits, expected)
        counts = streamed.counts()
        assert [layer for layer, _ in asked] == [0, 1, 2]
        assert counts.source.n_experts == counts.n_misses == sum(n for _, n in asked)
        assert counts.waited_s > 0.01 and counts.n_passes == 3 and counts.n_tokens == 3 * PROMPT.shape[1]
