"""Reads that fail are errors, never tokens; and the next pass reads again."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from livingkv.errors import CheckpointChanged, ExpertReadError, InputError, ModelDamaged, ModelError, UnsupportedModel
from livingkv.experts import EmulatedSource, ExpertIndex, Source, StreamedModel, load_streamed
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.loading import SourceOf
from livingkv.experts.pread_source import PreadSource
from tests.experts.conftest import MadeOf
from tests.experts.tiny_moe import plain_network

IDS = torch.tensor([[5, 17, 80, 3, 44, 9]])


class Drive:
    """os.preadv, which fails where it is told to."""

    def __init__(self) -> None:
        self.fails: Callable[[int], OSError | None] = lambda offset: None
        self.most_bytes: int | None = None
        self.n_reads = 0
        self._lock = threading.Lock()

    def preadv(self, descriptor: int, targets: list[memoryview], offset: int) -> int:
        with self._lock:
            self.n_reads += 1
        error = self.fails(offset)
        if error is not None:
            raise error
        if self.most_bytes is not None:
            targets = [targets[0][: self.most_bytes]]
        return os.preadv(descriptor, targets, offset)

    def source(self, *, direct: bool = False, n_threads: int = 2) -> SourceOf:
        def make(index: ExpertIndex) -> Source:
            files = CheckpointFiles(index.checkpoint, direct=direct, preadv=self.preadv)
            return PreadSource(index, files, n_threads, 4096)

        return make


@pytest.fixture
def folder(checkpoint_of: MadeOf, tmp_path: Path) -> Path:
    """A checkpoint that may be damaged."""
    copy = tmp_path / "model"
    shutil.copytree(checkpoint_of("qwen3_moe"), copy)
    return copy


def logits(streamed: StreamedModel) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = streamed.network(IDS).logits
    return found


def settled(streamed: StreamedModel) -> None:
    """Wait for reads of a lost pass that nobody waits for any more; they may fail, too."""
    for row in streamed.arena._rows:
        if row.future is not None:
            row.future.exception()


@pytest.mark.parametrize("n_rows", [1, 9, 24])
def test_an_io_error_raises_and_the_next_pass_reads_again(folder: Path, n_rows: int) -> None:
    drive = Drive()
    expected = plain_network(folder)(IDS).logits
    with load_streamed(folder, ram_bytes=n_rows * 8192 + 8192, source=drive.source()) as streamed:
        drive.fails = lambda offset: OSError(errno.EIO, os.strerror(errno.EIO)) if drive.n_reads > 7 else None
        with pytest.raises(
            ExpertReadError, match=r"model.safetensors at byte \d+: it cannot be read \(Input/output"
        ) as raised:
            logits(streamed)
        assert raised.value.path == str(folder / "model.safetensors") and raised.value.offset % 4096 == 0
        assert "\n" not in str(raised.value)
        assert streamed.check() == []
        settled(streamed)
        drive.fails = lambda offset: None
        assert torch.equal(logits(streamed), expected)
        assert streamed.check() == []


def test_short_reads_are_continued(folder: Path) -> None:
    drive = Drive()
    drive.most_bytes = 1000
    expected = plain_network(folder)(IDS).logits
    with load_streamed(folder, ram_bytes=1 << 20, source=drive.source(direct=True)) as streamed:
        assert torch.equal(logits(streamed), expected)


def test_a_file_that_ends_too_early_is_an_error(folder: Path) -> None:
    drive = Drive()
    with load_streamed(folder, ram_bytes=1 << 20, source=drive.source()) as streamed:
        drive.most_bytes = 0
        with pytest.raises(ExpertReadError, match=r"the file ends \d+ bytes too early"):
            logits(streamed)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"abc")


@pytest.mark.parametrize("change", [cut, replace, overwrite, Path.unlink])
@pytest.mark.parametrize("source", ["direct", "buffered"])
def test_a_checkpoint_that_changes_under_the_index_is_an_error(
    folder: Path, change: Callable[[Path], None], source: str
) -> None:
    with load_streamed(folder, ram_bytes=(1 << 13) + 4096, source=source, n_threads=1, piece_bytes=4096) as streamed:  # type: ignore[arg-type]
        logits(streamed)
        change(folder / "model.safetensors")
        for _ in range(2):
            with pytest.raises(CheckpointChanged, match="since it was indexed"):
                logits(streamed)
        assert streamed.check() == []


@pytest.mark.parametrize("n_before", [0, 5, 11])
def test_an_io_error_while_the_rest_of_the_network_is_read(
    folder: Path, n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[int] = []
    plain_read = CheckpointFiles.read

    def read(self: CheckpointFiles, file: int, target: memoryview, offset: int, n_needed: int) -> None:
        reads.append(offset)
        if len(reads) > n_before:
            raise ExpertReadError("broken", path="file", offset=offset)
        plain_read(self, file, target, offset, n_needed)

    monkeypatch.setattr(CheckpointFiles, "read", read)
    with pytest.raises(ExpertReadError, match="broken"):
        load_streamed(folder, ram_bytes=1 << 20)


def test_a_truncated_file_is_refused_when_it_is_loaded(folder: Path) -> None:
    cut(folder / "model.safetensors")
    with pytest.raises(ModelDamaged, match="bytes, its header says"):
        load_streamed(folder, ram_bytes=1 << 20)


def test_direct_reads_that_the_file_system_refuses_are_given_up_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = Drive()
    refused: list[int] = []

    def refuse(offset: int) -> OSError | None:
        if len(refused) < 2:
            refused.append(offset)
            return OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return None

    drive.fails = refuse
    expected = plain_network(folder)(IDS).logits
    with load_streamed(folder, ram_bytes=1 << 20, source=drive.source(direct=True, n_threads=1)) as streamed:
        if not streamed.stream.source._files.is_direct:  # type: ignore[attr-defined]
            pytest.skip("the file system of this test takes no direct reads")
        with pytest.raises(ExpertReadError, match="Invalid argument"):  # refused without O_DIRECT, too: an error
            logits(streamed)
        assert torch.equal(logits(streamed), expected)
    assert ["takes no direct reads" in record.message for record in caplog.records] == [True]


def test_an_error_comes_through_a_slow_source(folder: Path) -> None:
    drive = Drive()

    def slow(index: ExpertIndex) -> Source:
        return EmulatedSource(drive.source()(index), index, bytes_per_s=1e9)

    with load_streamed(folder, ram_bytes=1 << 20, source=slow) as streamed:
        drive.fails = lambda offset: OSError(errno.EIO, "broken")
        with pytest.raises(ExpertReadError, match="broken"):
            logits(streamed)


def test_a_bug_in_a_reader_does_not_hang(folder: Path) -> None:
    drive = Drive()

    def wrong(offset: int) -> OSError | None:
        raise ZeroDivisionError

    with load_streamed(folder, ram_bytes=1 << 20, source=drive.source()) as streamed:
        drive.fails = wrong
        with pytest.raises(ZeroDivisionError):
            logits(streamed)


def test_a_closed_model_computes_nothing(folder: Path) -> None:
    streamed = load_streamed(folder, ram_bytes=1 << 20)
    logits(streamed)
    streamed.close()
    streamed.close()
    with pytest.raises(ModelError, match="closed"):
        logits(streamed)


def test_what_cannot_be_used_is_told(folder: Path) -> None:
    with pytest.raises(InputError, match=r"ram_bytes.*one expert and the buffers of reading take 12288 bytes"):
        load_streamed(folder, ram_bytes=8192 + 4095, n_threads=1, piece_bytes=4096)
    with pytest.raises(InputError, match="source"):
        load_streamed(folder, ram_bytes=1 << 20, source="tape")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="n_threads"):
        load_streamed(folder, ram_bytes=1 << 20, n_threads=0)
    with pytest.raises(InputError, match="piece_bytes"):
        load_streamed(folder, ram_bytes=1 << 20, piece_bytes=1000)
    config = folder / "config.json"
    config.write_text(config.read_text().replace("{", '{"quantization_config": {"quant_method": "fp8"},', 1))
    with pytest.raises(UnsupportedModel, match="quantized"):
        load_streamed(folder, ram_bytes=1 << 20)
