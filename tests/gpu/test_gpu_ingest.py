"""Reading on a GPU: nothing waits in a pass, one kernel attends what stands before a block, and pages leave whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from livingkv import Memory, Settings
from livingkv.attention import Partition, attend, attend_reference
from livingkv.codec import KV
from livingkv.device_rows import DeviceRows
from livingkv.engine import Engine
from livingkv.models import DualChunk, from_network
from livingkv.settings import CodecName, LookBack
from tests.core.test_cells import read, window
from tests.core.test_exactness import tokens
from tests.tiny import tiny_network, tiny_tokenizer

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]


def engine_of(codec: CodecName = "int8", dual_chunk: DualChunk | None = None) -> Engine:
    """A tiny engine in bf16 on the GPU."""
    network = tiny_network("qwen2", dtype=torch.bfloat16).to("cuda")
    return Engine.of(from_network(network, tiny_tokenizer(), name="tiny", dual_chunk=dual_chunk), codec)


@contextmanager
def nothing_waits() -> Iterator[None]:
    """Whatever waits for the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize(("n_tokens", "n_keys"), [(256, 400), (40, 40), (512, 5000), (7, 300), (1, 90)])
@pytest.mark.parametrize("n_cells", [1, 5])
def test_a_block_behind_its_keys_is_what_the_reference_says(n_tokens: int, n_keys: int, n_cells: int) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def make(heads: int, n: int) -> torch.Tensor:
        return torch.randn(n_cells, heads, n, 128, generator=generator, device="cuda").bfloat16()

    parts = [Partition(make(28, n_tokens), make(4, n_keys), make(4, n_keys), causal=True)]
    parts.append(Partition(make(28, n_tokens), make(4, 64), make(4, 64)))
    for some in (parts[:1], parts):
        got, want = attend(some, 0.088), attend_reference(some, 0.088)
        assert (got.float() - want.float()).abs().max() < 0.03


@pytest.mark.parametrize("codec", ["int8", "lossless"])
@pytest.mark.parametrize("look", [LookBack(128), LookBack(64, 128)])
def test_passes_and_pages_wait_for_nothing(codec: CodecName, look: LookBack) -> None:
    engine = engine_of(codec)
    hot, plain = (engine.hot_window(Settings(window_tokens=128, block_tokens=512), 8, look) for _ in range(2))
    ids = engine.on_device(tokens(3000).tolist())
    for each in (hot, plain):
        engine.runner.read(ids[:1500], each)
    first = hot.spill()
    torch.cuda.synchronize()
    with nothing_waits():
        engine.runner.read(ids[1500:], hot)
        spill = hot.spill()
        engine.runner.read(ids[:700], hot)
    pages = [bytes(page) for page in plain.take_sealed()]
    engine.runner.read(ids[1500:], plain)
    pages += [bytes(page) for page in plain.take_sealed()]
    assert [bytes(page) for page in (*first.pages(), *spill.pages())] == pages and spill.tail() == plain.tail()


def test_sealing_is_encoding_and_decoding() -> None:
    engine = engine_of()
    shape = engine.shape
    size = (shape.n_layers, shape.n_kv_heads, 192, shape.head_dim)
    raw = KV(*(torch.randn(size, device="cuda").bfloat16() for _ in range(2)))
    pages = engine.codec.encode(raw, 640)
    rows = engine.codec.seal(raw, 640)
    assert [row.tobytes() for row in rows.cpu().numpy()] == pages
    back = engine.codec.decode(pages, [640, 704, 768], rows.device)
    assert torch.equal(raw.keys, back.keys) and torch.equal(raw.values, back.values)


def test_cells_past_the_first_dual_chunk_share_passes() -> None:
    engine, ids = engine_of("lossless", DualChunk(1280, 256, 1300)), tokens(3000)
    got, want = (read(engine, window(engine, block), ids, (1500, 2222)) for block in (512, 128))
    assert len(got.passes) < 0.6 * len(want.passes)
    assert (got.hidden.float() - want.hidden.float()).abs().mean() < 0.02


def test_speed_is_read_off_events() -> None:
    engine = engine_of()
    assert engine.runner.tokens_per_s is None
    engine.runner.read(tokens(500).cuda(), engine.hot_window(Settings(window_tokens=128, block_tokens=64), 8))
    assert engine.runner.tokens_per_s is not None and engine.runner.tokens_per_s > 10


def test_rows_of_the_embeddings_stay_on_the_device() -> None:
    weight = torch.randn(50, 8, device="cuda").bfloat16()
    rows = DeviceRows(weight)
    picked = torch.tensor([3, 49, 3])
    assert len(rows) == 50 and rows.dtype == "uint16"
    assert (rows[picked.numpy()] == weight[picked.cuda()].cpu().view(torch.uint16).numpy()).all()


def test_an_ingest_writes_behind_and_answers(tmp_path: Path) -> None:
    network = tiny_network("qwen2", dtype=torch.bfloat16).to("cuda")
    model = from_network(network, tiny_tokenizer(), name="tiny")
    text = b"".join(b"The code of door %d is %d. Nobody remembers it.\n\n" % (i, 1000 + i) for i in range(200))
    settings, told = Settings(window_tokens=256, commit_tokens=256), list[int]()
    with Memory.open(tmp_path / "s", model=model, settings=settings) as memory:
        memory.ingest("doors", text=text, progress=lambda done, total: told.append(done))
        assert told == sorted(told) and told[-1] == len(text) and len(told) > 5
        assert memory.text("default") == text and memory.check().problems == ()
        for mode in ("kv", "resume", "exact"):
            answer = memory.ask("What is the code of door 17?", session="default", mode=mode, max_tokens=3)
            assert answer.timings_ms.first_token > 0
