"""What experiments 016, 017 and 018 build beside livingkv agrees with it where the two must be the same."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from livingkv import Memory, Settings
from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.stored_kv import StoredKV
from tests.tiny import tiny_model

Recompute = importlib.import_module("experiments.016_placement.recompute")
Cells = importlib.import_module("experiments.017_ingest_recall.cells")
Seed = importlib.import_module("experiments.018_seed.seed_memory")

N_SINKS = 8


@pytest.fixture
def engine() -> Engine:
    """Of a tiny random model."""
    return Engine.of(tiny_model("qwen2"), "lossless")


def read_behind(engine: Engine, ids: list[int]) -> KV:
    """All of the ids in one pass, the first of them being the sinks."""
    space = engine.workspace(len(ids))
    engine.runner.read(torch.tensor(ids), space)
    return space.view(0, space.end)


def recalled(engine: Engine, ids: list[int], first: list[int], second: list[int]) -> Any:
    """Two passages, each read behind the sinks alone, and put behind one another."""
    sinks = read_behind(engine, ids)
    parts = []
    at = N_SINKS
    for part in (first, second):
        kv = read_behind(engine, [*ids, *part])
        keys = engine.moved(kv.keys[:, :, N_SINKS:], at - N_SINKS)
        parts.append(KV(keys, kv.values[:, :, N_SINKS:]))
        at += len(part)
    return Recompute.Recalled(engine, sinks, parts, [first, second])


IDS = torch.randint(0, 256, (60,), generator=torch.Generator().manual_seed(0)).tolist()
SINKS, FIRST, SECOND = IDS[:N_SINKS], IDS[N_SINKS:30], IDS[30:]


def test_all_made_anew_is_what_reading_it_together_gives(engine: Engine) -> None:
    made = recalled(engine, SINKS, FIRST, SECOND).all()
    plain = read_behind(engine, IDS)
    torch.testing.assert_close(made.kv.keys, plain.keys[:, :, N_SINKS:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(made.kv.values, plain.values[:, :, N_SINKS:], atol=1e-4, rtol=1e-4)
    assert made.tokens == 52


def test_first_tokens_made_anew_leave_the_others_as_they_were_stored(engine: Engine) -> None:
    both = recalled(engine, SINKS, FIRST, SECOND)
    made, stored, plain = both.first(4), both.stored(), read_behind(engine, IDS)
    new = [*range(4), *range(22, 26)]
    old = [index for index in range(52) if index not in new]
    assert made.tokens == 8
    assert torch.equal(made.kv.keys[:, :, old], stored.kv.keys[:, :, old])
    assert torch.equal(made.kv.values[:, :, old], stored.kv.values[:, :, old])
    # the second layer of a token sees the first of all before it, and that is the same in both
    got, right = made.kv.values[1][:, new], plain.values[1][:, N_SINKS:][:, new]
    torch.testing.assert_close(got, right, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(stored.kv.values[1][:, 22:26], right[:, 4:], atol=1e-3)


def test_most_changed_tokens_are_not_those_that_saw_everything_already(engine: Engine) -> None:
    both = recalled(engine, SINKS, FIRST, SECOND)
    made, stored = both.most_changed(0.25), both.stored()
    touched = (made.kv.values[2] - stored.kv.values[2]).abs().amax((0, 2)) > 1e-3
    assert int(touched.sum()) <= 13
    assert bool(touched[22:].any()) and not bool(touched[:22].any())
    assert made.tokens == pytest.approx(52 * 2 / 3 + 13)
    assert len(engine.model.network.base_model.layers) == 3


def test_cells_without_recall_are_what_ingest_stores(tmp_path: Path) -> None:
    text = " ".join(f"The lamp number {n} stands in room {n * 7}." for n in range(40)).encode()
    with Memory.open(tmp_path / "store", model=tiny_model("qwen2"), settings=Settings(codec="lossless")) as memory:
        memory.ingest("text", text=text)
        home = memory._home
        engine, session = home.engine(), home.store().session("default")
        ids = home.store().token_ids(session.session_id, 0, session.n_tokens).tolist()
        assert len(ids) > 3 * Cells.LOOK.grid_tokens
        stored = StoredKV(home.store(), engine, home.pages()).run(session, 0, session.n_tokens)
        document = Cells.Document(ids, [(20, 30), (300, 310)], ["a", "b"], np.eye(2, dtype=np.float32))
        read = Cells.ReadDocument(engine, document, home.n_sinks, 0)
        kv = read.run(0, len(ids)).kv
        torch.testing.assert_close(kv.keys, stored.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(kv.values, stored.values, atol=1e-4, rtol=1e-4)
        recalled = Cells.ReadDocument(engine, document, home.n_sinks, 3)
        assert recalled.n_attended == 10
        assert torch.equal(recalled.run(0, 256).kv.values, kv.values[:, :, :256])
        assert not torch.allclose(recalled.run(256, 320).kv.values, kv.values[:, :, 256:320], atol=1e-4)


def test_the_seeds_memory_reads_like_the_plain_model_and_attends_its_budget(engine: Engine) -> None:
    ids = (IDS * 20)[:1100]
    memory = Seed.SeedMemory(engine, ids, [(lo, lo + 20) for lo in range(0, 1100, 20)])
    plain = read_behind(engine, ids)
    torch.testing.assert_close(memory._keys, plain.keys, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(memory._values, plain.values, atol=1e-3, rtol=1e-3)
    chosen = memory._chosen([3, 10, *range(55)], 64, 0)
    assert chosen == sorted({*range(1068, 1100), *range(60, 80), *range(200, 212)})
    assert memory._chosen([3], 48, 4) == [*range(4), *range(60, 72), *range(1068, 1100)]
    said = memory.ask("Where is it?", gold=5, probe="last", budget=256, max_tokens=4, told=True)
    assert said.attended == 256 and 1 <= said.rank <= 55
