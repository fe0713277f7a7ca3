"""Time to decode a matrix of an expert on one core: the references of codes and scales, and their tables.

    python experiments/026_decoding/run.py [--repeats 40]

A matrix of [768, 2048], that of Qwen3-30B-A3B's experts, in each format; random codes. CPU time of the process, so that
other work on the machine counts less. Beside it the product that it is decoded for, of a single token, in fp32.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import process_time

import torch
import typer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.experts.codings import BlockFp8, Coding, Mxfp4, Nvfp4  # noqa: E402
from livingkv.experts.kernel_gate import Sample, compared  # noqa: E402
from livingkv.experts.tables import with_tables  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
OUT, INTO = 768, 2048


def samples() -> list[tuple[Coding, Sample]]:
    """A random matrix in each coding."""
    torch.manual_seed(0)
    codes = torch.randint(0, 256, (OUT, INTO // 2), dtype=torch.uint8)
    powers = torch.randint(100, 130, (OUT, INTO // 32), dtype=torch.uint8)
    eighths = torch.rand(OUT, INTO // 16).to(torch.float8_e4m3fn)
    wide = torch.randn(OUT, INTO).to(torch.float8_e4m3fn)
    return [
        (BlockFp8(), {"codes": wide, "scales": torch.rand(OUT // 128, INTO // 128)}),
        (Mxfp4(), {"codes": codes.view(OUT, INTO // 32, 16), "scales": powers}),
        (Nvfp4(), {"codes": codes, "scales": eighths, "global_scale": torch.tensor([0.01])}),
    ]


def measured(work: Callable[[], object], repeats: int) -> dict[str, float]:
    """Milliseconds of CPU: the median, and the quarter above and below."""
    times = []
    for _ in range(repeats):
        started = process_time()
        work()
        times.append(1000 * (process_time() - started))
    low, median, high = statistics.quantiles(times, n=4)
    return {"median": round(median, 3), "low": round(low, 3), "high": round(high, 3)}


def main(repeats: int = 40) -> None:
    """Write result.json."""
    torch.set_num_threads(1)
    rows = []
    for coding, sample in samples():
        fast = with_tables(coding)
        assert fast is not None and compared(coding, fast.values, [sample]).n_different == 0
        reference_ms = measured(partial(coding.values, sample), repeats)
        table_ms = measured(partial(fast.values, sample), repeats)
        rows.append({"format": coding.name, "reference_ms": reference_ms, "table_ms": table_ms})
        print(rows[-1])
    hidden, weight = torch.randn(1, INTO), torch.randn(OUT, INTO)
    product_ms = measured(lambda: hidden @ weight.t(), repeats)
    write_json(
        RESULT,
        {"circumstances": circumstances(), "shape": [OUT, INTO], "repeats": repeats, "threads": 1, "seed": 0}
        | {"formats": rows, "product_of_one_token_ms": product_ms},
    )


if __name__ == "__main__":
    typer.run(main)
