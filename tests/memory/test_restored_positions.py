"""Whatever was inserted, deleted or moved: the keys that are attended stand where a fresh computation puts them.

In the first layer a key depends on its token and its position alone, so that every attended slot can be computed anew.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor

from livingkv import Memory, Settings
from livingkv.models import DualChunk
from livingkv.passages import Judged
from livingkv.positions import rotate, rotation
from livingkv.recall import Probed, attend_passages, passages_for
from livingkv.settings import Placement
from livingkv.stored_kv import StoredKV
from livingkv.workspace import Workspace
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds: many operations on stores

SETTINGS = Settings(window_tokens=128, block_tokens=64, commit_tokens=64, codec="lossless")
MODEL = tiny_model("qwen2", dual_chunk=DualChunk(512, 256, 2048))
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


def fresh_keys(ids: Tensor, positions: Tensor) -> Tensor:
    """First layer's keys [kv_heads, tokens, dim] of these tokens at these positions, computed from nothing stored."""
    base = MODEL.network.base_model
    layer = base.layers[0]
    with torch.inference_mode():
        keys = layer.self_attn.k_proj(layer.input_layernorm(base.embed_tokens(ids)))
    shaped = keys.view(len(ids), MODEL.shape.n_kv_heads, MODEL.shape.head_dim).transpose(0, 1)
    return rotate(shaped, rotation(positions, MODEL.rope))


def assert_fresh(space: Workspace, ids: Tensor) -> None:
    """Every attended slot holds the key of its token at the slot's position."""
    positions = space.positions[space.start : space.end]
    assert len(positions) == len(ids)
    got = space.keys[0, :, space.start : space.end]
    assert (got - fresh_keys(ids, positions)).abs().max() <= 1e-4


def check_window(memory: Memory, session: str) -> None:
    """Sinks and window of the restored session: their keys, and positions without gaps up to the end."""
    home = memory._home
    row = home.session_for_writing(session)
    with home.hot_window(row) as hot:
        space = hot.branch(1)
    ids = torch.from_numpy(home.store().token_ids(row.session_id, 0, row.n_tokens)).long()
    positions = space.positions[space.start : space.end]
    assert positions.tolist() == list(range(row.n_tokens - len(positions), row.n_tokens))
    n_window = len(positions) - (home.n_sinks if len(positions) < row.n_tokens else 0)
    attended = ids if n_window == row.n_tokens else torch.cat([ids[: home.n_sinks], ids[row.n_tokens - n_window :]])
    assert_fresh(space, attended)
    assert space.next_position == row.n_tokens


def check_recall(memory: Memory, session: str, rng: random.Random, placement: Placement) -> None:
    """Recalled passages: their keys, and positions as the placement says."""
    home = memory._home
    row, store = home.store().session(session), home.store()
    own = [sentence for sentence in store.sentences_after(None, 10_000) if sentence.session_id == row.session_id]
    hits = [Judged(sentence, 1.0, 1.0, None, 1.0) for sentence in rng.sample(own, min(3, len(own)))]
    passages = sorted(passages_for(store, hits, 256), key=lambda passage: passage.token_lo)
    kv = StoredKV(store, home.engine(), home.pages())
    space = attend_passages(home.engine(), kv, Probed((row,), ()), passages, home.n_sinks, 8, placement)
    spans = [(0, home.n_sinks), *((passage.token_lo, passage.token_hi) for passage in passages)]
    ids = torch.cat([torch.from_numpy(store.token_ids(row.session_id, lo, hi)).long() for lo, hi in spans])
    assert_fresh(space, ids)
    positions = space.positions[: space.end].tolist()
    if placement == "compact":
        assert positions == list(range(space.end)) and space.next_position == space.end
    else:
        sinks = list(range(row.n_tokens - home.n_sinks, row.n_tokens))
        assert positions == sinks + [token for lo, hi in spans[1:] for token in range(lo, hi)]
        assert space.next_position == row.n_tokens


def change(memory: Memory, session: str, rng: random.Random) -> str:
    """One random insertion, deletion or move; the session to go on with."""
    home = memory._home
    row = home.store().session(session)
    match rng.choice(["text", "talk", "forget", "drop", "fork", "restore"]):
        case "text":
            lines = [f"Line {rng.randrange(10**6)} of {rng.randrange(99)}. " for _ in range(rng.randint(1, 12))]
            memory.ingest(f"source {rng.random()}", text="".join(lines).encode(), session=session)
        case "talk":
            memory.chat(f"Say {rng.randrange(99)}.", session=session, max_tokens=rng.randint(1, 90))
        case "forget":
            sentences = [each for each in home.store().sentences_after(None, 10_000) if each.session_id == 1]
            if len(sentences) > 4:
                memory.forget(sentence_ids=[rng.choice(sentences).sentence_id])
        case "drop":
            n_pages = row.n_sealed_tokens // 64
            present = sorted(set(range(n_pages)) - set(home.store().missing_pages(row.session_id)))
            if present:
                home.store().drop_pages(row.session_id, rng.sample(present, rng.randint(1, len(present))))
        case "fork":
            name = f"fork {rng.random()}"
            memory.fork(session, name)
            return name
        case _:
            home.let_go()
    memory.repair()
    return session


@pytest.mark.parametrize("seed", range(4))
def test_keys_stand_where_a_fresh_computation_puts_them(tmp_path: Path, seed: int) -> None:
    rng, session = random.Random(seed), "default"
    for opening in range(3):
        with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
            if opening == 0:
                memory.ingest("first", text=b"The first line. A second one. " * 9, session=session)
            for _ in range(5):
                session = change(memory, session, rng)
                check_window(memory, session)
                check_recall(memory, session, rng, rng.choice(PLACEMENTS))
