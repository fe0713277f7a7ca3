"""Rows of tables: what is read is what is stored, and nothing is given that was not staged for these tokens."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from livingkv.device_queue import Fence
from livingkv.errors import (
    CheckpointChanged,
    ExpertReadError,
    InputError,
    ModelDamaged,
    StagedRowsError,
    UnsupportedModel,
)
from livingkv.experts.checkpoint import Checkpoint, read_checkpoint
from livingkv.experts.files import CheckpointFiles, Preadv
from livingkv.experts.row_parity import PlainRows, PlainTensor
from livingkv.experts.row_reader import RowReader
from livingkv.experts.row_stage import RowDevice, RowStage
from livingkv.experts.row_table import row_table

N_ROWS, WIDTH = 1000, 24
NAMES = ("table.shard_0", "table.shard_1", "table.shard_2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table in three shards of which the last lies in a file of its own."""
    torch.manual_seed(3)
    table = torch.randn(N_ROWS, WIDTH)
    parts = table[:334], table[334:668], table[668:]
    before = {"a": torch.ones(5, dtype=torch.uint8)}  # rows begin at odd addresses
    save_file(before | {NAMES[1]: parts[1].clone(), NAMES[0]: parts[0].clone()}, tmp_path / "model-1.safetensors")
    save_file({NAMES[2]: parts[2].clone()}, tmp_path / "model-2.safetensors")
    return tmp_path


def whole(folder: Path) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(N_ROWS, WIDTH)


class Opened:
    """A stage over a folder, and what it is made of."""

    def __init__(
        self,
        folder: Path,
        *,
        cache_bytes: int = 0,
        parity: bool = False,
        direct: bool = True,
        device: RowDevice | None = None,
        preadv: Preadv = os.preadv,
    ) -> None:
        self.checkpoint: Checkpoint = read_checkpoint(folder)
        table = row_table(self.checkpoint, "table", NAMES, n_rows=N_ROWS, width=WIDTH)
        files = CheckpointFiles(self.checkpoint, direct=direct, preadv=preadv)
        self.reader = RowReader(files, (table,), n_threads=3)
        paths = [PlainTensor(self.checkpoint.files[self.checkpoint.tensors[name].file].path, name) for name in NAMES]
        self.stage = RowStage(
            table,
            self.reader,
            self.checkpoint,
            dtype=torch.float32,
            cache_bytes=cache_bytes,
            device=device,
            reread=PlainRows(paths).read if parity else None,
        )

    def __enter__(self) -> RowStage:
        return self.stage

    def __exit__(self, *_: object) -> None:
        self.stage.close()
        self.reader.close()
        self.reader.close()


def taken(stage: RowStage, ids: Tensor) -> Tensor:
    stage.stage(ids)
    return stage.take(ids)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("cache_bytes", [0, 96 * 10, 96 * N_ROWS])
def test_rows_are_those_of_the_table(folder: Path, direct: bool, cache_bytes: int) -> None:
    expected, random = whole(folder), torch.Generator().manual_seed(1)
    with Opened(folder, cache_bytes=cache_bytes, parity=True, direct=direct) as stage:
        for shape in [(1,), (2, 7, 3), (0,), (4000,), (1, 1), (2, 7, 3)]:
            ids = torch.randint(0, N_ROWS, shape, generator=random)
            assert torch.equal(taken(stage, ids), expected[ids])
        assert torch.equal(
            taken(stage, torch.tensor([0, 333, 334, 667, 668, 999, 0])), expected[[0, 333, 334, 667, 668, 999, 0]]
        )
        counts = stage.counts()
    assert counts.n_stages == 7 and counts.n_asked == 4000 + 1 + 42 + 42 + 1 + 7
    assert counts.n_read + counts.n_cached == counts.n_compared and counts.n_different == 0
    assert (counts.n_cached > 0) == (cache_bytes > 0)
    if cache_bytes == 96 * N_ROWS:
        assert counts.n_read <= N_ROWS


