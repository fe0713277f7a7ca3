"""Decode steps recorded as CUDA graphs are the network's own passes, up to rounding."""

from __future__ import annotations

import threading
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep, Outcome
from livingkv.decoding.attending import HeadNorms, TorchAttention
from livingkv.decoding.decoder import SIZES, TOLERANCE, Decoder
from livingkv.decoding.ops import FusedOps, StepOps, TorchOps
from livingkv.decoding.parts import Linear
from livingkv.engine import Engine
from livingkv.hot_window import HotWindow
from livingkv.models import DualChunk, from_network
from livingkv.plain_network import Norm
from livingkv.runner import Runner
from livingkv.sampling import Sampler, Sampling
from livingkv.settings import Settings
from tests.core.test_exactness import tokens
from tests.decoding.rows import N_KV_HEADS, attended, filled_table, random
from tests.tiny import FAMILIES, tiny_network, tiny_tokenizer

pytestmark = pytest.mark.gpu

SETTINGS = Settings(window_tokens=128, block_tokens=64)
SHORT_CHUNKS = DualChunk(96, 16, 128)
CUDA = torch.device("cuda")


def engine_of(
    family: str, dtype: torch.dtype = torch.float32, chunks: DualChunk | None = None, **changes: Any
) -> Engine:
    network = tiny_network(family, dtype=dtype, **changes).to("cuda")
    return Engine.of(from_network(network, tiny_tokenizer(), name=f"tiny-{family}", dual_chunk=chunks), "lossless")


def read(engine: Engine, n_tokens: int, seed: int = 0) -> HotWindow:
    hot = engine.hot_window(SETTINGS, 8)
    engine.runner.read(tokens(n_tokens, seed).cuda(), hot)
    return hot


def decoder_of(runner: Runner) -> Decoder:
    decoder = runner._shared.decoder
    assert decoder is not None, "a step comes first"
    return decoder


def token_of(sampler: Sampler, outcome: Outcome) -> int:
    assert not isinstance(outcome, Exception)
    return outcome if isinstance(outcome, int) else sampler.pick(outcome[0, -1])


