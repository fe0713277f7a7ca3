"""Does a model's own eager code compute an expert as streaming does? Found out by running it on a few random experts.

Most of transformers' experts are one and the same code; some add up in another type, some multiply in another order.
What is not reproduced to the last bit is refused, not approximated. Knows experts modules; refuses to know checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import UnsupportedModel
from livingkv.experts.routes import Route, routes_of
from livingkv.experts.skeleton import Parameter
from livingkv.model_loading import first_line

_N_EXPERTS = 5
_FEW_ROWS = 8
# several experts for each token: of two outputs the sum is the same in every type, once it is rounded
_TOKENS = torch.tensor([[0, 1, 2, 3], [4, 2, 1, 0], [3, 4, 0, 2], [1, 3, 4, 2], [2, 0, 3, 4]])

OneExpert = Callable[[Tensor, Mapping[str, Tensor]], Tensor]
"""Hidden states [tokens, hidden] and an expert's tensors to its output, without the router's weights."""


class _Rows:
    """What stands for a parameter while eager code runs: indexed by an expert, it answers that expert's tensor."""

    def __init__(self, rows: list[Tensor]) -> None:
        self._rows = rows

    def __getitem__(self, expert: Any) -> Tensor:
        return self._rows[int(expert)]


class Probe:
    """A few random experts of a module's kind, and what its eager code makes of them. `parameters`: of one expert."""

    def __init__(self, module: Any, parameters: Mapping[str, Parameter], device: torch.device) -> None:
        self._module = module
        random = torch.Generator().manual_seed(0)
        shapes = _with_few_rows(parameters, is_transposed=module.is_transposed)
        dtype = next(iter(parameters.values())).dtype

        def draw(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            values: Tensor = torch.randn(shape, generator=random) / max(shape[-1:], default=1) ** 0.5
            return values.to(device, dtype)

        self._experts = {
            name: [draw(shapes[name], parameter.dtype) for _ in range(_N_EXPERTS)]
            for name, parameter in parameters.items()
        }
        down = shapes["down_proj"]
        self._hidden = draw((len(_TOKENS), down[-1] if module.is_transposed else down[0]), dtype) * 8
        self._chosen = _TOKENS.to(device)
        self._weights = torch.rand(_TOKENS.shape, generator=random).to(device)

    def agrees(self, one_expert: OneExpert, sum_dtype: Callable[[torch.dtype, torch.dtype], torch.dtype]) -> bool:
        """Whether outputs weighted and added up in that type, of hidden states and router weights, are eager code's."""
        for weights in (self._weights, self._weights.to(self._hidden.dtype)):
            total = torch.zeros_like(self._hidden, dtype=sum_dtype(self._hidden.dtype, weights.dtype))
            for route in routes_of(self._chosen.tolist(), _N_EXPERTS, self._chosen.device):
                assert isinstance(route, Route)
                tensors = {name: rows[route.expert] for name, rows in self._experts.items()}
                output = one_expert(self._hidden[route.tokens], tensors) * weights[route.tokens, route.ranks, None]
                total.index_add_(0, route.tokens, output.to(total.dtype))
            if not torch.equal(total.to(self._hidden.dtype), self._eager(weights)):
                return False
        return True

    def _eager(self, weights: Tensor) -> Tensor:
        kind = type(self._module)
        try:
            for name, rows in self._experts.items():
                setattr(self._module, name, _Rows(rows))
            answer: Tensor = kind.forward.__wrapped__(self._module, self._hidden, self._chosen, weights)
        except (AttributeError, TypeError, RuntimeError, IndexError) as error:
            reason = first_line(error)
            raise UnsupportedModel(
                f"{kind.__name__}: its eager code cannot be run without its weights ({reason})"
            ) from error
        finally:
            for name in self._experts:
                self._module.__dict__.pop(name, None)
        return answer


def _with_few_rows(parameters: Mapping[str, Parameter], *, is_transposed: bool) -> dict[str, tuple[int, ...]]:
    """Shapes of the same experts with a narrow middle, where it can be told from the hidden size."""
    if "down_proj" not in parameters:
        raise UnsupportedModel(f"experts of {', '.join(parameters)}, without a down_proj, are not understood")
    down = parameters["down_proj"].shape
    hidden, middle = (down[-1], down[0]) if is_transposed else (down[0], down[-1])
    few = {middle: _FEW_ROWS, 2 * middle: 2 * _FEW_ROWS}
    if hidden in few:
        few = {}
    return {name: tuple(few.get(size, size) for size in one.shape) for name, one in parameters.items()}
