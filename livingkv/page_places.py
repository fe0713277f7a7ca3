"""Where the tokens of decoded pages go in device memory, and the plain way of putting them there.

Knows places and a codec's decoding; knows no bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import NamedTuple

import torch

from livingkv.model_rope import Rope
from livingkv.page_layout import KV, PageBytes
from livingkv.positions import shift
from livingkv.settings import PAGE_TOKENS

GPU_PAGES = 16
"""Pages that go through the codec together on a GPU, in few kernels and one copy; their fp32 takes memory too. On a CPU
one page stays in the cache."""

Decode = Callable[[Iterable[PageBytes], Sequence[int], torch.device], KV]
"""`PageCodec.decode`."""


class Place(NamedTuple):
    """Tokens [lo, hi) of the page whose first one is at `first_token` go to the slots from `slot` on, their keys moved
    by `delta` positions."""

    first_token: int
    lo: int
    hi: int
    slot: int
    delta: int = 0


def put_decoded(decode: Decode, pages: Iterable[PageBytes], places: Sequence[Place], into: KV, rope: Rope) -> None:
    """Decode pages, and write those tokens of each that its place says into its slots of `into`, [n_layers, n_kv_heads,
    slots, head_dim]; keys are rounded to the model's dtype before they are moved, and again after it. The reference of
    `PageCodec.decode_into`. Raises as `decode`; then some slots may be written."""
    waiting, device = iter(pages), into.keys.device
    step = GPU_PAGES if device.type == "cuda" else 1
    for index in range(0, len(places), step):
        some = places[index : index + step]
        kv = decode(islice(waiting, len(some)), [place.first_token for place in some], device)
        for number, place in enumerate(some):
            lo, hi = number * PAGE_TOKENS + place.lo, number * PAGE_TOKENS + place.hi
            slots = slice(place.slot, place.slot + place.hi - place.lo)
            into.keys[:, :, slots] = shift(kv.keys[:, :, lo:hi], place.delta, rope)
            into.values[:, :, slots] = kv.values[:, :, lo:hi]
