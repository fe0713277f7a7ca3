"""Kernels against their references on one GPU: 8-bit pages, and products of few tokens with experts in codes.

    python experiments/028_kernels/run.py [--out FILE]     on a machine with CUDA
    python experiments/028_kernels/run.py --tiny           anywhere: tiny sizes, Triton's interpreter, no real times

Pages: the shapes of Qwen2.5-7B and of the 0.5B model, 1 to 1,024 pages: decoded, decoded and moved, encoded. Experts:
those of Qwen3-30B-A3B and gpt_oss-20b, 1 to 16 tokens, so many experts in turn that they do not fit the GPU's cache.
Every case is compared first. A case that fails is noted with its error, the others go on. Times: `wall` of one call,
waited for (median and quarters), `device` of calls queued behind one another, and for experts `graph`, the same calls
replayed from a CUDA graph, without Python. Bandwidth is that of a large copy in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module
IS_TINY = "--tiny" in sys.argv
if IS_TINY:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.codec import KV, Int8, PageShape  # noqa: E402
from livingkv.experts.codings import BlockFp8, Coding, Mxfp4, Nvfp4  # noqa: E402
from livingkv.experts.kernel_gate import Sample, accept_product  # noqa: E402
from livingkv.experts.products import product_of  # noqa: E402
from livingkv.experts.tables import with_tables  # noqa: E402
from livingkv.fused_codec import FusedInt8  # noqa: E402
from livingkv.fused_pages import FusedPages  # noqa: E402
from livingkv.model_rope import Rope  # noqa: E402
from livingkv.page_gate import difference  # noqa: E402
from livingkv.page_places import GPU_PAGES, Place  # noqa: E402
from livingkv.settings import PAGE_TOKENS  # noqa: E402

RESULT = Path(__file__).with_name("tiny.json" if IS_TINY else "result.json")
DEVICE = torch.device("cpu" if IS_TINY else "cuda")
SHAPES = {"qwen2.5-7b": (28, 4, 128), "qwen2.5-0.5b": (24, 2, 64)}
TINY_SHAPES = {"tiny": (2, 1, 16)}
EXPERTS = {"qwen3-30b-a3b": (2048, 768, False), "gpt_oss-20b": (2880, 2880, True)}  # hidden, middle, in blocks
TINY_EXPERTS = {"tiny": (64, 32, False), "tiny in blocks": (64, 64, True)}
CACHE_BYTES = 1 << 13 if IS_TINY else 200 << 20
REPEATS = 1 if IS_TINY else 30

Case = tuple[dict[str, Any], Callable[[], dict[str, Any]]]
"""What is measured, and how."""


def waited() -> None:
    """Until the device has done everything."""
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def times(work: Callable[[], object], n_repeats: int = REPEATS) -> dict[str, float]:
    """Milliseconds of a call: alone and waited for (median, quarters), and of calls in a queue."""
    for _ in range(1 if IS_TINY else 3):
        work()
    waited()
    alone = []
    for _ in range(max(2, n_repeats)):
        started = perf_counter()
        work()
        waited()
        alone.append(1e3 * (perf_counter() - started))
    low, median, high = statistics.quantiles(alone, n=4)
    started = perf_counter()
    for _ in range(n_repeats):
        work()
    waited()
    queued = 1e3 * (perf_counter() - started) / n_repeats
    return {"wall_ms": median, "wall_low_ms": low, "wall_high_ms": high, "device_ms": queued}


def graph_ms(work: Callable[[], object]) -> float:
    """Milliseconds of a call that is replayed from a CUDA graph; nan where it cannot be captured."""
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            work()
    except RuntimeError as error:
        print(f"not captured: {error}")
        return float("nan")
    return times(graph.replay, 5)["device_ms"]


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy within the device's memory."""
    source = torch.empty(1 << (16 if IS_TINY else 31), dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    return 2e3 * source.nbytes / times(lambda: target.copy_(source))["device_ms"]


def page_cases() -> Iterator[Case]:
    """Every shape and number of pages."""
    for name, (layers, heads, dim) in (TINY_SHAPES if IS_TINY else SHAPES).items():
        rope = Rope(1e6 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim), 1.0)
        shape = PageShape(layers, heads, dim, torch.bfloat16)
        generator = torch.Generator().manual_seed(0)
        bias = [torch.randn(heads, dim, generator=generator) * 50 for _ in range(layers)]
        plain = Int8(shape, bias, rope)
        pages = FusedPages(shape, interpreted=IS_TINY)
        fused = FusedInt8(plain, rope, pages, DEVICE.type)
        yield (
            {"shape": name, "part": "equal"},
            partial(lambda *of: {"difference": difference(*of)}, plain, fused, shape, rope, DEVICE),
        )
        for n_pages in (1,) if IS_TINY else (1, 4, 16, 64, 256, 1024):
            yield {"shape": name, "n_pages": n_pages}, partial(pages_case, plain, fused, pages, rope, n_pages)


