"""What a network's attention really does, found out by running each layer's attention alone on a tiny random input.

A probe takes the place of the attention function, so that queries and keys are seen as livingkv will see them. It finds
out any layout of rotary positions, norms after the rotation, windows, caps and sinks, whatever the config says.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.model_rope import Rope

_POSITIONS = (1, 2, 17, 300, 4099, 70_001, 1_000_003)
_HARMLESS = ("dropout", "scaling", "is_causal", "position_ids", "cache_position", "output_attentions", "use_cache")


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What one layer handed to its attention function: [1, heads, tokens, head_dim] each, and the extra arguments."""

    query: Tensor
    key: Tensor
    value: Tensor
    extra: dict[str, Any]


@dataclass(frozen=True, eq=False)
class AttentionFacts:
    """What holds for all layers. key_bias is per layer, [n_kv_heads, head_dim] or None."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    key_bias: tuple[Tensor | None, ...]


def probe_attention(network: Any, rope: Rope, *, max_window: int) -> AttentionFacts:
    """Run every attention layer on a tiny input; UnsupportedModel, with the reason, where livingkv could not serve it.

    A sliding window of at least `max_window` tokens is taken as none. The network is unchanged on return.
    """
    attentions = _attention_modules(network)
    shapes: set[tuple[int, int, int]] = set()
    biases: list[Tensor | None] = []
    with _probing(network) as calls, torch.no_grad():
        for attention in attentions:
            hidden = _random_hidden(network, attention)
            rotated = _run(network, attention, hidden, _POSITIONS, calls)
            unrotated = _run(network, attention, hidden, (0,) * len(_POSITIONS), calls)
            _check_call(rotated, max_window)
            for states, moved in ((unrotated.query, rotated.query), (unrotated.key, rotated.key)):
                _check_rotation(states, moved, rope)
            shapes.add((rotated.query.shape[1], rotated.key.shape[1], rotated.key.shape[3]))
            silent = _run(network, attention, torch.zeros_like(hidden), (0,) * len(_POSITIONS), calls)
            biases.append(_key_bias(attention, silent.key, rope))
    if len(shapes) != 1:
        raise UnsupportedModel("its layers differ in their number of heads or in head size")
    return AttentionFacts(len(attentions), *shapes.pop(), tuple(biases))


def _attention_modules(network: Any) -> list[Any]:
    base = network.base_model
    layers = getattr(base, "layers", None)
    if layers is None or not hasattr(base, "rotary_emb"):
        raise UnsupportedModel("its base model has no `layers` with one shared `rotary_emb`")
    attentions = [getattr(layer, "self_attn", None) or getattr(layer, "attention", None) for layer in layers]
    if not attentions or any(attention is None for attention in attentions):
        raise UnsupportedModel("not every layer has its attention as `self_attn`")
    return attentions


@contextmanager
def _probing(network: Any) -> Iterator[list[AttentionCall]]:
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    calls: list[AttentionCall] = []

    def probe(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None, **extra: Any
    ) -> tuple[Tensor, None]:
        calls.append(AttentionCall(query, key, value, {"attention_mask": attention_mask, **extra}))
        return query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3]), None

    chosen = network.config._attn_implementation
    name = f"livingkv-probe-{id(calls)}"
    ALL_ATTENTION_FUNCTIONS[name] = probe
    network.config._attn_implementation = name
    try:
        yield calls
    finally:
        network.config._attn_implementation = chosen
        del ALL_ATTENTION_FUNCTIONS[name]


def _random_hidden(network: Any, attention: Any) -> Tensor:
    weight = next(attention.parameters())
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, len(_POSITIONS), network.config.hidden_size, generator=generator)
    return hidden.to(weight.device, network.dtype)


def _run(
    network: Any, attention: Any, hidden: Tensor, positions: tuple[int, ...], calls: list[AttentionCall]
) -> AttentionCall:
    """The one call that `attention` made for these hidden states at these positions."""
    angles = network.base_model.rotary_emb(hidden, torch.tensor([positions], device=hidden.device))
    given = {"hidden_states": hidden, "position_embeddings": angles, "attention_mask": None}
    parameters = inspect.signature(attention.forward).parameters
    if "position_embeddings" not in parameters:
        raise UnsupportedModel("its attention does not take rotary angles from outside (position_embeddings)")
    required = [name for name, parameter in parameters.items() if parameter.default is parameter.empty]
    for name in required:
        if parameters[name].kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
            given.setdefault(name, None)
    calls.clear()
    try:
        attention(**given)
    except (TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        raise UnsupportedModel(f"its attention cannot be run on its own ({error})") from error
    if len(calls) != 1:
        raise UnsupportedModel("its attention does not go through Hugging Face's attention interface")
    return calls[0]


def _check_call(call: AttentionCall, max_window: int) -> None:
    if call.value.shape != call.key.shape:
        raise UnsupportedModel("its keys and values differ in size")
    if call.extra.get("is_causal") is False:
        raise UnsupportedModel("its attention is not causal")
    window = call.extra.get("sliding_window")
    if window is not None and window < max_window:
        raise UnsupportedModel(f"some of its layers attend only a sliding window of {window} tokens")
    for name, value in call.extra.items():
        if value is not None and name not in (*_HARMLESS, "sliding_window"):
            raise UnsupportedModel(f"its attention needs {name!r}, which livingkv does not know")


def _check_rotation(states: Tensor, moved: Tensor, rope: Rope) -> None:
    """`moved` must be `states` (position 0) rotated in the half-split layout; the rest of each head must not move."""
    if rope.rotary_dim > states.shape[3]:
        raise UnsupportedModel("its rotary dimensions exceed the size of a head")
    tolerance = 1e-4 if moved.dtype == torch.float32 else 0.03
    states, moved = states.float().cpu(), moved.float().cpu()
    angles = torch.tensor(_POSITIONS).float()[:, None] * rope.inverse_frequencies.float()  # [tokens, rotary_dim / 2]
    cos, sin = angles.cos(), angles.sin()
    half = rope.rotary_dim // 2
    left, right, rest = states[..., :half], states[..., half : 2 * half], states[..., 2 * half :]
    expected = torch.cat([left * cos - right * sin, right * cos + left * sin, rest], dim=3)
    if not (expected - moved).abs().max() <= tolerance * moved.abs().max():
        raise UnsupportedModel("its rotary positions are not in the half-split layout, or something follows them")


def _key_bias(attention: Any, silent_key: Tensor, rope: Rope) -> Tensor | None:
    """The bias of k_proj if it reaches the key unchanged, seen as the key of a zero input. [n_kv_heads, head_dim]"""
    bias = getattr(getattr(attention, "k_proj", None), "bias", None)
    if bias is None or bias.numel() != silent_key.shape[1] * silent_key.shape[3]:
        return None
    bias = bias.detach().view(silent_key.shape[1], silent_key.shape[3])
    seen = silent_key[0, :, 0].float()  # [n_kv_heads, head_dim]
    factor = torch.ones(silent_key.shape[3], device=seen.device)
    factor[: rope.rotary_dim] = rope.attention_factor
    reaches = torch.allclose(seen, bias.float() * factor, rtol=0.02, atol=1e-4)
    return bias if reaches and not any("norm" in name for name, _ in attention.named_children()) else None
