"""The experts function that transformers calls, and a network whose experts hold no weights.

Knows transformers' experts interface and loader; refuses to know how experts are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from livingkv.experts.ahead import ReadAhead
from livingkv.experts.alternation import Alternation, Fixed
from livingkv.experts.foretelling import Foreteller
from livingkv.experts.skeleton import expert_parameters, is_experts
from livingkv.experts.stream import ExpertStream

NAME = "livingkv"
"""What the implementation is called in transformers: `experts_implementation=NAME`."""

_ATTRIBUTE = "livingkv_layer"


@dataclass(frozen=True, slots=True)
class StreamedLayer:
    """What an experts module of a streamed network knows instead of weights."""

    stream: ExpertStream
    layer: int


def register() -> None:
    """Make the implementation known to transformers, for plain and for FP8 experts, which have a table each."""
    from transformers.integrations.finegrained_fp8 import FP8ExpertsInterface
    from transformers.integrations.moe import ExpertsInterface

    ExpertsInterface.register(NAME, experts_forward)
    FP8ExpertsInterface.register(NAME, experts_forward)


def experts_forward(self: Any, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
    """transformers' contract for experts: [tokens, hidden] and the router's [tokens, top_k] to [tokens, hidden]."""
    place: StreamedLayer = getattr(self, _ATTRIBUTE)
    return place.stream.forward(place.layer, self, hidden_states, top_k_index, top_k_weights)


def plug_in(network: Any, names: list[str], stream: ExpertStream) -> None:
    """Let the network's experts, modules of those names in the order of the index, be computed by the stream."""
    for layer, name in enumerate(names):
        setattr(network.get_submodule(name), _ATTRIBUTE, StreamedLayer(stream, layer))


def plug_in_ahead(
    network: Any, names: list[str], stream: ExpertStream, pace: Alternation | Fixed, n_at_most: int
) -> None:
    """Let experts of those modules be read before they are needed."""
    teller = Foreteller(network, names)
    ahead = ReadAhead(stream.index, stream.source, stream.arena, teller, pace, n_at_most)
    stream.ahead = ahead
    teller.watch(network, ahead.first)


def without_experts(found: type) -> type:
    """The same network class, whose experts modules have lost the parameters that are a row for each expert.

    It carries the name and module of the class that it is made of: transformers looks up its conversion mapping and
    reads its source by them.
    """

    class Streamed(found):  # type: ignore[misc]
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            for module in self.modules():
                if is_experts(module):
                    for name in expert_parameters(module):
                        del module._parameters[name]
                    module._is_hf_initialized = True  # there is nothing to initialize

    Streamed.__name__, Streamed.__qualname__, Streamed.__module__ = found.__name__, found.__qualname__, found.__module__
    return Streamed
