"""Rows stored as codes: each is decoded with its own scales, and scales that may be others' are refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from livingkv.errors import CheckpointChanged, ExpertReadError, ModelDamaged, UnsupportedModel
from livingkv.experts.checkpoint import read_checkpoint
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.row_codes import decoded_table, sharing_of
from livingkv.experts.row_parity import PlainRows, PlainTensor
from livingkv.experts.row_reader import RowReader
from livingkv.experts.row_stage import RowStage
from livingkv.experts.row_table import row_table
from tests.experts.test_rows import taken

WIDTH = 256  # as Engram has it
SHARDS = (401, 300, 3)
N_ROWS = sum(SHARDS)
CODES = {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "I8": torch.int8}
SCALES = {"F8_E8M0": torch.float8_e8m0fnu, "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
SHAPES: dict[str, Callable[[int], tuple[int, ...]]] = {
    "row": lambda n: (n, 1),
    "flat": lambda n: (n,),
    "parts": lambda n: (n, 8),
    "blocks": lambda n: (-(-n // 128), 2),
    "tensor": lambda _: (1,),
}


def write(folder: Path, codes: str, scales: str, shape: str) -> Tensor:
    """A table in three shards with their scales; answers the numbers that it means, by the reference."""
    torch.manual_seed(5)
    tensors, numbers = {"odd": torch.ones(5, dtype=torch.uint8)}, []
    for number, n_rows in enumerate(SHARDS):
        values = torch.randint(-100, 100, (n_rows, WIDTH)).float().to(CODES[codes])
        factors = (2.0 ** torch.randint(-8, 3, SHAPES[shape](n_rows))).to(SCALES[scales])
        tensors[f"v{number}"], tensors[f"s{number}"] = values, factors
        sharing = sharing_of("t", n_rows, WIDTH, tuple(factors.shape))
        numbers.append(decoded_table(values, factors, sharing))
    save_file(tensors, folder / "model.safetensors")
    return torch.cat(numbers)


class Opened:
    """A stage over that table, in parity mode."""

    def __init__(self, folder: Path, cache_bytes: int = 0) -> None:
        checkpoint = read_checkpoint(folder)
        names = [[f"{letter}{number}" for number in range(len(SHARDS))] for letter in "vs"]
        table = row_table(checkpoint, "engram", *names, n_rows=N_ROWS, width=WIDTH)
        columns = [
            [
                PlainTensor(folder / "model.safetensors", name, part.n_rows, part.n_sharing)
                for name, part in zip(column, of.parts, strict=True)
            ]
            for column, of in zip(names, table.columns, strict=True)
        ]
        self.reader = RowReader(CheckpointFiles(checkpoint, direct=True), (table,), n_threads=3)
        self.stage = RowStage(
            table,
            self.reader,
            checkpoint,
            dtype=torch.float32,
            cache_bytes=cache_bytes,
            reread=PlainRows(*columns).read,
        )

    def __enter__(self) -> RowStage:
        return self.stage

    def __exit__(self, *_: object) -> None:
        self.stage.close()
        self.reader.close()


@pytest.mark.parametrize(
    ("codes", "scales", "shape"),
    [(codes, "F8_E8M0", "row") for codes in CODES]
    + [("F8_E4M3", scales, "flat") for scales in SCALES]
    + [("I8", "F32", shape) for shape in SHAPES]
    + [("F8_E4M3", "BF16", "blocks")],
)
def test_numbers_are_those_of_the_reference(tmp_path: Path, codes: str, scales: str, shape: str) -> None:
    expected = write(tmp_path, codes, scales, shape)
    random = torch.Generator().manual_seed(1)
    with Opened(tmp_path, cache_bytes=50_000) as stage:
        for ids in (torch.arange(N_ROWS), torch.randint(0, N_ROWS, (3, 700), generator=random)):
            assert torch.equal(taken(stage, ids), expected[ids])
        counts = stage.counts()
    assert counts.n_different == 0 < counts.n_compared


@pytest.mark.slow
def test_100_000_rows_have_no_mismatch(tmp_path: Path) -> None:
    expected = write(tmp_path, "F8_E4M3", "F8_E8M0", "row")
    random = torch.Generator().manual_seed(2)
    with Opened(tmp_path) as stage:
        for _ in range(250):
            ids = torch.randint(0, N_ROWS, (700,), generator=random)
            assert torch.equal(taken(stage, ids), expected[ids])
        counts = stage.counts()
    assert counts.n_different == 0 and counts.n_compared >= 100_000


@pytest.mark.parametrize(
    ("values", "scales", "reason"),
    [
        (torch.float8_e4m3fn, torch.uint8, "its scales are U8"),
        (torch.float8_e4m3fn, torch.int32, "its scales are I32"),
        (torch.float8_e4m3fn, torch.float8_e4m3fn, "its scales are F8_E4M3"),
        (torch.float8_e4m3fn, torch.float64, "its scales are F64"),
        (torch.uint8, torch.float32, "its rows are U8 with scales"),
        (torch.float32, torch.float32, "its rows are F32 with scales"),
        (torch.float8_e4m3fn, None, "its rows are F8_E4M3 without scales"),
        (torch.int8, None, "its rows are I8 without scales"),
    ],
)
def test_types_that_may_mean_something_else_are_refused(
    tmp_path: Path, values: torch.dtype, scales: torch.dtype | None, reason: str
) -> None:
    tensors = {"v": torch.ones(4, 8).to(values)} | ({} if scales is None else {"s": torch.ones(4).to(scales)})
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(UnsupportedModel, match=reason):
        row_table(read_checkpoint(tmp_path), "t", ["v"], ["s"] if scales is not None else [], n_rows=4, width=8)


def test_scales_of_another_table_are_refused(tmp_path: Path) -> None:
    """One whose type is told wrong has another number of scales; so has one that was left from another version."""
    write(tmp_path, "F8_E4M3", "BF16", "flat")
    path = tmp_path / "model.safetensors"
    whole = path.read_bytes()
    n_header = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + n_header])
    entry = next(entry for name, entry in header.items() if name == "s1")
    assert entry["dtype"] == "BF16" and entry["shape"] == [300]
    entry |= {"dtype": "F32", "shape": [150]}  # the same bytes, read as another type
    text = json.dumps(header).encode().ljust(n_header)
    path.write_bytes(len(text).to_bytes(8, "little") + text + whole[8 + n_header :])
    names = [[f"{letter}{number}" for number in range(3)] for letter in "vs"]
    with pytest.raises(ModelDamaged, match=r"s1: its scales are \[150\], which do not belong to 300 rows"):
        row_table(read_checkpoint(tmp_path), "t", *names, n_rows=N_ROWS, width=WIDTH)
    path.write_bytes(whole)
    checkpoint = read_checkpoint(tmp_path)
    for scales, reason in ((names[1][:2], "3 tensors of codes have 2 of scales"), (["s0", "s1", "x"], "lacks x")):
        with pytest.raises(ModelDamaged, match=reason):
            row_table(checkpoint, "t", names[0], scales, n_rows=N_ROWS, width=WIDTH)
    with pytest.raises(ModelDamaged, match="which do not belong to 401 rows"):
        row_table(checkpoint, "t", names[0], names[1][::-1], n_rows=N_ROWS, width=WIDTH)


@pytest.mark.parametrize("quietly", [False, True])
def test_must_break_stale_scales(tmp_path: Path, quietly: bool) -> None:
    """Scales that change while the table is open: by the marks of the file, or by parity."""
    write(tmp_path, "F8_E4M3", "F32", "row")
    path = tmp_path / "model.safetensors"
    ids = torch.tensor([3, 500, 703])
    with Opened(tmp_path, cache_bytes=50_000) as stage:
        taken(stage, ids)
        before = path.stat()
        checkpoint = read_checkpoint(tmp_path)
        at = checkpoint.tensors["s1"].tensor.offset + 4 * (500 - 401)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\x07")
        if quietly:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.raises(ExpertReadError if quietly else CheckpointChanged):
            taken(stage, ids)
        assert stage.counts().n_different == int(quietly)
