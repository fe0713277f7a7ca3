"""What an expert and its parts are called, everywhere in this package."""

from __future__ import annotations

from typing import NamedTuple


class ExpertKey(NamedTuple):
    """One expert. `layer` counts the layers that have experts, from 0 in the order of the network."""

    layer: int
    expert: int


class PartName(NamedTuple):
    """What a stored tensor is to an expert: piece `piece` of the parameter `tensor` of the network.

    ("gate_up_proj", 0) is the gate where the checkpoint keeps gate and up apart, and all of it where it does not.
    """

    tensor: str
    piece: int
