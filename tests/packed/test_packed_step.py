"""Generation from packed weights against the network's own modules, on tiny models."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep
from livingkv.engine import Engine
from livingkv.models import DecodeWeights, LoadedModel
from livingkv.packed import choosing
from livingkv.packed.layers import groups, joined_weight, plain_decoder
from livingkv.packed.matrices import Matrix, PlainMatrix
from livingkv.packed.step import PackedStep
from livingkv.workspace import Workspace
from tests.tiny import FAMILIES, tiny_model

IDS = torch.arange(3, 23)


def model_with(decode_weights: DecodeWeights | None, family: str = "qwen2") -> LoadedModel:
    return replace(tiny_model(family, dtype=torch.bfloat16), decode_weights=decode_weights)


def read(engine: Engine, ids: Tensor = IDS) -> Workspace:
    space = engine.workspace(64)
    engine.runner.read(ids, space)
    return space


def kl(own: Tensor, found: Tensor) -> float:
    own, found = own.flatten().log_softmax(-1), found.flatten().log_softmax(-1)
    return float((own.exp() * (own - found)).sum())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_by_plain_matrices_is_the_networks_own(family: str) -> None:
    engine = Engine.of(model_with(None, family), "int8")
    token = torch.tensor([7])
    own = engine.runner.logits(token, read(engine))[0]
    decoder = plain_decoder(engine.model.network)
    matrices: dict[str, Matrix] = {name: PlainMatrix(joined_weight(group)) for name, group in groups(decoder)}
    step = PackedStep(decoder, matrices, engine.model.shape.head_dim)
    space = read(engine)
    with torch.inference_mode():
        space.begin(1)
        found = step.logits(step.hidden(token[None], space)[:, 0])
        space.finish(1)
    assert float((found - own).norm() / own.norm()) < 0.02
    assert space.end == len(IDS) + 1 == space.next_position


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("bits", ["int8", "int4"])
def test_generation_reads_packed_weights_and_text_does_not(family: str, bits: DecodeWeights) -> None:
    plain, packed = (Engine.of(model_with(each, family), "int8") for each in (None, bits))
    spaces = [read(engine) for engine in (plain, packed)]
    assert torch.equal(*(space.view(0, len(IDS)).keys for space in spaces))  # read by the same weights
    token = torch.tensor([9])
    own, found = (each.runner.logits(token, space) for each, space in zip((plain, packed), spaces, strict=True))
    assert found.shape == own.shape and found.dtype == torch.float32
    assert 0 < kl(own, found) < choosing.MAX_KL[bits]
    assert [each.runner.n_passes for each in (plain, packed)] == [2, 2]


def test_runners_of_one_network_share_its_packed_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    n_made = 0
    made = choosing._made

    def counted(*given: object) -> PackedStep:
        nonlocal n_made
        n_made += 1
        return made(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(choosing, "_made", counted)
    model = model_with("int8")
    engines = [Engine.of(model, codec) for codec in ("int8", "lossless")]
    one, two = (engine.runner.logits(torch.tensor([9]), read(engine)) for engine in engines)
    assert n_made == 1 and torch.equal(one, two)


def test_rows_of_a_step_are_each_their_own() -> None:
    engine = Engine.of(model_with("int8"), "int8")
    tokens = (5, 6, 7)
    alone = [engine.runner.logits(torch.tensor([token]), read(engine, IDS[: 9 + token])) for token in tokens]
    together = engine.runner.logits_of([DecodeStep(token, read(engine, IDS[: 9 + token])) for token in tokens])
    for one, row in zip(alone, together, strict=True):
        assert isinstance(row, Tensor) and kl(one, row) < 1e-3


@pytest.mark.parametrize("obstacle", ["kernel", "layers", "room", "numbers"])
def test_where_it_cannot_be_the_models_own_weights_generate(
    obstacle: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "livingkv.packed")
    plain, packed = (Engine.of(model_with(each), "int8") for each in (None, "int8"))
    word = {"kernel": "none here", "layers": "other parts", "room": "GB of memory are free", "numbers": "nats"}[
        obstacle
    ]
    if obstacle == "kernel":
        monkeypatch.setattr(choosing, "kernel_refusal", lambda bits: "none here")
    elif obstacle == "layers":
        packed.model.network.base_model.layers[1].post_feedforward_layernorm = torch.nn.Identity()
    elif obstacle == "room":
        monkeypatch.setattr(choosing, "free_memory", lambda: 1000)
    else:
        monkeypatch.setitem(choosing.MAX_KL, "int8", 0.0)
    own, found = (each.runner.logits(torch.tensor([9]), read(each)) for each in (plain, packed))
    assert torch.equal(own, found)
    packed.runner.logits(torch.tensor([9]), read(packed))  # is not tried again
    lines = [record.getMessage() for record in caplog.records if record.name == "livingkv.packed"]
    assert len(lines) == 1 and word in lines[0] and "own weights" in lines[0]


def test_what_generates_is_no_part_of_the_fingerprint() -> None:
    assert len({Engine.of(model_with(bits), "int8").fingerprint() for bits in (None, "int8", "int4")}) == 1
