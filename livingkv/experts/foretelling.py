"""Which experts the next layer will need, guessed by its own router from what this layer's experts get.

A hidden state changes little from one layer to the next, so that the next router mostly chooses now what it will choose
then. Each layer's norm has weights of its own: where both are known, the hidden state is brought from one to the other
first. A router that looks its experts up by token id (`tid2eid`, as deepseek_v4's first layers do) is not guessed but
known. Guesses decide what is read early, never what is computed. Knows modules of transformers; refuses to know reads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_ROUTERS = ("gate", "router")
_NORMS = ("pre_feedforward_layernorm", "post_attention_layernorm")


@dataclass(frozen=True, slots=True)
class _Layer:
    """One layer's router. ratio: its norm's weights over those of the layer before, [hidden]."""

    router: Any
    table: Tensor | None  # [vocabulary, top_k], experts by token id
    ratio: Tensor | None


class Foreteller:
    """The routers of a network, in the order of its layers with experts. `names` are those of the experts modules."""

    def __init__(self, network: Any, names: list[str]) -> None:
        self._ids: Tensor | None = None
        self._layers: list[_Layer | None] = []
        norm: Tensor | None = None
        for name in names:
            block = network.get_submodule(name.rpartition(".")[0])
            decoder = network.get_submodule(name.rpartition(".")[0].rpartition(".")[0])
            before, norm = norm, _norm_weights(decoder)
            self._layers.append(_layer(block, before, norm))

    @property
    def knows_first(self) -> bool:
        """Whether the first layer's experts follow from the token ids alone."""
        return self._layers[0] is not None and self._layers[0].table is not None

    def chosen(self, layer: int, hidden: Tensor | None) -> Tensor | None:
        """Experts that tokens will choose in a layer, [tokens, top_k], the likeliest first where routers sort them.

        hidden: what the experts of the layer before get, [tokens, hidden]; None where none was before. None: unknown.
        """
        place = self._layers[layer] if layer < len(self._layers) else None
        if place is None:
            return None
        if place.table is not None:
            ids = self._ids
            if ids is None or (hidden is not None and hidden.shape[0] != ids.numel()):
                return None
            return place.table[ids.reshape(-1).to(place.table.device)]
        if hidden is None:
            return None
        with torch.no_grad():
            return _choice(place.router, hidden if place.ratio is None else hidden * place.ratio)

    def watch(self, network: Any, on_ids: Callable[[], None]) -> None:
        """Take note of token ids as they go into the network, if a router asks for them; then call `on_ids`."""
        if not any(place is not None and place.table is not None for place in self._layers):
            return

        def note(module: Any, arguments: tuple[Any, ...]) -> None:
            self._ids = arguments[0] if arguments and isinstance(arguments[0], Tensor) else None
            on_ids()

        network.get_input_embeddings().register_forward_pre_hook(note)


def _layer(block: Any, before: Tensor | None, norm: Tensor | None) -> _Layer | None:
    """None where it cannot be told what the layer's router would choose."""
    router = next((getattr(block, name) for name in _ROUTERS if hasattr(block, name)), None)
    if router is None:
        return None
    table = getattr(router, "tid2eid", None)
    if isinstance(table, Tensor):
        return _Layer(router, table, None)
    weight = getattr(router, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        return None
    try:
        found = _choice(router, torch.zeros(2, weight.shape[1], dtype=weight.dtype, device=weight.device))
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return None  # a router that wants more than hidden states
    if found is None:
        return None
    ratio = None if before is None or norm is None or before.shape != norm.shape else norm / before
    if ratio is not None and not bool(torch.isfinite(ratio).all()):
        ratio = None
    return _Layer(router, None, None if ratio is None else ratio.to(weight.dtype))


def _choice(router: Any, hidden: Tensor) -> Tensor | None:
    """The experts among what a router answers: the one tensor of whole numbers, [tokens, top_k].

    The class is asked, not the module: hooks that note what routers answered must not see a guess.
    """
    answer = type(router).forward(router, hidden)
    parts = answer if isinstance(answer, tuple) else (answer,)
    whole = [part for part in parts if isinstance(part, Tensor) and part.dtype == torch.int64 and part.dim() == 2]
    return whole[0] if len(whole) == 1 and whole[0].shape[0] == hidden.shape[0] else None


def _norm_weights(decoder: Any) -> Tensor | None:
    """What the norm before the experts multiplies with, fp32, whether it keeps weights or their distance from 1."""
    norm = next((getattr(decoder, name) for name in _NORMS if hasattr(decoder, name)), None)
    weight = getattr(norm, "weight", None)
    if norm is None or not isinstance(weight, Tensor) or weight.dim() != 1:
        return None
    with torch.no_grad():
        scale: Tensor = norm(torch.ones_like(weight)[None]).float()[0]
    return scale