def test_scales_are_used_in_the_type_that_they_are_stored_in(tmp_path: Path) -> None:
    values = torch.randn(50, 32).to(torch.float8_e4m3fn)
    scales = (2.0 ** torch.randint(-4, 4, (50, 4))).to(torch.float8_e8m0fnu)
    halves = torch.rand(50, 1).to(torch.bfloat16)
    save_file({"v": values, "s": scales, "h": halves}, tmp_path / "model.safetensors")
    checkpoint = read_checkpoint(tmp_path)
    for names, factors in [("s", scales), ("h", halves)]:
        table = row_table(checkpoint, "engram", ["v"], [names], n_rows=50, width=32)
        reader = RowReader(CheckpointFiles(checkpoint, direct=True), (table,), n_threads=2)
        path = tmp_path / "model.safetensors"
        reread = PlainRows([PlainTensor(path, "v")], [PlainTensor(path, names)]).read
        stage = RowStage(table, reader, checkpoint, dtype=torch.float32, cache_bytes=table.row_bytes * 4, reread=reread)
        ids = torch.tensor([[3, 49], [0, 3]])
        expected = values.float() * factors.float().repeat_interleave(32 // factors.shape[1], 1)
        for _ in range(2):
            assert torch.equal(taken(stage, ids), expected[ids])
        stage.close()
        reader.close()


def test_headers_are_checked(folder: Path) -> None:
    checkpoint = read_checkpoint(folder)
    with pytest.raises(ModelDamaged, match="holds 1000 rows of it, the network needs 1001"):
        row_table(checkpoint, "table", NAMES, n_rows=1001, width=WIDTH)
    with pytest.raises(ModelDamaged, match="holds 668 rows"):
        row_table(checkpoint, "table", NAMES[:2], n_rows=N_ROWS, width=WIDTH)
    with pytest.raises(ModelDamaged, match="24 numbers, the network needs 25"):
        row_table(checkpoint, "table", NAMES, n_rows=N_ROWS, width=25)
    with pytest.raises(ModelDamaged, match="lacks nothing"):
        row_table(checkpoint, "table", ["nothing"], n_rows=N_ROWS, width=WIDTH)
    with pytest.raises(ModelDamaged, match="holds 0 rows"):
        row_table(checkpoint, "table", [], n_rows=N_ROWS, width=WIDTH)
    save_file({"t": torch.zeros(4, 6), "s": torch.zeros(4, 5)}, folder / "model.safetensors")
    with pytest.raises(ModelDamaged, match="do not belong to 4 rows of 6 numbers"):
        row_table(read_checkpoint(folder), "t", ["t"], ["s"], n_rows=4, width=6)
    save_file(
        {"a": torch.zeros(4, 6), "b": torch.zeros(4, 6).half(), "c": torch.zeros(4, 6, 1)}, folder / "model.safetensors"
    )
    checkpoint = read_checkpoint(folder)
    with pytest.raises(ModelDamaged, match="6 of F16, those before it 6 of F32"):
        row_table(checkpoint, "table", ["a", "b"], n_rows=8, width=6)
    with pytest.raises(ModelDamaged, match="no table of rows"):
        row_table(checkpoint, "table", ["c"], n_rows=4, width=6)
    save_file({"a": torch.zeros(4, 6, dtype=torch.uint16)}, folder / "model.safetensors")
    with pytest.raises(UnsupportedModel, match="U16"):
        row_table(read_checkpoint(folder), "table", ["a"], n_rows=4, width=6)


@pytest.mark.parametrize("ids", [[[1, 2], [3, 5]], [[2, 1], [3, 4]], [1, 2, 3, 4], [[1, 2]]])
def test_rows_staged_for_other_tokens_are_refused(folder: Path, ids: list[int]) -> None:
    with Opened(folder) as stage:
        stage.stage(torch.tensor([[1, 2], [3, 4]]))
        with pytest.raises(StagedRowsError, match="other tokens"):
            stage.take(torch.tensor(ids))
        with pytest.raises(StagedRowsError, match="no rows are staged"):
            stage.take(torch.tensor([[1, 2], [3, 4]]))


def test_what_is_staged_is_given_once(folder: Path) -> None:
    ids = torch.tensor([7, 8])
    with Opened(folder) as stage:
        taken(stage, ids)
        with pytest.raises(StagedRowsError, match="no rows are staged"):
            stage.take(ids)
        stage.stage(torch.tensor([1]))
        assert torch.equal(taken(stage, ids), whole(folder)[ids])
        with pytest.raises(InputError, match="rows 0 to 999"):
            stage.stage(torch.tensor([5, 1000]))
        with pytest.raises(StagedRowsError):
            stage.take(torch.tensor([5, 1000]))


def overwrite(path: Path, *, quietly: bool) -> None:
    """Change every byte of rows 668 and after; quietly: the file looks as before."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[-332 * WIDTH * 4 :] = bytes(byte ^ 1 for byte in data[-332 * WIDTH * 4 :])
    with path.open("r+b") as file:
        file.write(data)
    if quietly:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))


@pytest.mark.parametrize("cache_bytes", [0, 96 * N_ROWS])
def test_a_table_that_changes_is_an_error(folder: Path, cache_bytes: int) -> None:
    ids = torch.tensor([700, 701])
    with Opened(folder, cache_bytes=cache_bytes) as stage:
        taken(stage, ids)
        overwrite(folder / "model-2.safetensors", quietly=False)
        with pytest.raises(CheckpointChanged):
            stage.stage(ids)
        with pytest.raises(StagedRowsError):
            stage.take(ids)


@pytest.mark.parametrize("cache_bytes", [0, 96 * N_ROWS])
def test_must_break_parity_finds_stale_rows(folder: Path, cache_bytes: int) -> None:
    """The control of the control: rows that changed behind the reader's back are counted, and never given."""
    ids = torch.tensor([700, 701, 3])
    with Opened(folder, cache_bytes=cache_bytes, parity=True) as stage:
        assert torch.equal(taken(stage, ids), whole(folder)[ids])
        stage.stage(ids)
        stage._staged.read.finish()  # type: ignore[union-attr]
        overwrite(folder / "model-2.safetensors", quietly=True)
        with pytest.raises(ExpertReadError, match=r"2 of 3 rows are not what the file holds, row 700"):
            stage.take(ids)
        assert (stage.counts().n_compared, stage.counts().n_different) == (6, 2)


def test_must_break_parity_finds_rows_of_other_ids(folder: Path) -> None:
    with Opened(folder, parity=True) as stage:
        stage.stage(torch.tensor([1, 2, 3]))
        stage._staged.read.finish()  # type: ignore[union-attr]
        stage._buffer[[0, 1]] = stage._buffer[[1, 0]]
        with pytest.raises(ExpertReadError, match="2 of 3 rows"):
            stage.take(torch.tensor([1, 2, 3]))


def test_a_read_that_fails_is_an_error_and_the_next_reads_again(folder: Path) -> None:
    broken = [True]

    def preadv(descriptor: int, targets: list[memoryview], offset: int) -> int:
        if broken[0]:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.preadv(descriptor, targets, offset)

    ids = torch.tensor([5, 900])
    with Opened(folder, preadv=preadv, cache_bytes=1 << 16) as stage:
        with pytest.raises(ExpertReadError, match="Input/output error"):
            taken(stage, ids)
        broken[0] = False
        assert torch.equal(taken(stage, ids), whole(folder)[ids])


class Late:
    """A device whose copies happen when they are waited for, as those of a busy device may."""

    def __init__(self, guarded: bool) -> None:
        self.guarded = guarded
        self.pending: list[tuple[Tensor, Tensor]] = []

    def copied(self, rows: Tensor) -> tuple[Tensor, Fence | None]:
        target = torch.zeros_like(rows)
        self.pending.append((target, rows))
        return target, LateFence(self) if self.guarded else None

    def copy(self) -> list[Tensor]:
        found = [target.copy_(rows) for target, rows in self.pending]
        self.pending = []
        return found


class LateFence:
    def __init__(self, device: Late) -> None:
        self.device = device
        self.found: list[Tensor] = []
        device.last = self  # type: ignore[attr-defined]

    def is_done(self) -> bool:
        return not self.device.pending

    def wait(self) -> None:
        self.found = self.device.copy()


@pytest.mark.parametrize("guarded", [True, False])
def test_the_buffer_is_not_written_while_it_is_copied(folder: Path, guarded: bool) -> None:
    """The control: without the guard, the late copy gets the rows that were staged after."""
    device, first = Late(guarded), torch.tensor([1, 2])
    with Opened(folder, device=device) as stage:
        taken(stage, first)
        fence = getattr(device, "last", None)
        stage.stage(torch.tensor([8, 9]))
        stage._staged.read.finish()  # type: ignore[union-attr]
        found = fence.found[0] if fence else device.copy()[0]
        assert torch.equal(found.view(torch.float32), whole(folder)[first]) == guarded
