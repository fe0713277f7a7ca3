"""How a model is held: whole in memory, or its experts read from its files as tokens need them.

Knows the two words and the budget that goes with the second; knows no model.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

from livingkv.errors import InputError

Backend = Literal["whole", "experts"]
_MOST_GB = 1e6


def experts_ram_bytes(backend: Backend | None, ram_gb: float | None) -> int | None:
    """Bytes of RAM for streamed experts; None for a model that is whole in memory.

    ram_gb: in units of 10^9 bytes. Raises InputError where only one of the two is given, or it is no such number.
    """
    if backend not in (None, *get_args(Backend)):
        raise InputError("backend", repr(backend), "whole or experts is allowed")
    if backend != "experts":
        if ram_gb is not None:
            raise InputError("ram_gb", ram_gb, "it goes with the backend experts (--backend experts --ram-gb N)")
        return None
    if ram_gb is None:
        raise InputError("backend", "experts", "say how much memory experts may take: --ram-gb N, in 10^9 bytes")
    if not math.isfinite(ram_gb) or not 0 < ram_gb <= _MOST_GB:
        raise InputError("ram_gb", ram_gb, f"a number above 0, at most {_MOST_GB:.0f}, is allowed")
    return int(ram_gb * 1e9)


def experts_pack(backend: Backend | None, pack: str | None) -> str:
    """Where streamed experts are read from, as `load_model` takes it. Raises InputError where none are streamed."""
    if pack is not None and backend != "experts":
        raise InputError("pack", pack, "it goes with the backend experts (--backend experts --ram-gb N)")
    if pack == "":
        raise InputError("pack", "nothing", "the folder of a pack is allowed, auto, or off")
    return "auto" if pack is None else pack
