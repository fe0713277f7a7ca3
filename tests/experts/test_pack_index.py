"""A pack that is read: damaged, changed or another checkpoint's, it is an error and never tokens."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv.errors import CheckpointChanged, ExpertReadError, PackError
from livingkv.experts import ExpertKey, load_streamed
from livingkv.experts.index import LayerIndex
from livingkv.experts.pack_layout import canonical, digest
from tests.experts.conftest import MadeOf, Packed
from tests.experts.test_equal import N_LAYERS
from tests.experts.test_faults import Drive, logits, settled
from tests.experts.tiny_moe import N_EXPERTS, plain_network

N_ALL = N_LAYERS * N_EXPERTS


def load(packed: Packed) -> None:
    with load_streamed(packed.folder, ram_bytes=1 << 20, pack=packed.pack):
        pass


def resigned(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and give it the digest that it then has."""
    manifest = json.loads(path.read_bytes())
    del manifest["digest"]
    change(manifest)
    path.write_bytes(canonical(manifest | {"digest": digest(manifest)}))


def test_a_damaged_manifest_is_refused(packed: Packed) -> None:
    path = packed.pack / "manifest.json"
    whole = path.read_bytes()
    for damaged, reason in (
        (whole[:-7], "it is not JSON"),
        (b"[]", "not the manifest of a pack"),
        (whole.replace(b'"first_byte":0', b'"first_byte":1'), "its digest does not match"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(PackError, match=reason):
            load(packed)
    for change, reason in (
        (lambda manifest: manifest.update(layout=2), "its layout is 2, this version reads 1"),
        (lambda manifest: manifest["layers"].pop(), "does not fit its checkpoint"),
        (lambda manifest: manifest.update(more=1), "does not fit its checkpoint"),
        (lambda manifest: manifest["layers"][1].update(checksums="00"), "checksums cannot be read"),
        (lambda manifest: manifest.pop("layers"), "checksums cannot be read"),
        (lambda manifest: manifest.pop("source"), "of another checkpoint"),
    ):
        path.write_bytes(whole)
        resigned(path, change)
        with pytest.raises(PackError, match=reason):
            load(packed)
    path.write_bytes(whole)
    load(packed)
    os.truncate(packed.pack / "experts.bin", 5000)
    with pytest.raises(PackError, match="it has 5000 bytes of 196608"):
        load(packed)
    shutil.rmtree(packed.pack)
    with pytest.raises(PackError, match="there is no pack of experts in it"):
        load(packed)


def test_a_pack_of_another_checkpoint_is_refused(packed: Packed, checkpoint_of: MadeOf) -> None:
    os.utime(packed.folder / "model.safetensors", ns=(5, 5))
    with pytest.raises(PackError, match=r"of another checkpoint .model.safetensors changed since"):
        load(packed)
    with pytest.raises(PackError, match="of another checkpoint"):
        load(packed._replace(folder=checkpoint_of("mixtral")))
    (packed.folder / "model.safetensors").rename(packed.folder / "other.safetensors")
    with pytest.raises(PackError, match=r"other.safetensors is not in it"):
        load(packed)


def flip(path: Path, offset: int) -> None:
    """Change one bit and leave the marks of the file as they were."""
    before = path.stat()
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 16]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("n_rows", [1, N_ALL])
def test_a_flipped_bit_is_an_error_that_names_its_block(packed: Packed, n_rows: int) -> None:
    blocks = packed.pack / "experts.bin"
    with load_streamed(
        packed.folder, ram_bytes=n_rows * 8192 + 4096, n_threads=1, piece_bytes=4096, pack=packed.pack
    ) as streamed:
        expected = plain_network(packed.folder)(torch.tensor([[5, 17, 80, 3, 44, 9]])).logits
        layer: LayerIndex = streamed.index.layers[1]
        asked: list[tuple[int, ...]] = []
        streamed.stream.on_asked = lambda asking: asked.append(asking.experts)
        assert torch.equal(logits(streamed), expected)
        lost = ExpertKey(1, asked[1][-1])
        if streamed.arena.state(lost).name != "EMPTY":
            streamed.arena.drop(lost)
        start = int(layer.offsets[lost.expert].min())
        flip(blocks, start + 6000)
        for _ in range(2):
            with pytest.raises(
                ExpertReadError, match=r"checksum of model.layers.1.mlp.experts.\d does not match"
            ) as raised:
                logits(streamed)
            assert raised.value.path == str(blocks) and raised.value.offset == start // 8192 * 8192
            assert streamed.check() == [] and streamed.arena.state(lost).name == "EMPTY"
        others = [expert for expert in range(N_EXPERTS) if expert != lost.expert]
        module = streamed.network.get_submodule(layer.module)
        with torch.no_grad():
            found = module(torch.ones(1, 32), torch.tensor([others[:2]]), torch.ones(1, 2))
        assert found.isfinite().all()
        flip(blocks, start + 6000)
        assert torch.equal(logits(streamed), expected)


@pytest.mark.parametrize("change", [lambda path: os.truncate(path, 9000), lambda path: flip(path, 7), Path.unlink])
def test_a_pack_that_changes_under_its_index_is_an_error(packed: Packed, change: Callable[[Path], None]) -> None:
    with load_streamed(
        packed.folder, ram_bytes=8192 + 4096, n_threads=1, piece_bytes=4096, pack=packed.pack
    ) as streamed:
        logits(streamed)
        change(packed.pack / "experts.bin")
        os.utime(packed.pack / "experts.bin", ns=(9, 9)) if (packed.pack / "experts.bin").exists() else None
        for _ in range(2):
            with pytest.raises(CheckpointChanged, match=r"experts.bin at byte \d+: the file .* since it was indexed"):
                logits(streamed)
        assert streamed.check() == []


@pytest.mark.parametrize("n_good", [0, 4, 17])
def test_an_io_error_of_a_pack_names_file_and_offset(packed: Packed, n_good: int) -> None:
    drive = Drive()
    with load_streamed(packed.folder, ram_bytes=1 << 20, source=drive.source(), pack=packed.pack) as streamed:
        drive.fails = lambda offset: OSError(errno.EIO, "broken") if drive.n_reads > n_good else None
        with pytest.raises(ExpertReadError, match=r"experts.bin at byte \d+: it cannot be read .broken"):
            logits(streamed)
        settled(streamed)
        drive.fails = lambda offset: None
        assert torch.equal(logits(streamed), plain_network(packed.folder)(torch.tensor([[5, 17, 80, 3, 44, 9]])).logits)
        assert streamed.check() == []
