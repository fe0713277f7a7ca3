"""A format of experts that are stored as codes and scales: their matrices are made for each use, then computed with.

The product is that of the plain format over the same matrices, in the type of the hidden states: what transformers
computes when it dequantizes a checkpoint while it loads it. Knows slots and codings; refuses to know the bytes.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.experts.codings import CODES, Coding, Dense, Stored
from livingkv.experts.formats import Format, PlainFormat, computed, projected, with_bias
from livingkv.experts.index import LayerIndex
from livingkv.experts.kernel_gate import Product, accept_kernel, accept_product
from livingkv.experts.layout import ALIGNMENT
from livingkv.experts.skeleton import ExpertModule, Parameter
from livingkv.experts.tables import with_tables
from livingkv.triton_here import first_line, kernel_failures

LOG = logging.getLogger("livingkv.experts")

Pieces = dict[str, dict[int, dict[str, Stored]]]
"""By parameter and piece: what is stored, by role."""


@dataclass(frozen=True, slots=True)
class CodedFormat:
    """A Format of matrices in one coding; parameters that are plain numbers, biases, stay so.

    product: multiplies a few tokens without decoding a matrix first; None: it is always decoded.
    """

    coding: Coding
    plain: Format = field(default=PlainFormat())
    product: Product | None = None

    @property
    def name(self) -> str:
        """See Format."""
        return self.coding.name

    def reads(self, layer: LayerIndex, module: ExpertModule) -> str | None:
        """See Format."""
        pieces = pieces_of(layer)
        if not pieces:
            return "nothing is stored as codes"
        for tensor, parameter in module.parameters.items():
            if tensor not in pieces:
                slot = next(slot for slot in layer.slots if slot.tensor == tensor)
                if not slot.dtype.startswith(("F", "BF")) or slot.shape != parameter.shape:
                    return f"{tensor} is stored as {slot.dtype} {list(slot.shape)}"
                continue
            problem = self._problem(tensor, list(pieces[tensor].values()), parameter)
            if problem is not None:
                return problem
        return None

    def fitted(self, module: Any, parameters: Mapping[str, Parameter], device: torch.device) -> Format:
        """See Format."""
        return replace(self, plain=self.plain.fitted(module, parameters, device))

    def sum_dtype(self, hidden: torch.dtype, weights: torch.dtype) -> torch.dtype:
        """See Format."""
        return self.plain.sum_dtype(hidden, weights)

    def forward(self, module: Any, hidden: Tensor, tensors: Mapping[str, Tensor]) -> Tensor:
        """See Format. Matrices that are decoded live in memory of their own for this call."""
        if self.product is not None and 0 < len(hidden) <= self.product.most_tokens:
            return computed(module, hidden, partial(self._multiplied, module, tensors, _parts(tensors), self.product))
        return self.plain.forward(module, hidden, self.matrices(tensors, hidden.dtype))

    def weigh(self, output: Tensor, weights: Tensor) -> Tensor:
        """See Format."""
        return self.plain.weigh(output, weights)

    def matrices(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
        """An expert's parameters from its slots, those that were coded rounded once, to that type."""
        found = {slot: tensor for slot, tensor in tensors.items() if "." not in slot}
        for name, pieces in _parts(tensors).items():
            made = [self.coding.values(pieces[piece]).to(dtype) for piece in sorted(pieces)]
            whole = made[0] if len(made) == 1 else torch.cat(made)
            # blocks are kept as [out, in]; the one architecture that has them computes with [in, out]
            found[name] = whole.t().contiguous() if _is_blocks(pieces[0][CODES].shape) else whole
        return found

    def accelerated(self, tensors: Mapping[str, Tensor]) -> CodedFormat:
        """The same by tables where those give every bit of the reference on that expert's slots; else as it is."""
        fast = with_tables(self.coding)
        if fast is None:
            return self
        samples = [part for pieces in _parts(tensors).values() for part in pieces.values()]
        try:
            return replace(self, coding=accept_kernel(self.coding, fast.values, samples))
        except UnsupportedModel as error:
            LOG.warning("%s", error)
            return self

    def multiplying(
        self, module: Any, tensors: Mapping[str, Tensor], product: Product, dtype: torch.dtype
    ) -> CodedFormat:
        """The same with that product, where it is near enough to the reference on the matrices of that expert; else as
        it is, with one line in the log. dtype: of hidden states."""
        matrices = [[pieces[number] for number in sorted(pieces)] for pieces in _parts(tensors).values()]
        for pieces in matrices:
            # kernels know rows of outputs: blocks are kept so, and what is not transposed
            if len(pieces) > 2 or _is_blocks(pieces[0][CODES].shape) != bool(module.is_transposed):
                return self
        try:
            return replace(self, product=accept_product(self.coding, product, matrices, dtype))
        except UnsupportedModel as error:
            LOG.warning("experts are decoded for every token: %s", error)
        except kernel_failures() as error:
            LOG.warning("experts are decoded for every token: %s", first_line(error))
        return self

    @staticmethod
    def _multiplied(
        module: Any,
        tensors: Mapping[str, Tensor],
        parts: Mapping[str, Mapping[int, Mapping[str, Tensor]]],
        product: Product,
        name: str,
        hidden: Tensor,
    ) -> Tensor:
        """One product of `computed`: with codes where there are codes."""
        if name not in parts:
            return projected(module, tensors, name, hidden)
        found = product(hidden, [parts[name][number] for number in sorted(parts[name])])
        return with_bias(module, tensors, name, found) if module.is_transposed else found

    def _problem(self, tensor: str, pieces: list[dict[str, Stored]], parameter: Parameter) -> str | None:
        found: list[Dense] = [self.coding.dense(piece) for piece in pieces]
        for dense in found:
            if dense.problem is not None:
                return f"{tensor}: {dense.problem}"
        shape: tuple[int, ...] = (sum(dense.shape[0] for dense in found), *found[0].shape[1:])
        if _is_blocks(pieces[0][CODES].shape):
            shape = shape[::-1]
        if shape != parameter.shape or len({dense.shape[1:] for dense in found}) > 1:
            return f"{tensor} is {list(shape)}, not {list(parameter.shape)}"
        if shape[0] * shape[1] * parameter.dtype.itemsize % ALIGNMENT:
            return f"{tensor}: experts of {list(shape)} begin at addresses that are not multiples of {ALIGNMENT}"
        return None


def pieces_of(layer: LayerIndex) -> Pieces:
    """What a layer stores as codes."""
    found: Pieces = {}
    for part in layer.parts:
        tensor, piece, role = part.name
        if role:
            found.setdefault(tensor, {}).setdefault(piece, {})[role] = Stored(part.dtype, part.shape)
    return found


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, dict[int, dict[str, Tensor]]]:
    """Coded slots by parameter, piece and role."""
    found: defaultdict[str, dict[int, dict[str, Tensor]]] = defaultdict(dict)
    for slot, tensor in tensors.items():
        if "." in slot:
            name, piece, role = slot.split(".")
            found[name].setdefault(int(piece), {})[role] = tensor
    return found


def _is_blocks(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3
