"""Headers of safetensors files: what is read from them, and which files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from livingkv.errors import CheckpointChanged, ModelDamaged, ModelNotFound
from livingkv.experts.checkpoint import read_checkpoint
from livingkv.experts.safetensors_header import read_header

GOOD = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def write(path: Path, header: object, n_data: int) -> Path:
    """A file of that header, given as a value or as JSON text, and so many bytes of data."""
    raw = (header if isinstance(header, str) else json.dumps(header)).encode()
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(n_data))
    return path


def test_tensors_are_where_the_library_puts_them(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5, dtype=torch.bfloat16), "empty": torch.zeros(0)}
    save_file(tensors, path, metadata={"format": "pt"})
    header = read_header(path)
    data = path.read_bytes()
    assert set(header.tensors) == set(tensors)
    for name, tensor in tensors.items():
        found = header.tensors[name]
        assert found.shape == tuple(tensor.shape)
        assert data[found.offset : found.offset + found.n_bytes] == bytes(tensor.view(torch.uint8).numpy().data)


@pytest.mark.parametrize(
    ("header", "n_data", "reason"),
    [
        (GOOD, 7, "has 7[0-9] bytes, its header says"),
        (GOOD, 9, "has 7[0-9] bytes, its header says"),
        ("{", 0, "not JSON"),
        ("[" * 100_000, 0, "not JSON"),
        ("[]", 0, "not a JSON object"),
        ('{"a": 1}', 0, "not a JSON object"),
        ({"a": {"dtype": "F32", "shape": [2]}}, 8, "data_offsets is missing"),
        ({"a": {"dtype": "F33", "shape": [2], "data_offsets": [0, 8]}}, 8, "unknown type 'F33'"),
        (
            {"a": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}},
            8,
            "has 8 bytes where its type and shape need 12",
        ),
        ({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 1]}}, 1, "need 1.5"),
        ({"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}, 8, "not whole numbers"),
        ({"a": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}, 4, "not whole numbers"),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}}, 8, "has 3 offsets"),
        (GOOD | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [4, 8]}}, 8, "b overlaps a"),
        (GOOD | {"b": {"dtype": "U8", "shape": [4], "data_offsets": [9, 13]}}, 13, "b leaves a hole after a"),
        ('{"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "a": {}}', 1, "names something twice"),
    ],
)
def test_a_damaged_header_is_refused(tmp_path: Path, header: object, n_data: int, reason: str) -> None:
    path = write(tmp_path / "model.safetensors", header, n_data)
    with pytest.raises(ModelDamaged, match=reason) as raised:
        read_header(path)
    assert str(raised.value).startswith(str(path)) and "\n" not in str(raised.value)


@pytest.mark.parametrize("data", [b"", b"\x10\0\0", b"\x10\0\0\0\0\0\0\0{}", b"\xff" * 8 + b"{}"])
def test_a_cut_header_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(ModelDamaged, match="cut inside of its header"):
        read_header(path)


def test_a_tensor_in_two_files_and_a_folder_without_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"no \*\.safetensors"):
        read_checkpoint(tmp_path)
    write(tmp_path / "model-1.safetensors", GOOD, 8)
    write(tmp_path / "model-2.safetensors", GOOD, 8)
    with pytest.raises(ModelDamaged, match=r"tensor a is in model-1\.safetensors too"):
        read_checkpoint(tmp_path)


def test_a_missing_file_is_told_by_name(tmp_path: Path) -> None:
    write(tmp_path / "model-1.safetensors", GOOD, 8)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelDamaged, match=r"model-2\.safetensors: No such file"):
        read_checkpoint(tmp_path)


def test_the_fingerprint_knows_every_file(tmp_path: Path) -> None:
    first = write(tmp_path / "model-1.safetensors", GOOD, 8)
    write(tmp_path / "model-2.safetensors", {"b": GOOD["a"]}, 8)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.fingerprint == read_checkpoint(tmp_path).fingerprint
    checkpoint.require_unchanged(0, 0)
    write(first, {"c": GOOD["a"]}, 8)
    assert checkpoint.fingerprint != read_checkpoint(tmp_path).fingerprint
    with pytest.raises(CheckpointChanged, match="changed since it was indexed"):
        checkpoint.require_unchanged(0, 0)
    first.unlink()
    with pytest.raises(CheckpointChanged, match="gone since it was indexed"):
        checkpoint.require_unchanged(0, 0)
    checkpoint.require_unchanged(1, 0)
