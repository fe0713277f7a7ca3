"""Which ways of computing a decode step are tried for a model. The only place that asks for Triton."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from typing import Any

from torch import Tensor

from livingkv.decoding.attending import StepAttention
from livingkv.decoding.decoder import SIZES, Decoder, Eager, Way
from livingkv.decoding.network import PlainStep, Step, WholeStep
from livingkv.decoding.ops import FusedOps, StepOps
from livingkv.decoding.parts import Parts, parts_of
from livingkv.decoding.recording import CudaRecorder
from livingkv.decoding.table import Table
from livingkv.models import LoadedModel
from livingkv.plain_network import NotPlain

LOG = logging.getLogger("livingkv.decoding")


def decoder_for(model: LoadedModel, eager: Eager, head: Callable[[Tensor], Tensor]) -> Decoder | None:
    """What records this model's decode steps; None on other devices than CUDA, where experts are streamed, and without
    Triton. `head`: from last hidden states to logits in fp32. The network's attention is Runner's already."""
    if model.device.type != "cuda" or model.experts is not None:
        return None
    if importlib.util.find_spec("triton") is None:
        LOG.warning("decode steps are not recorded: Triton is not installed")
        return None
    return Decoder(model, eager, CudaRecorder(model.device), [_plain_ways(model), [_whole_way(model, head)]])


def _plain_ways(model: LoadedModel) -> list[Way]:
    from livingkv.decoding.on_device import KernelOps, Tiles, gate, rms

    try:
        parts = parts_of(model.network)
    except NotPlain as error:
        LOG.info("decode steps go through the network's own modules: %s", error)
        return []
    tiles = (Tiles(), Tiles(outs=4, rows_outs=16, rows_block=256), Tiles(stages=4, rows_stages=5))
    ways: list[Way] = [(f"kernels {index}", _plain(model, parts, KernelOps(each))) for index, each in enumerate(tiles)]
    return [*ways, ("products", _plain(model, parts, FusedOps(rms, gate)))]


def _plain(model: LoadedModel, parts: Parts, ops: StepOps) -> Callable[[Table], Step]:
    return lambda table: PlainStep(parts, table, _attention(model, table), ops)


def _whole_way(model: LoadedModel, head: Callable[[Tensor], Tensor]) -> Way:
    base: Any = model.network.base_model
    return "modules", lambda table: WholeStep(base, head, table, _attention(model, table))


def _attention(model: LoadedModel, table: Table) -> StepAttention:
    from livingkv.decoding.on_device import KernelAttention

    return KernelAttention(table, SIZES[-1], model.shape.n_heads, rotary_dim=model.rope.rotary_dim)
