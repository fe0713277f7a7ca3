"""Decode steps that are recorded once and replayed: one token for each of several workspaces, without Python per layer.

`decoder_for` says whether a model's steps can be recorded here. What a step computes is in network.py, by ops.py and
attending.py in plain torch or by on_device.py and kernels.py on a GPU.
"""

from __future__ import annotations

from livingkv.decoding.choosing import decoder_for
from livingkv.decoding.decoder import Decoder

__all__ = ["Decoder", "decoder_for"]
