"""A pack: the same answers, one read for each expert; whole or not there; never another checkpoint's, never damaged."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file

from livingkv.errors import ExpertReadError, InputError, PackError
from livingkv.experts import ExpertKey, load_streamed, pack, packing
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.pack_index import open_pack
from tests.experts.coded_moe import write_coded
from tests.experts.conftest import MadeOf, Packed, index_of
from tests.experts.test_equal import LAP, N_LAYERS, answers
from tests.experts.tiny_moe import N_EXPERTS, plain_network

pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
N_ALL = N_LAYERS * N_EXPERTS


@pytest.mark.parametrize(
    "family",
    ["gpt_oss", *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3_moe", "mixtral", "deepseek_v4"))],
)
def test_a_pack_gives_the_same_answers_with_one_read_for_each_expert(
    checkpoint_of: MadeOf, tmp_path: Path, family: str
) -> None:
    folder = checkpoint_of(family)
    expected = answers(plain_network(folder))
    done: list[tuple[int, int]] = []
    report = pack(index_of(folder), tmp_path / "pack", lambda *counts: done.append(counts))
    assert (report.n_experts, report.n_resumed, report.n_checked) == (N_ALL, 0, N_ALL)
    assert [total for _, total in done] == [report.size_bytes] * N_ALL and done[-1][0] == report.size_bytes
    assert sorted(done) == done and not (tmp_path / "pack.partial").exists()
    for n_rows in (1, LAP + 4, N_ALL):
        ram_bytes = n_rows * open_pack(tmp_path / "pack", index_of(folder)).row_bytes + 2 * 4096
        with load_streamed(
            folder, ram_bytes=ram_bytes, n_threads=2, piece_bytes=4096, pack=tmp_path / "pack"
        ) as streamed:
            shape = streamed.index.report()
            assert (shape.reads_per_expert, shape.in_place_share, streamed.arena.n_rows) == (1, 1, n_rows)
            assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))
            assert streamed.check() == []


@pytest.mark.slow
def test_six_tensors_of_an_expert_in_as_many_places_become_one_read(tmp_path: Path) -> None:
    folder = write_coded("modelopt", "qwen3_moe", tmp_path, hidden_size=64, moe_intermediate_size=32).folder
    stored = load_file(folder / "model.safetensors")
    endings = ("proj.weight", "weight_scale", "weight_scale_2")
    for kind in ("gate", "up", "down"):
        for ending in endings:
            names = [name for name in stored if f"{kind}_proj" in name and "experts" in name and name.endswith(ending)]
            file = f"{kind}-{ending.replace('.', '-')}.safetensors"
            save_file({name: stored.pop(name) for name in names}, folder / file)
    (folder / "model.safetensors").unlink()
    save_file(stored, folder / "rest.safetensors")
    index = index_of(folder)
    assert index.report().reads_per_expert == 9 and index.report().pack_pays
    pack(index, tmp_path / "pack")
    with load_streamed(folder, ram_bytes=1 << 20) as scattered:
        expected = answers(scattered.network)
    with load_streamed(folder, ram_bytes=1 << 20, pack=tmp_path / "pack") as streamed:
        assert streamed.index.report().reads_per_expert == 1
        assert all(torch.equal(a, b) for a, b in zip(expected, answers(streamed.network), strict=True))


def at_its_place(folder: Path, layer: dict[str, Any], number: int) -> dict[str, bytes]:
    """An expert's slots, found in the pack by FORMAT.md alone."""
    start = layer["first_byte"] + number * layer["block_bytes"]
    block = (folder / "experts.bin").read_bytes()[start : start + layer["block_bytes"]]
    slots: dict[str, list[int]] = {}
    for tensor, piece, role, _, _, n_bytes, _ in layer["parts"]:
        slots.setdefault(f"{tensor}.{piece}.{role}" if role else tensor, []).append(n_bytes)
    found, end = {}, 0
    for (name, lengths), residue in zip(slots.items(), layer["residues"], strict=True):
        step = 0 if "." in name else sum(lengths)
        while end % 64 != (residue + number * step) % 64:
            assert block[end] == 0
            end += 1
        found[name] = block[end : end + sum(lengths)]
        end += sum(lengths)
    assert xxhash.xxh3_64_hexdigest(block[:end]) == layer["checksums"][16 * number : 16 * number + 16]
    assert block[end:] == bytes(len(block) - end)
    return found


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_the_bytes_are_those_of_the_format(checkpoint_of: MadeOf, tmp_path: Path, family: str) -> None:
    folder = checkpoint_of(family)
    network = plain_network(folder)
    pack(index_of(folder), tmp_path / "pack")
    manifest = json.loads((tmp_path / "pack" / "manifest.json").read_bytes())
    said = manifest.pop("digest")
    assert said == xxhash.xxh3_128_hexdigest(json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode())
    assert (
        manifest["layout"] == 1
        and manifest["blocks"]["size_bytes"] == (tmp_path / "pack" / "experts.bin").stat().st_size
    )
    for layer in manifest["layers"]:
        module = network.get_submodule(layer["module"])
        for number in range(N_EXPERTS):
            for name, data in at_its_place(tmp_path / "pack", layer, number).items():
                assert data == bytes(getattr(module, name)[number].contiguous().view(torch.uint8).numpy().data)


