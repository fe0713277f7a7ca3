"""What a step computes between attentions: norms, linear maps, gates, residuals. Interface, plain torch, and torch's
matrix products with fused small kernels.

Knows tensors [rows, width] of one token each; knows no attention and no layers' order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import linear, silu

from livingkv.decoding.attending import rms_norm
from livingkv.decoding.parts import Linear
from livingkv.plain_network import Norm


class StepOps(Protocol):
    """x is the residual stream [rows, hidden] throughout."""

    def normed(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """`into` of the norm of x: [rows, outputs]."""
        ...

    def gated(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """silu(gate) * up of the norm of x: [rows, outputs / 2]."""
        ...

    def added(self, x: Tensor, inner: Tensor, into: Linear) -> Tensor:
        """x + `into` of inner [rows, inputs]: [rows, hidden]."""
        ...


def apply(into: Linear, x: Tensor) -> Tensor:
    """The linear map by torch, or by the modules where their weights are packed."""
    if into.weight is not None:
        return linear(x, into.weight, into.bias)
    outs = [module(x) for module in into.modules]
    return outs[0] if len(outs) == 1 else torch.cat(outs, -1)


class TorchOps:
    """See StepOps. As Hugging Face's modules compute it, operation by operation."""

    def normed(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """See StepOps."""
        return apply(into, rms_norm(x, norm.weight, norm.epsilon))

    def gated(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """See StepOps."""
        gate, up = self.normed(x, norm, into).chunk(2, -1)
        return silu(gate) * up

    def added(self, x: Tensor, inner: Tensor, into: Linear) -> Tensor:
        """See StepOps."""
        return x + apply(into, inner)


class FusedOps:
    """See StepOps. Matrix products by torch, whose residual is added by the product where there is no bias; norm and
    gate by one kernel each: `rms` (x, weight, epsilon) and `gate` ([rows, 2 * width] to [rows, width])."""

    def __init__(self, rms: Callable[[Tensor, Tensor, float], Tensor], gate: Callable[[Tensor], Tensor]) -> None:
        self._rms = rms
        self._gate = gate

    def normed(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """See StepOps."""
        return apply(into, self._rms(x, norm.weight, norm.epsilon))

    def gated(self, x: Tensor, norm: Norm, into: Linear) -> Tensor:
        """See StepOps."""
        return self._gate(self.normed(x, norm, into))

    def added(self, x: Tensor, inner: Tensor, into: Linear) -> Tensor:
        """See StepOps."""
        if into.weight is None or into.bias is not None:
            return x + apply(into, inner)
        return torch.addmm(x, inner, into.weight.t())
