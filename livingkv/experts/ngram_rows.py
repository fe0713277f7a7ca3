"""qwen4_exp's n-gram embeddings, whose tables stay on disk: the module in their place, and when rows are staged.

Rows are staged at the first layer of a pass, for every table of the network, so that reads run beside the layers before
the one that needs them. Which rows those are is asked of transformers' own hashing. Knows transformers' n-gram modules;
refuses to know files.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from livingkv.errors import ModelDamaged, StagedRowsError
from livingkv.experts.row_stage import RowStage

TABLE = "ngram_embedding"
BUFFERS = ("layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets")
"""What the hashing of tokens is made of: computed from the config, and stored in the checkpoint."""


class RowEmbedding(torch.nn.Module):
    """Stands where a table would: given numbers of rows, answers the staged rows. It has no parameters."""

    def __init__(self, n_rows: int, width: int) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = n_rows, width
        self.weight = torch.empty(0, width, device="cpu")  # transformers asks it where numbers of rows should be
        self.rows: RowStage | None = None
        self.asked: list[Tensor] | None = None

    def forward(self, ids: Tensor) -> Tensor:
        """[..., width] for ids of any shape. Raises StagedRowsError where other rows are staged, or none."""
        if self.asked is not None:
            self.asked.append(ids)
            return torch.zeros((), device=ids.device).expand(*ids.shape, self.embedding_dim)
        if self.rows is None:
            raise StagedRowsError("a table of rows is used before the model is loaded")
        return self.rows.take(ids)


class _Context(Protocol):
    layers: list[Any]

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None: ...

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool: ...


class _Unchanged:
    """A cache that is read and not written: hashing looks at the tokens before, and would store the new ones.

    transformers 5.24 asks for `get_conv_state`, 5.17 for the other two.
    """

    def __init__(self, cache: _Context) -> None:
        self._cache = cache
        self.layers = cache.layers

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        return self._cache.has_previous_state(layer_idx, state_idx=state_idx)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self._cache.get_conv_state(layer_idx, state_idx=state_idx)

    def update_conv_state(self, conv_states: Tensor, layer_idx: int, **_: object) -> Tensor:
        return conv_states


def table_modules(network: Any) -> dict[str, Any]:
    """The modules of a network that have a table of n-grams, by name."""
    return {
        name: module
        for name, module in network.named_modules()
        if hasattr(module, TABLE) and all(hasattr(module, buffer) for buffer in BUFFERS)
    }


def without_tables(found: type) -> type:
    """The same network class without its tables. See `plugging.without_experts` on its name."""

    class Rowed(found):  # type: ignore[misc]
        def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
            super().__init__(config, *args, **kwargs)
            for module in table_modules(self).values():
                table = getattr(module, TABLE)
                setattr(module, TABLE, RowEmbedding(table.num_embeddings, table.embedding_dim))

    Rowed.__name__, Rowed.__qualname__, Rowed.__module__ = found.__name__, found.__qualname__, found.__module__
    return Rowed


def attach(network: Any, stages: Mapping[str, RowStage]) -> None:
    """Let the tables, modules of those names, be read through stages, which every pass fills by itself from now on."""
    for name, stage in stages.items():
        getattr(network.get_submodule(name), TABLE).rows = stage
    names = list(stages)
    layers = {name.partition(".layers.")[0] + ".layers" for name in names}
    for prefix in layers:
        modules = [network.get_submodule(name) for name in names if name.startswith(prefix)]

        def stage_rows(layer: Any, args: Any, kwargs: dict[str, Any], modules: list[Any] = modules) -> None:
            cache = kwargs["cache"] if "cache" in kwargs else kwargs["past_key_values"]  # so up to transformers 5.17
            for module in modules:
                getattr(module, TABLE).rows.stage(rows_of(module, kwargs["ple_input_ids"], cache))

        network.get_submodule(prefix)[0].register_forward_pre_hook(stage_rows, with_kwargs=True)


def rows_of(module: Any, token_ids: Tensor, cache: _Context | None) -> Tensor:
    """The rows that tokens need after those of the cache: int64 [batch, tokens, heads]. The cache stays as it is."""
    table: RowEmbedding = getattr(module, TABLE)
    table.asked = []
    try:
        module(token_ids, None if cache is None else _Unchanged(cache))
        (ids,) = table.asked
    finally:
        table.asked = None
    return ids


def require_hashing(network: Any, name: str, stored: Mapping[str, Tensor]) -> None:
    """Raise ModelDamaged unless the hashing that the checkpoint holds is that which its config makes."""
    module = network.get_submodule(name)
    derived = copy.copy(module)
    derived._buffers = {buffer: torch.zeros_like(module._buffers[buffer], device="cpu") for buffer in BUFFERS}
    network._init_weights(derived)
    for buffer in BUFFERS:
        made, live = derived._buffers[buffer], module._buffers[buffer].cpu()
        if not (torch.equal(made, stored[buffer]) and torch.equal(made, live)):
            what = f"{name}.{buffer}: what the checkpoint holds is not what its config makes"
            raise ModelDamaged(f"{what}; its rows would belong to other tokens. Fetch the model again")
