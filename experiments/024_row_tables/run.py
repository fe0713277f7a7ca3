"""Rows of a table on disk: are they the right ones, and how long do 48 of them take when nothing is cached?

    python experiments/024_row_tables/run.py FOLDER [--gigabytes 2] [--rounds 200]

A table of random bf16 rows of 256 bytes is written to FOLDER in sixteen shards and removed in the end. 100,000 random
rows are staged, taken and compared, in parity mode, with a second read by another path. Then, round by round and in
turns: 48 rows never read before, through the stage and through a bare loop of preadv, one aligned block after the
other with O_DIRECT. Ends with 1 where a row differs.
"""

from __future__ import annotations

import mmap
import os
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from safetensors.torch import save_file

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # an experiment is a script of the repository, not an installed module

from experiments.latency import percentile  # noqa: E402
from experiments.provenance import circumstances, write_json  # noqa: E402
from livingkv.experts.checkpoint import Checkpoint, read_checkpoint  # noqa: E402
from livingkv.experts.files import CheckpointFiles  # noqa: E402
from livingkv.experts.row_parity import PlainRows, PlainTensor  # noqa: E402
from livingkv.experts.row_reader import RowReader  # noqa: E402
from livingkv.experts.row_stage import RowStage  # noqa: E402
from livingkv.experts.row_table import RowTable, row_table  # noqa: E402

RESULT = Path(__file__).with_name("result.json")
WIDTH, N_SHARDS, N_COLD, N_COMPARED, SEED = 128, 16, 48, 100_000, 24


def make_table(folder: Path, n_rows: int) -> tuple[Checkpoint, RowTable, PlainRows]:
    """Write the shards, one file each, and read their headers."""
    random = np.random.default_rng(SEED)
    names = [f"shard_{number}.weight" for number in range(N_SHARDS)]
    for number, name in enumerate(names):
        bits = random.integers(0, 1 << 14, (n_rows // N_SHARDS, WIDTH), np.int16)  # finite numbers all
        save_file({name: torch.from_numpy(bits).view(torch.bfloat16)}, folder / f"part-{number:02}.safetensors")
    os.sync()
    checkpoint = read_checkpoint(folder)
    table = row_table(checkpoint, "table", names, n_rows=n_rows, width=WIDTH)
    plain = PlainRows([PlainTensor(checkpoint.files[checkpoint.tensors[name].file].path, name) for name in names])
    return checkpoint, table, plain


class BareLoop:
    """One block, or two where a row lies across, read and waited for after the other. No checks, no copies."""

    def __init__(self, checkpoint: Checkpoint, table: RowTable) -> None:
        self._table = table
        self._descriptors = [os.open(file.path, os.O_RDONLY | os.O_DIRECT) for file in checkpoint.files]
        self._buffer = memoryview(mmap.mmap(-1, 8192))

    def read(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> None:
        """Read the blocks of those rows."""
        places = self._table.values.places(ids)
        for file, offset in zip(places.files.tolist(), places.offsets.tolist(), strict=True):
            lo = offset // 4096 * 4096
            n_bytes = 8192 if offset + self._table.row_bytes > lo + 4096 else 4096
            os.preadv(self._descriptors[file], [self._buffer[:n_bytes]], lo)


def timed(work: Callable[[], object]) -> float:
    """Milliseconds of a call."""
    started = perf_counter()
    work()
    return 1e3 * (perf_counter() - started)


def main(folder: Annotated[Path, typer.Argument()], gigabytes: float = 2.0, rounds: int = 200) -> None:
    """Measure and write result.json."""
    torch.set_num_threads(1)
    room = folder / "row-table"
    room.mkdir(parents=True)
    try:
        n_rows = int(gigabytes * 1e9 / (2 * WIDTH)) // N_SHARDS * N_SHARDS
        checkpoint, table, plain = make_table(room, n_rows)
        order = torch.from_numpy(np.random.default_rng(SEED + 1).permutation(n_rows))
        document = {
            "circumstances": circumstances(),
            "table": {"rows": n_rows, "row_bytes": table.row_bytes, "shards": N_SHARDS, "seed": SEED},
            "compared": compared(checkpoint, table, plain, order[:N_COMPARED]),
            "cold": {},
        }
        at = N_COMPARED
        for n_threads in (1, 8, 32):
            document["cold"][str(n_threads)] = cold(checkpoint, table, order[at:], n_threads, rounds)
            at += 2 * rounds * N_COLD
        write_json(RESULT, document)
        raise typer.Exit(int(document["compared"]["n_different"] > 0))
    finally:
        shutil.rmtree(room)


def compared(checkpoint: Checkpoint, table: RowTable, plain: PlainRows, ids: torch.Tensor) -> dict[str, Any]:
    """Stage, take and compare rows, a thousand at a time, half of each pass repeated within it."""
    reader = RowReader(CheckpointFiles(checkpoint, direct=True), (table,))
    stage = RowStage(table, reader, checkpoint, dtype=torch.bfloat16, cache_bytes=1 << 20, reread=plain.read)
    started = perf_counter()
    for part in (ids[first : first + 1000] for first in range(0, len(ids), 1000)):
        asked = torch.cat([part, part[:500]])
        stage.stage(asked)
        stage.take(asked)
    counts = stage.counts()
    seconds = perf_counter() - started
    stage.close()
    reader.close()
    return {"n_compared": counts.n_compared, "n_different": counts.n_different, "seconds": seconds}


def staged(stage: RowStage, ids: torch.Tensor) -> torch.Tensor:
    """Rows through the stage."""
    stage.stage(ids)
    return stage.take(ids)


def cold(checkpoint: Checkpoint, table: RowTable, ids: torch.Tensor, n_threads: int, rounds: int) -> dict[str, Any]:
    """48 rows through the stage, 48 others through the bare loop, in turns."""
    files = CheckpointFiles(checkpoint, direct=True)
    reader = RowReader(files, (table,), n_threads)
    stage = RowStage(table, reader, checkpoint, dtype=torch.bfloat16, cache_bytes=0)
    loop = BareLoop(checkpoint, table)
    ours, bare = [], []
    for number in range(rounds):
        first = ids[2 * number * N_COLD : (2 * number + 1) * N_COLD]
        second = ids[(2 * number + 1) * N_COLD : (2 * number + 2) * N_COLD]
        ours.append(timed(partial(staged, stage, first)))
        bare.append(timed(partial(loop.read, second.numpy())))
    is_direct = files.is_direct
    stage.close()
    reader.close()
    return {"is_direct": is_direct, "stage_ms": summary(ours), "bare_loop_ms": summary(bare)}


def summary(values: list[float]) -> dict[str, Any]:
    """Percentiles, and every single value."""
    found: dict[str, Any] = {f"p{share}": round(percentile(values, share / 100), 3) for share in (50, 90, 99)}
    return found | {"all": [round(value, 3) for value in values]}


if __name__ == "__main__":
    typer.run(main)
