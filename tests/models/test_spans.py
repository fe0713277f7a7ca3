"""Spans of files are read whole and in their order, whatever their places; a file that is short or lost is an error."""

from __future__ import annotations

import errno
import fcntl
import os
import random
from pathlib import Path

import pytest
import torch
import xxhash
from safetensors.torch import save_file

import livingkv.spans as spans_module
from livingkv.errors import ModelDamaged
from livingkv.fingerprints import weights_digest
from livingkv.spans import Span, read_spans


def read(spans: list[Span]) -> list[bytes]:
    """The bytes of each span."""
    found = [b""] * len(spans)
    last = 0
    for number, data in read_spans(spans):
        assert number >= last
        last = number
        found[number] += bytes(data)
    return found


@pytest.mark.parametrize("direct", [True, False])
def test_spans_are_what_the_files_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, direct: bool) -> None:
    monkeypatch.setattr(spans_module, "_PIECE_BYTES", 8192)
    if not direct:
        preadv = os.preadv

        def refusing(descriptor: int, buffers: list[memoryview], offset: int) -> int:
            if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT:
                raise OSError(errno.EINVAL, "Invalid argument")
            return preadv(descriptor, buffers, offset)

        monkeypatch.setattr(os, "preadv", refusing)
    chance = random.Random(4)
    contents = {tmp_path / name: chance.randbytes(size) for name, size in (("a", 50_001), ("b", 4096), ("c", 3))}
    for path, content in contents.items():
        path.write_bytes(content)
    spans = []
    for number in range(60):
        path = chance.choice(list(contents))
        lo, hi = sorted(chance.randrange(len(contents[path]) + 1) for _ in range(2))
        spans.append(Span(path, lo, hi, number))
    assert read(spans) == [contents[span.path][span.lo : span.hi] for span in spans]


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(bytes(5000))
    with pytest.raises(EOFError, match=r"a$"):
        read([Span(path, 0, 5001, 0)])
    with pytest.raises(FileNotFoundError) as raised:
        read([Span(path, 0, 5000, 0), Span(tmp_path / "none", 0, 1, 1)])
    assert raised.value.filename == str(tmp_path / "none")
    next(read_spans([Span(path, 0, 5000, 0)])).data.release()  # and given up: nothing stays open


def test_a_digest_is_what_it_always_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over names, types, shapes and bytes by name, read whole."""
    monkeypatch.setattr(spans_module, "_PIECE_BYTES", 4096)
    torch.manual_seed(1)
    first = {"b": torch.randn(70, 33), "empty": torch.zeros(0, 4), "z": torch.randn(3)}
    second = {"a": torch.ones(5, dtype=torch.uint8), "zz": torch.zeros(2, 0)}
    save_file(first, tmp_path / "model-1.safetensors")
    save_file(second, tmp_path / "model-2.safetensors")
    names = {torch.float32: "F32", torch.uint8: "U8"}
    expected = xxhash.xxh3_128()
    for name, tensor in sorted((first | second).items()):
        expected.update(f"{name} {names[tensor.dtype]} {list(tensor.shape)}\n".encode() + tensor.numpy().tobytes())
    assert weights_digest(tmp_path, tmp_path / "cache") == expected.hexdigest()

    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    (tmp_path / "model-1.safetensors").touch()
    monkeypatch.setattr(os, "preadv", broken)
    with pytest.raises(ModelDamaged, match=r"model-2.safetensors: it cannot be read \(Input/output error\)"):
        weights_digest(tmp_path, tmp_path / "cache")
