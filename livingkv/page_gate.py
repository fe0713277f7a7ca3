"""Kernels for 8-bit pages are used only where they give every bit of the reference, for this model's shape and bias.

Knows a codec and its kernels; refuses to know models and stores. Asked once for each loaded model.
"""

from __future__ import annotations

import logging

import torch
from torch import Tensor

from livingkv.codec import KV, Int8, PageCodec, PageShape
from livingkv.model_rope import Rope
from livingkv.page_places import Place
from livingkv.positions import rotation
from livingkv.settings import PAGE_TOKENS
from livingkv.triton_here import first_line, has_triton, kernel_failures

LOG = logging.getLogger("livingkv.codec")

_FIRST_TOKEN = 999_936
_N_PAGES = 3
_PLACES = (
    Place(_FIRST_TOKEN, 0, PAGE_TOKENS, 5),
    Place(_FIRST_TOKEN + PAGE_TOKENS, 3, 61, 70, -999_000),
    Place(_FIRST_TOKEN + 2 * PAGE_TOKENS, 0, 9, 140, 12),
)


def with_kernels(codec: PageCodec, rope: Rope, device: torch.device) -> PageCodec:
    """The codec with its kernels, where it is the 8-bit one, the device a GPU and nothing differs; else as it is, with
    one line in the log that says why. Compiles kernels, which takes seconds the first time."""
    if not isinstance(codec, Int8) or device.type != "cuda":
        return codec
    if not has_triton():
        LOG.info("8-bit pages are decoded by torch: triton is not installed")
        return codec
    if 2 * len(rope.inverse_frequencies) != codec.shape.head_dim:
        LOG.info("8-bit pages are decoded by torch: only a part of each head is rotated")
        return codec
    from livingkv.fused_codec import FusedInt8
    from livingkv.fused_pages import FusedPages

    return accepted(codec, FusedInt8(codec, rope, FusedPages(codec.shape)), codec.shape, rope, device)


def accepted(reference: PageCodec, fused: PageCodec, shape: PageShape, rope: Rope, device: torch.device) -> PageCodec:
    """`fused` where nothing differs, else the reference, with one line in the log that says why."""
    try:
        problem = difference(reference, fused, shape, rope, device)
    except kernel_failures() as error:
        problem = first_line(error)
    if problem is None:
        return fused
    LOG.warning("8-bit pages are decoded by torch, not by kernels: %s", problem)
    return reference


def difference(
    reference: PageCodec, fused: PageCodec, shape: PageShape, rope: Rope, device: torch.device
) -> str | None:
    """What two codecs of one shape do not do alike, in a few words; None where every bit is the same."""
    kv = _numbers(shape, device)
    want, found = reference.encode(kv, _FIRST_TOKEN), fused.encode(kv, _FIRST_TOKEN)
    if want != found:
        wrong = sum(a != b for one, two in zip(want, found, strict=True) for a, b in zip(one, two, strict=True))
        return f"{wrong} of {len(want) * len(want[0])} bytes of pages differ"
    firsts = [place.first_token for place in _PLACES]
    by = rotation(torch.arange(firsts[0], firsts[0] + kv.keys.shape[2], device=device), rope)
    into = [KV(torch.zeros_like(kv.keys), torch.zeros_like(kv.values)) for _ in range(2)]
    reference.decode_into(want, _PLACES, into[0], rope)
    fused.decode_into(want, _PLACES, into[1], rope)
    pairs = {
        "decoded": (reference.decode(want, firsts, device), fused.decode(want, firsts, device)),
        "moved": (into[0], into[1]),
        "stored": (reference.stored(kv, by), fused.stored(kv, by)),
    }
    for name, (one, two) in pairs.items():
        wrong = sum(_n_different(a, b) for a, b in zip(one, two, strict=True))
        if wrong:
            return f"{wrong} of {2 * kv.keys.numel()} numbers differ, {name}"
    return None


def _numbers(shape: PageShape, device: torch.device) -> KV:
    """Small and large numbers, and a page that begins with zeros."""
    size = (2, shape.n_layers, shape.n_kv_heads, _N_PAGES * PAGE_TOKENS, shape.head_dim)
    numbers = torch.randn(size, generator=torch.Generator().manual_seed(0))
    numbers *= 4.0 ** torch.arange(-6, 6).repeat(shape.head_dim)[: shape.head_dim]
    numbers[..., :5, :] = 0.0
    numbers[:, 0] = 0.0
    both = numbers.to(shape.dtype).to(device)
    return KV(both[0], both[1])


def _n_different(one: Tensor, two: Tensor) -> int:
    bits = {2: torch.int16, 4: torch.int32}[one.itemsize]
    return int((one.view(bits) != two.view(bits)).sum())
