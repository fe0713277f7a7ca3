"""Whether a model's decode steps are done from packed weights here, and the step that does them.

Asks for the kernel, the layers, the room and the numbers, in this order; the first that is missing ends it with a line
in the log. Nothing here is needed for a right answer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from livingkv.batched_decode import BatchedDecode
from livingkv.codec import PageShape
from livingkv.errors import InputError, UnsupportedModel
from livingkv.model_sources import cache_folder
from livingkv.models import LoadedModel
from livingkv.packed.fitting import coarse_int4, found_int4, int4_of, int8_of
from livingkv.packed.head import NEAR_NATS, LikeliestAgain
from livingkv.packed.kept import KeptMatrices
from livingkv.packed.layers import PlainDecoder, groups, joined_weight, plain_decoder
from livingkv.packed.matrices import BITS, Bits, Matrix, PlainMatrix, fits, kernel_refusal
from livingkv.packed.step import MAX_ROWS, PackedStep
from livingkv.workspace import AttentionState, Workspace

LOG = logging.getLogger("livingkv.packed")

MAX_KL = {"int8": 0.05, "int4": 0.5}
"""Nats from the network's own distribution to the step's, mean of a few tokens. Rounding makes some thousandths or
hundredths; layers that compute anything else than was thought, more than 1."""

_BYTES_PER_WEIGHT = {"int8": 1.0, "int4": 0.75}
"""With scales and with what is held while packing."""

_READ = 24
"""Tokens before the first that is compared."""

Modules = Callable[[Tensor, AttentionState], Tensor]
"""Token ids [batch, tokens] to last hidden states, by the network's own modules; the state's begin and finish are the
caller's."""


def step_for(model: LoadedModel, modules: Modules, head: Callable[[Tensor], Tensor]) -> PackedStep | None:
    """The step, made now: seconds for each billion weights, less where an earlier process kept them (kept.py), and
    their size once more in memory; None, with a line in the log, where the model's own weights decode. head: from last
    hidden states to logits in fp32."""
    bits = model.decode_weights
    if bits is None:
        return None
    started = perf_counter()
    try:
        step = _made(model, bits)
        apart = _divergence(model, step, modules, head)
        if not apart <= MAX_KL[bits]:
            raise UnsupportedModel(f"it differs from the model by {apart:.3f} nats, {MAX_KL[bits]} are allowed")
    except UnsupportedModel as error:
        level = logging.INFO if bits == "int8" else logging.WARNING  # 8 bits may be what nobody asked for
        LOG.log(level, "%s: generation reads the model's own weights, not %s: %s", model.name, bits, error)
        return None
    LOG.info("%s: %s weights for generation in %.1f s", model.name, bits, perf_counter() - started)
    return step


def _made(model: LoadedModel, bits: Bits) -> PackedStep:
    refusals = {each: kernel_refusal(each) for each in BITS}
    refusal = refusals[bits] or refusals["int8"]
    if refusal:
        raise UnsupportedModel(refusal)
    has_int4 = refusals["int4"] is None
    decoder = plain_decoder(model.network)
    _require_room(decoder, bits)
    kept = KeptMatrices(_cache(), model.model_digest, model.name) if has_int4 else None
    matrices = {
        name: _packed(name, joined_weight(group), bits, kept) for name, group in groups(decoder) if name != "head"
    }
    matrices["head"] = _head(decoder.head.weight.data, decoder.logit_factor, kept)
    return PackedStep(decoder, matrices, model.shape.head_dim)


def _packed(name: str, weight: Tensor, bits: Bits, kept: KeptMatrices | None) -> Matrix:
    """What was of 4 bits is again, whatever was asked for."""
    if not fits(weight):
        return PlainMatrix(weight)
    matrix = None if kept is None else kept.matrix(f"{name}.found", weight, found_int4)
    if matrix is None and kept is not None and bits == "int4":
        matrix = kept.matrix(f"{name}.fitted", weight, int4_of)
    return int8_of(weight) if matrix is None else matrix


def _head(weight: Tensor, factor: float, kept: KeptMatrices | None) -> Matrix:
    if not fits(weight):
        return PlainMatrix(weight)
    coarse = None if kept is None else kept.matrix("head.coarse", weight, coarse_int4)
    return int8_of(weight) if coarse is None else LikeliestAgain(coarse, weight, NEAR_NATS / factor)


def _cache() -> Path | None:
    """None where no cache folder is named and there is no home folder for one."""
    try:
        return cache_folder()
    except InputError as error:
        LOG.info("packed weights are not kept: %s", error)
        return None


def _require_room(decoder: PlainDecoder, bits: Bits) -> None:
    n_weights = sum(module.weight.numel() for _, group in groups(decoder) for module in group)
    needed, free = int(n_weights * _BYTES_PER_WEIGHT[bits]), free_memory()
    if free is not None and needed > free // 2:
        raise UnsupportedModel(f"they take {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free")


def free_memory() -> int | None:
    """Bytes that can be taken without swapping (MemAvailable), None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    except OSError:
        return None
    found = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    return next((1024 * int(kilobytes) for kilobytes in found), None)


@torch.inference_mode()
def _divergence(model: LoadedModel, step: PackedStep, modules: Modules, head: Callable[[Tensor], Tensor]) -> float:
    """Mean KL in nats from the network's own next-token distributions to the step's: rows of one step, each a token
    behind another number of tokens that the network read."""
    ids = torch.arange(1, _READ + MAX_ROWS + 1)[None] * 7919 % model.shape.vocab_size
    whole = _space(model, ids.shape[1])
    whole.begin(ids.shape[1])
    own = head(modules(ids, whole)[0, _READ:]).log_softmax(-1)  # [MAX_ROWS, vocabulary]
    whole.finish(ids.shape[1])
    spaces = [_behind(model, whole, _READ + row) for row in range(MAX_ROWS)]
    state = BatchedDecode(spaces)
    state.begin(1)
    found = step.logits(step.hidden(ids[0, _READ:, None], state)[:, 0]).log_softmax(-1)
    state.finish(1)
    return float((own.exp() * (own - found)).sum(-1).mean())


def _space(model: LoadedModel, capacity: int) -> Workspace:
    shape = PageShape(model.shape.n_layers, model.shape.n_kv_heads, model.shape.head_dim, model.dtype)
    return Workspace(shape, model.rope, capacity, model.device)


def _behind(model: LoadedModel, whole: Workspace, n_tokens: int) -> Workspace:
    space = _space(model, n_tokens + 1)
    space.push(whole.view(0, n_tokens), 0)
    space.next_position = n_tokens
    return space
