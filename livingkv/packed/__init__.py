"""Decode steps on a CPU from weights of 8 or 4 bits, one token for each of a few rows.

Text is read with the model's own 16-bit weights; what generates token by token reads these instead, because a step
takes as long as its weights take from memory to the cores. Everything here is optional: where a kernel, a network or
the room for it is missing, the model's own weights do it, and a line in the log says why.
"""

from __future__ import annotations

from livingkv.packed.choosing import step_for
from livingkv.packed.step import MAX_ROWS, PackedStep

__all__ = ["MAX_ROWS", "PackedStep", "step_for"]
