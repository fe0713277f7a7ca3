"""KV read through the tiers is bit for bit what the codec makes of the store's bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from livingkv.codec import KV, page_bytes
from livingkv.engine import Engine
from livingkv.errors import PageDamaged
from livingkv.settings import PAGE_TOKENS, CodecName
from livingkv.store import Append, SessionRow, Store
from livingkv.stored_kv import StoredKV
from livingkv.tiers import budget_for, open_pages
from tests.tiers.tier_cases import flip_bit
from tests.tiny import tiny_model

N_PAGES = 20


def random_kv(engine: Engine, n_tokens: int) -> KV:
    shape = (engine.shape.n_layers, engine.shape.n_kv_heads, n_tokens, engine.shape.head_dim)
    generator = torch.Generator().manual_seed(n_tokens)
    return KV(*(torch.randn(shape, generator=generator).to(engine.shape.dtype) for _ in range(2)))


def stored(path: Path, engine: Engine) -> SessionRow:
    """A store with one session of `N_PAGES` pages and no tail."""
    with Store.open(path, mode="write", fingerprint=engine.fingerprint(), create=True) as store:
        session = store.create_session("main")
        pages = engine.codec.encode(random_kv(engine, N_PAGES * PAGE_TOKENS), 0)
        ids = np.zeros(N_PAGES * PAGE_TOKENS, dtype=np.int32)
        store.append(
            Append(
                session_id=session.session_id,
                first_token=0,
                token_ids=ids,
                text=b"",
                sentences=(),
                source="book",
                role="document",
                pages=tuple(pages),
                tail=b"",
                end_of_source=True,
                source_digest="",
                ends_turn=False,
            )
        )
        return store.session("main")


@pytest.mark.parametrize("codec", ["int8", "lossless"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_runs_are_bitwise_those_of_the_store(tmp_path: Path, codec: CodecName, dtype: torch.dtype) -> None:
    engine = Engine.of(tiny_model(dtype=dtype), codec)
    session = stored(tmp_path / "store", engine)
    size = page_bytes(codec, engine.shape)
    device = engine.model.device
    with (
        Store.open(tmp_path / "store", mode="read") as store,
        open_pages(store, page_bytes=size, ram_budget_bytes=budget_for(6, size)) as pages,
    ):
        kv = StoredKV(store, engine, pages)
        for lo, hi in ((0, 64), (30, 1200), (100, 101), (0, 1280), (1000, 1280), (30, 1200)):
            first, last = lo // PAGE_TOKENS, -(-hi // PAGE_TOKENS)
            plain = engine.codec.decode(
                store.read_pages(session.session_id, range(first, last)),
                [page * PAGE_TOKENS for page in range(first, last)],
                device,
            )
            cut = slice(lo - first * PAGE_TOKENS, hi - first * PAGE_TOKENS)
            run = kv.run(session, lo, hi)
            assert torch.equal(run.keys, plain.keys[:, :, cut])
            assert torch.equal(run.values, plain.values[:, :, cut])
            for _ in pages.stream(session.session_id, range(N_PAGES)):
                pass  # other pages take the rooms
            assert torch.equal(run.keys, plain.keys[:, :, cut]), "nothing decoded lies in the arena"
        pages.check()
        assert pages.counts().ram.n_in_use == 0


def test_damaged_page_never_becomes_a_tensor(tmp_path: Path) -> None:
    engine = Engine.of(tiny_model(), "int8")
    session = stored(tmp_path / "store", engine)
    size = page_bytes("int8", engine.shape)
    with (
        Store.open(tmp_path / "store", mode="read") as store,
        open_pages(store, page_bytes=size, ram_budget_bytes=budget_for(6, size)) as pages,
    ):
        flip_bit(tmp_path / "store", store.locate_pages(session.session_id, [3])[0].location)
        kv = StoredKV(store, engine, pages)
        with pytest.raises(PageDamaged, match="page 3"):
            kv.run(session, 0, 300)
        assert kv.run(session, 0, 192).keys.shape[2] == 192


@pytest.mark.gpu
def test_pinned_pages_are_those_of_the_store(tmp_path: Path) -> None:
    from livingkv.tiers.pinning import pin_for_cuda

    engine = Engine.of(tiny_model(), "int8")
    session = stored(tmp_path / "store", engine)
    size = page_bytes("int8", engine.shape)
    with Store.open(tmp_path / "store", mode="read") as store:
        plain = store.read_pages(session.session_id, range(N_PAGES))
        pages = open_pages(store, page_bytes=size, ram_budget_bytes=budget_for(8, size), register=pin_for_cuda)
        for _ in range(3):
            for page, view in pages.stream(session.session_id, range(N_PAGES)):
                tensor = torch.frombuffer(view, dtype=torch.uint8)
                assert tensor.is_pinned()
                copy = torch.empty(size, dtype=torch.uint8, device="cuda").copy_(tensor, non_blocking=True)
                torch.cuda.synchronize()
                assert bytes(copy.cpu().numpy().tobytes()) == plain[page]
                del tensor
        pages.close()
