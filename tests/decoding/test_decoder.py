"""Decode steps over numbers alone are the network's own passes: same logits, same tokens, same pages."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep
from livingkv.decoding.decoder import Decoder
from livingkv.decoding.parts import parts_of
from livingkv.engine import Engine
from livingkv.fingerprints import network_digest
from livingkv.hot_window import HotWindow
from livingkv.models import DualChunk
from livingkv.plain_network import NotPlain
from livingkv.sampling import Sampler, Sampling
from livingkv.settings import Settings
from livingkv.workspace import Workspace
from tests.decoding.rows import torch_decoder, torch_way
from tests.tiny import FAMILIES, VOCAB_SIZE, tiny_model, tiny_network

SETTINGS = Settings(window_tokens=128, block_tokens=64)
SHORT_CHUNKS = DualChunk(96, 16, 128)


def ids(n: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCAB_SIZE, (n,), generator=torch.Generator().manual_seed(seed))


def read(engine: Engine, n_tokens: int, seed: int = 0) -> HotWindow:
    hot = engine.hot_window(SETTINGS, 8)
    engine.runner.read(ids(n_tokens, seed), hot)
    return hot


def steps_of(first: Iterable[int], states: Iterable[Any]) -> list[DecodeStep]:
    return [DecodeStep(token, state) for token, state in zip(first, states, strict=True)]


def one(decoder: Decoder, token: int, state: HotWindow) -> Tensor:
    outcomes = decoder.run([DecodeStep(token, state)])
    assert outcomes is not None and isinstance(outcomes[0], Tensor)
    return outcomes[0][0, -1]


@pytest.mark.parametrize("kind", ["parts", "whole"])
@pytest.mark.parametrize("chunks", [None, SHORT_CHUNKS], ids=["plain", "dual-chunk"])
@pytest.mark.parametrize(
    "family", [one if one in ("qwen2", "qwen3") else pytest.param(one, marks=pytest.mark.slow) for one in FAMILIES]
)
def test_steps_equal_passes(family: str, chunks: DualChunk | None, kind: str) -> None:
    engine = Engine.of(tiny_model(family, dual_chunk=chunks), "lossless")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, kind))
    with torch.inference_mode():
        passes, steps = read(engine, 236), read(engine, 236)
        token = 7
        for _ in range(24):  # over borders of chunks and pages
            want = engine.runner.logits(torch.tensor([token]), passes)[0, -1]
            got = one(decoder, token, steps)
            torch.testing.assert_close(got, want, atol=1e-4, rtol=0)
            token = int(want.argmax())
            assert int(got.argmax()) == token
    assert steps.n_tokens == 260 and steps.n_sealed == passes.n_sealed


def test_rows_are_each_their_own() -> None:
    engine = Engine.of(tiny_model(dual_chunk=SHORT_CHUNKS), "int8")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, "parts"))
    lengths = (40, 63, 90, 200, 127, 129, 10, 333, 70)  # more than fit into one recording
    with torch.inference_mode():
        alone = [read(engine, n, seed=n) for n in lengths]
        together = [read(engine, n, seed=n) for n in lengths]
        for token in (3, 9, 27):
            want = [engine.runner.logits(torch.tensor([token + n]), state)[0, -1] for n, state in enumerate(alone)]
            got = decoder.run(steps_of([token + n for n in range(len(lengths))], together))
            assert got is not None
            for row, logits in zip(want, got, strict=True):
                assert isinstance(logits, Tensor)
                torch.testing.assert_close(logits[0, -1], row, atol=1e-4, rtol=0)
    assert [len(state.sealed) for state in together] == [len(state.sealed) for state in alone]


def test_a_state_that_fails_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.of(tiny_model(), "int8")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, "parts"))
    states = [read(engine, 30), read(engine, 31)]

    def broken(n_tokens: int) -> None:
        raise OSError("no room")

    monkeypatch.setattr(states[0], "finish", broken)
    with torch.inference_mode():
        outcomes = decoder.run(steps_of([1, 2], states))
    assert outcomes is not None and isinstance(outcomes[0], OSError) and isinstance(outcomes[1], Tensor)


def test_what_cannot_be_told_in_numbers_is_left_alone() -> None:
    engine = Engine.of(tiny_model(dual_chunk=SHORT_CHUNKS), "int8")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, "parts"))
    space = engine.workspace(64, dual_chunk=True)
    source = read(engine, 40).workspace
    for chunk in range(12):  # passages from all over a store
        space.push(source.view(source.start + chunk, source.start + chunk + 2), 80 * chunk)
    space.next_position = 2000
    assert decoder.run(steps_of([1], [space])) is None and space.end == 24
    assert decoder.run(steps_of([1], [object()])) is None


def test_numbers_are_those_of_a_pass() -> None:
    engine = Engine.of(tiny_model(dual_chunk=SHORT_CHUNKS), "int8")
    space = engine.workspace(400, dual_chunk=True)
    engine.runner.read(ids(300), space)
    told = space.one_token()
    # chunks of 80: the token of chunk 3 sees chunk 2 at most 96 away, and those before at 96
    assert told.runs == ((80, 96), (160, 96 + 80), (240, 96 + 160), (301, 300)) and told.position == 300
    assert (told.start, told.end) == (0, 300) and told.factor > 1.0
    assert Workspace.one_token(engine.workspace(4)).runs == ((1, 0),)


def test_a_way_that_differs_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine.of(tiny_model(), "int8")
    right, wrong = torch_way(engine.runner, "whole"), torch_way(engine.runner, "parts")
    engine.model.network.base_model.layers[1].input_layernorm.variance_epsilon = 0.5
    with torch.inference_mode(), caplog.at_level(logging.INFO, "livingkv.decoding"):
        recording = torch_decoder(engine.runner, wrong, right).recording(2)
        assert recording is not None and (recording.way, recording.n_rows) == ("whole", 2)
        assert torch_decoder(engine.runner, wrong).recording(1) is None
        assert torch_decoder(engine.runner, wrong).run(steps_of([1], [engine.workspace(4)])) is None
    assert "differ from the network's own by" in caplog.text and "are not recorded" in caplog.text


def test_a_way_that_fails_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    engine = Engine.of(tiny_model(), "int8")

    def broken(table: object) -> None:
        raise RuntimeError("no compiler\nat all")

    with torch.inference_mode(), caplog.at_level(logging.INFO, "livingkv.decoding"):
        assert torch_decoder(engine.runner, ("broken", broken)).recording(1) is None  # type: ignore[arg-type]
    assert "by broken cannot be recorded: no compiler" in caplog.text and "at all" not in caplog.text


def test_weights_that_are_used_together_lie_together() -> None:
    network = tiny_network("qwen2")
    with torch.inference_mode():
        want = network(ids(5)[None]).logits
        digest = network_digest(network)
        parts, again = parts_of(network), parts_of(network)
        assert network_digest(network) == digest
        assert torch.equal(network(ids(5)[None]).logits, want)
    layer, attention = parts.layers[0], network.base_model.layers[0].self_attn
    weight, bias = layer.query_key_value.weight, layer.query_key_value.bias
    assert weight is not None and bias is not None and weight.shape == (64 + 2 * 32, 64)
    assert (
        weight.data_ptr() == attention.q_proj.weight.data_ptr() and bias.data_ptr() == attention.q_proj.bias.data_ptr()
    )
    joined = torch.cat([part.weight for part in (attention.q_proj, attention.k_proj, attention.v_proj)])
    assert torch.equal(weight, joined)
    other = again.layers[0].query_key_value.weight
    assert other is not None and other.data_ptr() == weight.data_ptr() and other.shape == weight.shape


def test_a_network_whose_weights_lie_together_is_saved_as_before(tmp_path: Path) -> None:
    network = tiny_network("qwen2")
    before = {name: part.clone() for name, part in network.state_dict().items()}
    parts_of(network)
    network.save_pretrained(tmp_path)
    saved = type(network).from_pretrained(tmp_path).state_dict()
    assert before.keys() == saved.keys() and all(torch.equal(saved[name], part) for name, part in before.items())


def test_other_networks_are_told_apart() -> None:
    network = tiny_network("llama")
    network.base_model.layers[1].mlp.act_fn = torch.nn.GELU()
    with pytest.raises(NotPlain, match="SiLU"):
        parts_of(network)
    network = tiny_network("llama")
    network.base_model.layers[0].extra = torch.nn.Linear(1, 1)
    with pytest.raises(NotPlain, match="layers"):
        parts_of(network)


def test_the_runner_takes_recorded_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.of(tiny_model(), "int8")
    runner = engine.runner
    decoder = torch_decoder(runner, torch_way(runner, "parts"))
    monkeypatch.setattr("livingkv.runner.decoder_for", lambda model, eager, head: decoder)
    hot, other = read(engine, 50), read(engine, 50)
    before = runner.n_prefilled, runner.n_passes
    got = runner.step(5, hot)
    assert (runner.n_prefilled, runner.n_passes) == (before[0] + 1, before[1] + 1) and decoder.recording(1) is not None
    runner.prepare(3)
    assert sorted(decoder._made) == [1, 2, 4]
    second = Engine.of(engine.model, "int8").runner  # another memory of the same model
    assert second._recorded([]) == []
    second.records = False
    assert second._recorded([]) is None
    torch.testing.assert_close(got, second.step(5, other), atol=1e-4, rtol=0)


HOW = (
    Sampling(),
    Sampling(temperature=0.8, top_k=20, seed=1),
    Sampling(presence_penalty=0.5),
    Sampling(temperature=1.2, top_p=0.8, repetition_penalty=1.3, seed=2),
    Sampling(temperature=0.3, seed=3),
    Sampling(),
    Sampling(),
    Sampling(),
    Sampling(temperature=0.7, top_p=0.95, top_k=7, seed=4),
)


def test_samplers_pick_with_the_step_as_they_do_alone() -> None:
    engine = Engine.of(tiny_model(dual_chunk=SHORT_CHUNKS), "int8")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, "parts"))
    lengths = [60 + 9 * n for n in range(len(HOW))]
    alone, together = ([Sampler(how, n_likeliest=n % 3 // 2) for n, how in enumerate(HOW)] for _ in range(2))
    with torch.inference_mode():
        passes, states = ([read(engine, n, seed=n) for n in lengths] for _ in range(2))
        tokens = list(range(len(HOW)))
        for _ in range(12):
            logits = [engine.runner.logits(torch.tensor([t]), s) for t, s in zip(tokens, passes, strict=True)]
            want = [sampler.pick(row[0, -1]) for sampler, row in zip(alone, logits, strict=True)]
            steps = [DecodeStep(*each) for each in zip(tokens, states, together, strict=True)]
            assert decoder.run(steps) == want
            tokens = want
    for one, other in zip(alone, together, strict=True):
        assert one.log_probabilities == pytest.approx(other.log_probabilities, abs=1e-4)
        assert [[t for t, _ in row] for row in one.likeliest] == [[t for t, _ in row] for row in other.likeliest]
    assert len(together[2].likeliest[0]) == 1 and together[0].likeliest[0] == []


def test_logits_and_choices_of_one_step() -> None:
    engine = Engine.of(tiny_model(), "int8")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, "parts"))
    greedy = Sampler(Sampling())
    with torch.inference_mode():
        first, second, third = (read(engine, 20) for _ in range(3))
        picked, logits = decoder.run([DecodeStep(3, first, greedy), DecodeStep(3, second)]) or (None, None)
        assert isinstance(logits, Tensor) and int(logits.argmax()) == picked
        kept = logits.clone()
        one(decoder, 9, third)
    assert torch.equal(logits, kept), "the next step leaves them alone"
    assert greedy.log_probabilities == pytest.approx([float(logits.log_softmax(-1).max())], abs=1e-5)


def test_a_sampler_of_a_state_that_fails_picks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine.of(tiny_model(), "int8")
    decoder = torch_decoder(engine.runner, torch_way(engine.runner, "parts"))
    samplers = [Sampler(how) for how in (Sampling(), Sampling(temperature=0.5), Sampling(temperature=0.5), Sampling())]
    states = [read(engine, 30) for _ in samplers]

    def broken(n_tokens: int) -> None:
        raise OSError("no room")

    for state in states[:2]:
        monkeypatch.setattr(state, "finish", broken)
    steps = [DecodeStep(1, state, sampler) for state, sampler in zip(states, samplers, strict=True)]
    outcomes = decoder.run(steps)
    assert outcomes is not None and [type(outcome) for outcome in outcomes] == [OSError, OSError, int, int]
    assert [len(sampler.log_probabilities) for sampler in samplers] == [0, 0, 1, 1]


@pytest.mark.parametrize("how", [HOW[0], HOW[3]])
def test_what_is_generated_by_recorded_steps(monkeypatch: pytest.MonkeyPatch, how: Sampling) -> None:
    engine = Engine.of(tiny_model(), "int8")
    runner, states, samplers = engine.runner, [read(engine, 50) for _ in range(2)], [Sampler(how) for _ in range(2)]
    decoder = torch_decoder(runner, torch_way(runner, "parts"))
    monkeypatch.setattr("livingkv.runner.decoder_for", lambda model, eager, head: decoder)
    made = []
    for records, state, sampler in zip((False, True), states, samplers, strict=True):
        runner.records = records
        made.append(list(runner.generate(runner.logits(ids(3), state), state, sampler, 30)))
    assert made[0] == made[1] and len(made[0]) > 2 and states[0].n_tokens == states[1].n_tokens
    assert samplers[0].log_probabilities == pytest.approx(samplers[1].log_probabilities, abs=1e-4)


def test_a_sampler_of_ones_own_is_asked() -> None:
    class Sevens(Sampler):
        def pick(self, logits: Tensor) -> int:
            return 7

    engine = Engine.of(tiny_model(), "int8")
    runner, hot = engine.runner, read(engine, 50)
    runner._shared.has_asked, runner._shared.decoder = True, torch_decoder(runner, torch_way(runner, "parts"))
    assert list(runner.generate(runner.logits(ids(3), hot), hot, Sevens(Sampling()), 4)) == [7] * 4
