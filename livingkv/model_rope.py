"""How a model places its tokens: the rotary frequencies that its keys were rotated with, and dual-chunk positions.

Reads both from the model itself. Knows nothing of how positions are used (positions.py) nor of how models load.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import InputError, UnsupportedModel

_SETTLED_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, eq=False)
class Rope:
    """Rotary positions in the half-split layout: dimension i of a head pairs with i + rotary_dim / 2.

    inverse_frequencies: fp64 on the CPU, [rotary_dim / 2]; the exact values of the model's own fp32 buffer.
    attention_factor: the model multiplies cos and sin by it, queries and keys alike (1 except for yarn).
    Dimensions of a head from rotary_dim on are not rotated.
    """

    inverse_frequencies: Tensor
    attention_factor: float
    _copies: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False)

    def frequencies_on(self, device: torch.device) -> Tensor:
        """The frequencies on a device, copied there once: a copy to a device waits for it."""
        if device not in self._copies:
            self._copies[device] = self.inverse_frequencies.to(device)
        return self._copies[device]

    @property
    def rotary_dim(self) -> int:
        """How many leading dimensions of a head are rotated."""
        return 2 * self.inverse_frequencies.shape[0]


@dataclass(frozen=True, slots=True)
class DualChunk:
    """Dual-chunk positions (Qwen2.5-1M): chunk_size, local_size and original_max_position_embeddings, in tokens.

    Raises InputError for sizes that make no sense.
    """

    chunk_tokens: int
    local_tokens: int
    original_context: int

    def __post_init__(self) -> None:
        for name in ("chunk_tokens", "local_tokens", "original_context"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"dual_chunk.{name}", repr(value), "a positive whole number is allowed")
        if self.local_tokens >= self.chunk_tokens:
            raise InputError("dual_chunk.local_tokens", self.local_tokens, f"less than {self.chunk_tokens} is allowed")
        if self.chunk_tokens > self.original_context:
            allowed = f"at most original_context ({self.original_context}) is allowed"
            raise InputError("dual_chunk.chunk_tokens", self.chunk_tokens, allowed)

    @classmethod
    def from_config(cls, config: Any) -> DualChunk | None:
        """The config's `dual_chunk_attention_config`, None where there is none. Raises InputError if it is broken."""
        values = getattr(config, "dual_chunk_attention_config", None)
        if values is None:
            return None
        names = ("chunk_size", "local_size", "original_max_position_embeddings")
        if not isinstance(values, dict) or any(name not in values for name in names):
            raise InputError("dual_chunk_attention_config", values, f"an object with {', '.join(names)} is allowed")
        return cls(*(values[name] for name in names))


def rope_parameters(config: Any) -> dict[str, Any]:
    """The config's rotary settings as a plain dict with `rope_type`.

    Raises UnsupportedModel for frequencies that change with the length of the text or from layer to layer: a stored
    key would have to be rotated anew each time.
    """
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        raise UnsupportedModel("it has no rotary positions (rope_parameters), so stored keys cannot be placed")
    if any(isinstance(value, dict) for value in parameters.values()):
        raise UnsupportedModel("its rotary frequencies differ between kinds of layers")
    kind = parameters.get("rope_type", "default")
    if kind in ("dynamic", "longrope"):
        raise UnsupportedModel(f"its rotary frequencies change with the length of the text (rope type {kind!r})")
    if kind not in _SETTLED_TYPES:
        raise UnsupportedModel(f"its rope type {kind!r} is not one of {', '.join(_SETTLED_TYPES)}")
    if parameters.get("llama_4_scaling_beta"):
        raise UnsupportedModel("it scales queries by their position (llama_4_scaling_beta)")
    return {**parameters, "rope_type": kind}


def read_rope(rotary: Any) -> Rope:
    """The frequencies and the attention factor of a model's own rotary module."""
    frequencies = getattr(rotary, "inv_freq", None)
    if not isinstance(frequencies, Tensor) or frequencies.ndim != 1:
        raise UnsupportedModel("its rotary module has no frequencies (inv_freq) that could be read")
    if frequencies.dtype not in (torch.float32, torch.float64):
        raise UnsupportedModel(f"its rotary frequencies were rounded to {frequencies.dtype}; do not use .to(dtype)")
    return Rope(frequencies.detach().double().cpu(), float(getattr(rotary, "attention_scaling", 1.0)))


def rope_text(config: Any, rope: Rope, dual_chunk: DualChunk | None = None) -> str:
    """One canonical line for the fingerprint, of settings and not of computed floats: the same on every machine."""
    parts = [f"{name}={value!r}" for name, value in sorted(rope_parameters(config).items()) if value is not None]
    if dual_chunk is not None:
        sizes = (dual_chunk.chunk_tokens, dual_chunk.local_tokens, dual_chunk.original_context)
        parts.append("dual_chunk={}/{}/{}".format(*sizes))
    return f"half-split dim={rope.rotary_dim} attention_factor={rope.attention_factor:.9g} {' '.join(parts)}"
