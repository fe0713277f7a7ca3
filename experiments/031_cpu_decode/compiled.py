"""Does torch.compile make a decode step on a CPU faster? The int8 step as it is beside the same step compiled.

    python experiments/031_cpu_decode/compiled.py [--model SPEC] [--rounds 7] [--threads 2]

Compiled are the parts of a layer in front of its attention and behind it, with the weights as inputs, so that one
program does for all layers; attention and pages stay as they are. Both alternate in blocks of steps in one process,
behind a hot window of 4,096 tokens. `first_s`: what the first compiled step takes, in which the compiler runs.
"""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple

import torch
import typer
from torch import Tensor
from torch.nn.functional import rms_norm

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]  # an experiment is a script of the repository

from run import resumed, step_seconds  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.engine import Engine  # noqa: E402
from livingkv.models import load_model  # noqa: E402
from livingkv.packed import PackedStep  # noqa: E402
from livingkv.packed.matrices import GROUP, Int4Matrix, Int8Matrix  # noqa: E402
from livingkv.workspace import AttentionState, Workspace  # noqa: E402

RESULT = Path(__file__).with_name("compiled.json")
LENGTH = 4096
MODES = ("default", "max-autotune-no-cudagraphs")
_DROPPED = 2


class Codes(NamedTuple):
    """A packed matrix as a compiled program takes it."""

    bits: int
    packed: Tensor
    table: Tensor


def product(x: Tensor, by: Codes) -> Tensor:
    """See Matrix."""
    out: Tensor
    if by.bits == 8:
        out = torch.ops.aten._weight_int8pack_mm(x, by.packed, by.table)
    else:
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(x, by.packed, GROUP, by.table)
    return out


def in_front(x: Tensor, norm: Tensor, epsilon: float, query_key_value: Codes, bias: Tensor) -> Tensor:
    """Queries, keys and values [rows, all heads] of a layer's input."""
    return product(rms_norm(x, (x.shape[-1],), norm, epsilon), query_key_value) + bias


def behind(x: Tensor, seen: Tensor, out: Codes, norm: Tensor, epsilon: float, gate_up: Codes, down: Codes) -> Tensor:
    """A layer's output, of its input and of what its attention saw; activation SiLU."""
    x = x + product(seen, out)
    gate, up = product(rms_norm(x, (x.shape[-1],), norm, epsilon), gate_up).chunk(2, -1)
    return x + product(torch.nn.functional.silu(gate) * up, down)


class CompiledStep:
    """The same step with compiled parts. For networks with biases, SiLU and no norms of heads."""

    def __init__(self, plain: PackedStep, mode: str) -> None:
        self._plain = plain
        self._front = torch.compile(in_front, mode=mode, fullgraph=True, dynamic=False)
        self._behind = torch.compile(behind, mode=mode, fullgraph=True, dynamic=False)

    def hidden(self, token_ids: Tensor, state: AttentionState) -> Tensor:
        """See PackedStep."""
        decoder, dim = self._plain._decoder, self._plain._dim
        x = decoder.embed(token_ids[:, 0])
        for index, (layer, products) in enumerate(self._plain._layers):
            qkv, out, gate_up, down = (
                _codes(each) for each in (products.query_key_value, products.out, products.gate_up, products.down)
            )
            assert products.bias is not None and layer.head_norms is None
            first, second = layer.first_norm, layer.second_norm
            heads = self._front(x, first.weight, first.epsilon, qkv, products.bias).view(x.shape[0], -1, 1, dim)
            n_query, n_key = (module.out_features // dim for module in layer.query_key_value[:2])
            query, key, value = heads[:, :n_query], heads[:, n_query : n_query + n_key], heads[:, n_query + n_key :]
            seen = state.attend(index, query, key, value, layer.scale).reshape(x.shape[0], -1)
            x = self._behind(x, seen, out, second.weight, second.epsilon, gate_up, down)
        return rms_norm(x, (x.shape[-1],), decoder.norm.weight, decoder.norm.epsilon)[:, None]

    def logits(self, hidden: Tensor) -> Tensor:
        """See PackedStep."""
        return self._plain.logits(hidden)


def _codes(matrix: object) -> Codes:
    if isinstance(matrix, Int4Matrix):
        return Codes(4, matrix.packed, matrix.table)
    assert isinstance(matrix, Int8Matrix)
    return Codes(8, matrix.codes, matrix.scales)


def compared(engine: Engine, space: Workspace, mode: str, rounds: int, n_steps: int) -> dict[str, Any]:
    """Blocks of steps in alternation, and how far the logits are apart."""
    packed = engine.runner._network.model.rotary_emb.packed
    bits, plain = next((bits, step) for bits, step in packed.items() if step is not None)
    sides = {"plain": plain, "compiled": CompiledStep(plain, mode)}
    logits, seconds, first = {}, {name: list[float]() for name in sides}, 0.0
    for name, step in sides.items():
        packed[bits] = step
        started = perf_counter()
        logits[name] = engine.runner.logits(torch.tensor([1000]), space)[0, -1]
        first = perf_counter() - started
        space.end, space.next_position = space.end - 1, space.next_position - 1
    for _ in range(rounds):
        for name, step in sides.items():
            packed[bits] = step
            seconds[name].append(statistics.median(step_seconds(engine, space, n_steps)[_DROPPED:]))
    packed[bits] = plain
    ratios = [a / b for a, b in zip(seconds["plain"], seconds["compiled"], strict=True)]
    return {
        "first_s": first,
        "step_ms_by_round": {name: [1000 * each for each in values] for name, values in seconds.items()},
        "speed_up_by_round": ratios,
        "median_speed_up": statistics.median(ratios),
        "largest_difference_of_logits": float((logits["plain"] - logits["compiled"]).abs().max()),
    }


def main(
    model: Annotated[str | None, typer.Option(help="A model spec; left out: the default model.")] = None,
    rounds: Annotated[int, typer.Option(min=1)] = 7,
    steps: Annotated[int, typer.Option(min=4, help="In a block.")] = 24,
    threads: Annotated[int, typer.Option(min=1)] = 2,
    out: Annotated[Path, typer.Option(help="Where the raw result goes.")] = RESULT,
) -> None:
    """Run and write the raw result."""
    torch.set_num_threads(threads)
    engine = Engine.of(load_model(model, device="cpu", weights="int8"), "int8")
    space = resumed(engine, LENGTH, steps)
    result: dict[str, Any] = {"circumstances": circumstances(), "model": engine.model.name, "n_threads": threads}
    engine.runner.logits(torch.tensor([1000]), space)
    space.end, space.next_position = space.end - 1, space.next_position - 1
    with torch.inference_mode():
        result["modes"] = {mode: compared(engine, space, mode, rounds, steps) for mode in MODES}
    write_json(out, result)
    print(result["modes"])


if __name__ == "__main__":
    typer.run(main)