def pages_case(plain: Int8, fused: FusedInt8, kernels: FusedPages, rope: Rope, n_pages: int) -> dict[str, Any]:
    """Times of one shape and number of pages; bytes are those that a perfect kernel moves."""
    layers, heads, dim, dtype = plain.shape
    size, n_tokens = (layers, heads, n_pages * PAGE_TOKENS, dim), n_pages * PAGE_TOKENS
    kv = KV(*(torch.randn(size, dtype=dtype, device=DEVICE) for _ in range(2)))
    by, bias = plain.rotation([64_000], n_tokens, DEVICE), plain.bias(DEVICE)
    rows = kernels.encode(kv, by, bias)
    still = [Place(64_000 + at, 0, PAGE_TOKENS, at) for at in range(0, n_tokens, PAGE_TOKENS)]
    moved = [place._replace(delta=-63_000) for place in still]
    groups = [rows[at : at + GPU_PAGES] for at in range(0, n_pages, GPU_PAGES)]
    starts = [64_000 + at * PAGE_TOKENS for at in range(0, n_pages, GPU_PAGES)]

    def reference_decode() -> None:
        for group, first in zip(groups, starts, strict=True):
            turned = plain.rotation([first], len(group) * PAGE_TOKENS, DEVICE)
            plain._numbers(plain._codes(group, layers), turned, 0)

    def reference_encode() -> None:
        for at, first in zip(range(0, n_tokens, GPU_PAGES * PAGE_TOKENS), starts, strict=True):
            some = KV(*(part[:, :, at : at + GPU_PAGES * PAGE_TOKENS] for part in kv))
            plain.rows(some, plain.rotation([first], some.keys.shape[2], DEVICE), 0)

    found: dict[str, Any] = {"bytes": rows.nbytes + 2 * kv.keys.nbytes}
    found["kernel_decode"] = times(lambda: kernels.decode(rows, by, bias, still, kv, rope))
    found["kernel_decode_moved"] = times(lambda: kernels.decode(rows, by, bias, moved, kv, rope))
    found["kernel_encode"] = times(lambda: kernels.encode(kv, by, bias))
    few = max(2, REPEATS // 6)
    found["reference_decode"] = times(reference_decode, few)
    found["reference_encode"] = times(reference_encode, few)
    if n_pages <= 64:  # with the bytes in memory of the CPU
        pages = [memoryview(bytearray(page)) for page in plain.pages_of(rows)]
        found["from_ram"] = times(lambda: fused.decode_into(pages, moved, kv, rope), few)
        found["reference_from_ram"] = times(lambda: plain.decode_into(pages, moved, kv, rope), few)
    return found


def e4m3(*shape: int) -> Tensor:
    """Random numbers of that type, none of them NaN."""
    drawn = torch.randint(0, 256, shape, dtype=torch.uint8, device=DEVICE)
    return drawn.masked_fill(drawn & 127 == 127, 126).view(torch.float8_e4m3fn)


def matrix(coding: Coding, out: int, into: int, in_blocks: bool) -> Sample:
    """A random matrix in a coding."""
    codes = torch.randint(0, 256, (out, into // 2), dtype=torch.uint8, device=DEVICE)
    if isinstance(coding, BlockFp8):
        return {"codes": e4m3(out, into), "scales": torch.rand(-(-out // 128), -(-into // 128), device=DEVICE) * 1e-3}
    if isinstance(coding, Mxfp4):
        scales = torch.randint(110, 125, (out, into // 32), dtype=torch.uint8, device=DEVICE)
        return {"codes": codes.view(out, into // 32, 16) if in_blocks else codes, "scales": scales}
    return {"codes": codes, "scales": e4m3(out, into // 16), "global_scale": torch.tensor([3e-4], device=DEVICE)}


def expert_cases() -> Iterator[Case]:
    """Every architecture, coding and number of tokens."""
    for name, (hidden, middle, in_blocks) in (TINY_EXPERTS if IS_TINY else EXPERTS).items():
        for coding in (Mxfp4(),) if in_blocks else (BlockFp8(), Mxfp4(), Nvfp4()):
            heights = [2 * middle] if in_blocks else [middle, middle]

            make = partial(expert, coding, heights, hidden, middle, in_blocks)
            for n_tokens in (1, 3) if IS_TINY else (1, 2, 4, 8, 16):
                label = {"experts": name, "coding": coding.name, "n_tokens": n_tokens}
                yield label, partial(experts_case, coding, make, hidden, middle, n_tokens)


def expert(
    coding: Coding, heights: list[int], hidden: int, middle: int, in_blocks: bool
) -> tuple[list[Sample], list[Sample]]:
    """Pieces of both matrices of a random expert."""
    up = [matrix(coding, height, hidden, in_blocks) for height in heights]
    return up, [matrix(coding, hidden, middle, in_blocks)]


def experts_case(
    coding: Coding, make: Callable[[], tuple[list[Sample], list[Sample]]], hidden: int, middle: int, n_tokens: int
) -> dict[str, Any]:
    """Times of both products of one expert, by the kernel, by decoding, and with matrices that are decoded already."""
    product, fast = product_of(coding, interpreted=IS_TINY), with_tables(coding)
    assert product is not None and fast is not None
    first = make()
    accept_product(coding, product, first, torch.bfloat16)
    size = sum(part.nbytes for pieces in first for piece in pieces for part in piece.values())
    experts = [first, *(make() for _ in range(min(63, CACHE_BYTES // size)))]
    dense = [[decoded(fast, pieces) for pieces in both] for both in experts[: max(1, len(experts) // 4)]]
    x, between = (torch.randn(n_tokens, width, device=DEVICE).bfloat16() for width in (hidden, middle))

    def kernel() -> None:
        for up, down in experts:
            product(x, up)
            product(between, down)

    def decoding(by: Coding) -> Callable[[], None]:
        def work() -> None:
            for up, down in experts[: len(dense)]:
                linear(x, decoded(by, up))
                linear(between, decoded(by, down))

        return work

    def plain() -> None:
        for up, down in dense:
            linear(x, up)
            linear(between, down)

    few = max(1, REPEATS // 6)
    parts = {"kernel": (kernel, len(experts)), "tables": (decoding(fast), len(dense)), "plain": (plain, len(dense))}
    parts["reference"] = (decoding(coding), len(dense))
    found: dict[str, Any] = {"code_bytes": size, "n_experts": len(experts)}
    for name, (work, count) in parts.items():
        measured = times(work, few) | ({} if IS_TINY else {"graph_ms": graph_ms(work)})
        found[name] = {key: value / count for key, value in measured.items()}  # of one expert
    return found


def decoded(coding: Coding, pieces: list[Sample]) -> Tensor:
    """A matrix as `CodedFormat` makes it."""
    return torch.cat([coding.values(piece).to(torch.bfloat16) for piece in pieces])


def collected(cases: Iterator[Case], bandwidth: float) -> Iterator[dict[str, Any]]:
    """Cases with their shares of the bandwidth, or with what went wrong."""
    for label, measure in cases:
        try:
            case = label | measure()
        except Exception as error:  # recorded: a case that fails does not take the others' time on the GPU
            case = label | {"failed": f"{type(error).__name__}: {error}"[:2000]}
        n_bytes = int(case.get("bytes") or case.get("code_bytes") or 0)
        for part in case.values():
            if isinstance(part, dict):
                best = min(part["device_ms"], part.get("graph_ms", part["device_ms"]))
                part["bytes_per_s"] = 1e3 * n_bytes / best
                part["share_of_bandwidth"] = part["bytes_per_s"] / bandwidth
        print(case, flush=True)
        yield case


def main(
    out: Annotated[Path, typer.Option(help="where the result goes")] = RESULT,
    tiny: Annotated[bool, typer.Option("--tiny", help="tiny sizes, in Triton's interpreter")] = False,
) -> None:
    """Write the result."""
    assert tiny == IS_TINY
    torch.manual_seed(0)
    bandwidth = copy_bandwidth()
    result: dict[str, Any] = {"circumstances": circumstances(), "tiny": tiny, "seed": 0, "repeats": REPEATS}
    result |= {"copy_bytes_per_s": bandwidth, "triton": version("triton")}
    for name, cases in (("experts", expert_cases()), ("pages", page_cases())):
        result[name] = []
        for case in collected(cases, bandwidth):
            result[name].append(case)
            write_json(out, result)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