def fail_reads(monkeypatch: pytest.MonkeyPatch, n_good: int, error: Exception) -> None:
    """Let reads of a checkpoint fail after so many."""
    plain_read, n_done = CheckpointFiles.read, [0]

    def read(self: CheckpointFiles, file: int, target: memoryview, offset: int, n_needed: int) -> None:
        n_done[0] += 1
        if n_done[0] > n_good:
            raise error
        plain_read(self, file, target, offset, n_needed)

    monkeypatch.setattr(CheckpointFiles, "read", read)


def test_a_broken_making_goes_on_where_it_was(packed: Packed, tmp_path: Path) -> None:
    index, target = index_of(packed.folder), tmp_path / "second"
    with pytest.MonkeyPatch.context() as patch:
        fail_reads(patch, 13, ExpertReadError("broken", path="file", offset=3))
        with pytest.raises(ExpertReadError, match="broken"):
            pack(index, target, sync_bytes=1)
    assert not target.exists()
    with pytest.MonkeyPatch.context() as patch:

        def full(descriptor: int, data: memoryview, offset: int) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(os, "pwrite", full)
        with pytest.raises(PackError, match=r"cannot be written .No space left on device.; pack again when it can"):
            pack(index, target)
    report = pack(index, target)
    assert 9 <= report.n_resumed <= 13 and report.n_checked == N_ALL
    for name in ("manifest.json", "experts.bin"):
        assert (target / name).read_bytes() == (packed.pack / name).read_bytes()
    assert sorted(path.name for path in target.iterdir()) == ["experts.bin", "manifest.json"]


def test_what_a_crash_left_is_compared_before_it_is_kept(packed: Packed, tmp_path: Path) -> None:
    index, target = index_of(packed.folder), tmp_path / "second"

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(index, target, stop, sync_bytes=1)
    blocks = tmp_path / "second.partial" / "experts.bin"
    with blocks.open("r+b") as file:
        file.seek(5 * 8192 + 100)
        file.write(b"\0\0\0\0")
    assert pack(index, target).n_resumed == 5
    assert (target / "experts.bin").read_bytes() == (packed.pack / "experts.bin").read_bytes()


def test_what_was_begun_of_another_checkpoint_is_begun_anew(packed: Packed, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(index_of(packed.folder), tmp_path / "second", stop, sync_bytes=1)
    os.utime(packed.folder / "model.safetensors", ns=(5, 5))
    assert pack(index_of(packed.folder), tmp_path / "second").n_resumed == 0


def test_too_little_room_is_told_with_numbers(packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_200_000))
    with pytest.raises(InputError, match=r"second.partial; 0.001 GB are needed there and 0.001 are free"):
        pack(index_of(packed.folder), tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_a_disk_that_does_not_keep_what_is_written_is_noticed(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = index_of(packed.folder)
    plain_write = os.pwrite

    def lossy(descriptor: int, data: memoryview, offset: int) -> int:
        return (
            plain_write(descriptor, bytes([data[0] ^ 1]) + bytes(data[1:]), offset)
            if len(data) == 8192
            else (plain_write(descriptor, data, offset))
        )

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lossy)
        with pytest.raises(PackError, match=r"mlp.experts.\d+ differs from the checkpoint; check the disk"):
            pack(index, tmp_path / "second")
    assert pack(index, tmp_path / "second").n_resumed == 0


def test_wrong_copies_are_noticed_though_their_checksums_fit(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_block = packing._block

    def stale(*arguments: Any) -> tuple[ExpertKey, memoryview]:
        key, block = plain_block(*arguments)
        block[100:104] = b"late"
        return key, block

    monkeypatch.setattr(packing, "_block", stale)
    with pytest.raises(PackError, match="differs from the checkpoint"):
        pack(index_of(packed.folder), tmp_path / "second")


def test_what_cannot_be_packed_is_told(packed: Packed, tmp_path: Path) -> None:
    index = index_of(packed.folder)
    with pytest.raises(InputError, match="something has that name"):
        pack(index, packed.pack)
    with pytest.raises(InputError, match="not of a pack"):
        pack(open_pack(packed.pack, index), tmp_path / "second")
    (tmp_path / "third.partial").mkdir()
    with (tmp_path / "third.partial" / "experts.bin").open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(PackError, match="another process is packing into it"):
            pack(index, tmp_path / "third")


def test_a_pack_that_got_its_name_while_another_process_waited_is_left_alone(
    packed: Packed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index, partial, plain = index_of(packed.folder), tmp_path / "second.partial", fcntl.flock
    shutil.copytree(packed.pack, partial)
    whole = (partial / "experts.bin").read_bytes()

    def locks(descriptor: int, kind: int) -> None:
        partial.rename(tmp_path / "second")
        partial.mkdir()  # by a third
        plain(descriptor, kind)

    monkeypatch.setattr(fcntl, "flock", locks)
    with pytest.raises(PackError, match="another process finished it"):
        pack(index, tmp_path / "second")
    assert (tmp_path / "second" / "experts.bin").read_bytes() == whole


def test_a_link_to_nowhere_is_a_name_that_is_taken(packed: Packed, tmp_path: Path) -> None:
    (tmp_path / "second").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match="something has that name"):
        pack(index_of(packed.folder), tmp_path / "second")
    assert not (tmp_path / "second.partial").exists()