def far(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).norm() / want.float().norm())


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("n_heads", "dim", "rotary_dim"), [(14, 128, 128), (4, 64, 64), (8, 96, 48), (4, 16, 16)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_equals_torch(dtype: torch.dtype, n_heads: int, dim: int, rotary_dim: int, normed: bool) -> None:
    from livingkv.decoding.on_device import KernelAttention

    table = filled_table(dtype, dim, rotary_dim, CUDA)
    states = random(4, (n_heads + 2 * N_KV_HEADS) * dim, seed=1).to(CUDA, dtype)
    weights = [random(dim, seed=seed).to(CUDA, dtype) for seed in (2, 3)]
    norms = HeadNorms(weights[0], weights[1], 1e-6) if normed else None
    want, slots = attended(TorchAttention(table), table, states, n_heads, norms)
    got, written = attended(KernelAttention(table, 4, n_heads, rotary_dim=rotary_dim), table, states, n_heads, norms)
    close = 2e-5 if dtype == torch.float32 else 0.02
    for one, other in zip((got, *written), (want, *slots), strict=True):
        assert torch.isfinite(one).all() and far(one, other) < close


@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("width", [896, 3584, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operations_equal_torch(dtype: torch.dtype, width: int, rows: int) -> None:
    from livingkv.decoding.on_device import KernelOps, Tiles, gate, rms

    def made(*size: int, seed: int) -> Tensor:
        return random(*size, seed=seed).to(CUDA, dtype)

    x, norm = made(rows, width, seed=0), Norm(made(width, seed=1), 1e-6)
    into = Linear((), made(4608, width, seed=2) / width**0.5, made(4608, seed=3))
    gates = Linear((), made(2 * 1028, width, seed=4) / width**0.5, None)
    back, plain = Linear((), made(width, 1028, seed=5) / 32, None), TorchOps()
    inner = plain.gated(x, norm, gates)
    close = 1e-5 if dtype == torch.float32 else 0.01
    ways: list[StepOps] = [KernelOps(Tiles()), KernelOps(Tiles(4, 256, 4, 16, 256, 3)), FusedOps(rms, gate)]
    for ops in ways:
        assert far(ops.normed(x, norm, into), plain.normed(x, norm, into)) < close
        assert far(ops.gated(x, norm, gates), inner) < close
        assert far(ops.added(x, inner, back), plain.added(x, inner, back)) < close


@pytest.mark.parametrize("chunks", [None, SHORT_CHUNKS], ids=["plain", "dual-chunk"])
@pytest.mark.parametrize("family", FAMILIES)
def test_recorded_steps_equal_passes(family: str, chunks: DualChunk | None) -> None:
    engine = engine_of(family, chunks=chunks)
    runner, passes, steps = engine.runner, read(engine, 190), read(engine, 190)
    token = 7
    for _ in range(150):
        want = runner.logits(torch.tensor([token], device="cuda"), passes)[0, -1]
        got = runner.step(token, steps)[0, -1]
        assert (got - want).abs().max() < 1e-3
        token = int(want.argmax())
        assert int(got.argmax()) == token
    recording = decoder_of(runner).recording(1)
    assert recording is not None and recording.way != "modules"
    assert steps.n_sealed == passes.n_sealed and len(steps.sealed) == len(passes.sealed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_number_of_rows_is_recorded(dtype: torch.dtype) -> None:
    engine = engine_of("qwen2", dtype)
    runner = engine.runner
    for n_rows in (1, 2, 3, 8, 11):
        alone = [read(engine, 20 + 37 * n, seed=n) for n in range(n_rows)]
        together = [read(engine, 20 + 37 * n, seed=n) for n in range(n_rows)]
        decoder = None
        for token in (3, 9):
            runner.records = False
            want = [runner.step(token + n, state)[0, -1] for n, state in enumerate(alone)]
            runner.records = True
            if decoder is None:
                runner.step(1, read(engine, 10))
                decoder = decoder_of(runner)
            got = decoder.run([DecodeStep(token + n, state) for n, state in enumerate(together)])
            assert got is not None
            for row, logits in zip(want, got, strict=True):
                assert isinstance(logits, Tensor) and far(logits[0, -1], row) < TOLERANCE[dtype]
    assert decoder is not None and all(decoder.recording(size) is not None for size in SIZES)


def test_whole_networks_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("livingkv.decoding.choosing._plain_ways", lambda model: [])
    engine = engine_of("qwen3")
    runner, passes, steps = engine.runner, read(engine, 100), read(engine, 100)
    for token in (1, 2, 3):
        want = runner.logits(torch.tensor([token], device="cuda"), passes)[0, -1]
        assert (runner.step(token, steps)[0, -1] - want).abs().max() < 1e-3
    recording = decoder_of(runner).recording(1)
    assert recording is not None and recording.way == "modules"


def test_a_network_that_differs_is_computed_by_its_modules() -> None:
    engine = engine_of("llama", tie_word_embeddings=True)
    engine.model.network.base_model.layers[0].register_forward_hook(lambda module, given, out: out * 1.5)
    runner, passes, steps = engine.runner, read(engine, 100), read(engine, 100)
    want = runner.logits(torch.tensor([1], device="cuda"), passes)[0, -1]
    assert (runner.step(1, steps)[0, -1] - want).abs().max() < 1e-3
    recording = decoder_of(runner).recording(1)
    assert recording is not None and recording.way == "modules"


def test_recording_goes_on_beside_another_thread() -> None:
    ended, errors = threading.Event(), []

    def busy() -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        while not ended.is_set():
            try:
                with torch.cuda.stream(stream):
                    torch.empty(1 << 22, device="cuda").fill_(1.0).cpu()
            except RuntimeError as error:  # told below
                errors.append(error)
                return

    thread = threading.Thread(target=busy)
    thread.start()
    try:
        engine = engine_of("qwen2")
        for _ in range(5):
            engine.runner.step(1, read(engine, 50))
    finally:
        ended.set()
        thread.join()
    assert errors == [] and decoder_of(engine.runner).recording(1) is not None


def test_workspaces_come_and_go() -> None:
    engine = engine_of("qwen2")
    want = None
    for n in range(6):  # each in other memory; nothing of the one before is held
        hot = read(engine, 200)
        ids = list(engine.runner.generate(engine.runner.logits(tokens(3).cuda(), hot), hot, Sampler(Sampling()), 20))
        want = want or ids
        assert ids == want
        del hot
        torch.empty(1 << (12 + n), device="cuda").fill_(float("nan"))


def test_tokens_are_picked_with_the_step_as_by_passes() -> None:
    engine = engine_of("qwen2", chunks=SHORT_CHUNKS)
    runner, lengths = engine.runner, (60, 75, 90, 105, 120, 135, 150, 165, 180)
    ways = [Sampling(), Sampling(temperature=0.7, top_k=9, top_p=0.9, seed=1), Sampling(frequency_penalty=0.4)] * 3
    made = []
    for records in (False, True):
        runner.records = records
        states, samplers = [read(engine, n, seed=n) for n in lengths], [Sampler(how) for how in ways]
        picked = [list(range(9))]
        for _ in range(30):
            steps = [DecodeStep(*each) for each in zip(picked[-1], states, samplers, strict=True)]
            picked.append([token_of(*each) for each in zip(samplers, runner.logits_of(steps), strict=True)])
        made.append((picked, [sampler.log_probabilities for sampler in samplers], [s.n_sealed for s in states]))
    assert decoder_of(runner).recording(8) is not None and decoder_of(runner).recording(1) is not None
    assert made[0][0] == made[1][0] and made[0][2] == made[1][2]
    for one, other in zip(made[0][1], made[1][1], strict=True):
        assert one == pytest.approx(other, abs=1e-3)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.9, top_p=0.9, top_k=20, seed=3)])
def test_tokens_are_chosen_as_on_the_cpu(sampling: Sampling) -> None:
    logits = random(40, 3000, seed=0) * 3
    one, other = Sampler(sampling, n_likeliest=3), Sampler(sampling, n_likeliest=3)
    assert [one.pick(row.cuda()) for row in logits] == [other.pick(row) for row in logits]
    assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
    assert [[token for token, _ in row] for row in one.likeliest] == [[t for t, _ in row] for row in other.likeliest]


def four_bit_engine() -> Engine:
    """A tiny network whose linear maps are NF4."""
    from bitsandbytes.nn import Linear4bit

    network = tiny_network("qwen2", dtype=torch.bfloat16, hidden_size=256, intermediate_size=512, head_dim=64)
    for module in list(network.base_model.modules()):
        for name, child in list(module.named_children()):
            if type(child) is torch.nn.Linear:
                packed = Linear4bit(
                    child.in_features,
                    child.out_features,
                    bias=child.bias is not None,
                    compute_dtype=torch.bfloat16,
                    quant_type="nf4",
                    compress_statistics=True,
                )
                packed.load_state_dict(child.state_dict())
                setattr(module, name, packed)
    model = from_network(network.to("cuda"), tiny_tokenizer(), name="tiny-4bit", quantization="4bit")
    return Engine.of(model, "lossless")


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_four_bit_weights_are_recorded() -> None:
    engine = four_bit_engine()
    runner, passes, steps = engine.runner, read(engine, 100), read(engine, 100)
    for token in (1, 2, 3):
        want = runner.logits(torch.tensor([token], device="cuda"), passes)[0, -1]
        assert far(runner.step(token, steps)[0, -1], want) < TOLERANCE[torch.bfloat16]
    assert decoder_of(runner).recording(1) is not None


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.xfail(strict=True, reason="several rows of 4-bit weights are not recorded: they take the ordinary pass")
def test_four_bit_weights_are_recorded_for_several_rows() -> None:
    engine = four_bit_engine()
    engine.runner.step(1, read(engine, 100))
    assert all(decoder_of(engine.runner).recording(size) is not None for size in SIZES)
