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
    role: what it is to a piece that is stored as codes: "codes", "scales", ...; "" for a piece of plain numbers.
    """

    tensor: str
    piece: int
    role: str = ""

    @property
    def slot(self) -> str:
        """The slot of a row that it lies in: pieces of plain numbers share that of their parameter."""
        return slot_name(self.tensor, self.piece, self.role) if self.role else self.tensor


def slot_name(tensor: str, piece: int, role: str) -> str:
    """The slot of one part of a coded piece."""
    return f"{tensor}.{piece}.{role}"
