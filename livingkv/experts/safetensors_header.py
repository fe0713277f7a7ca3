"""The header of a safetensors file, read and checked without the file's tensors.

The format: 8 bytes, little endian, the length of a JSON object; that object, name to type, shape and offsets; then the
bytes of the tensors, one after the other without holes (https://github.com/huggingface/safetensors, README).
Knows bytes and names; refuses to know what a tensor is for.
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from pathlib import Path

import xxhash

from livingkv.errors import ModelDamaged
from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import reading

_PREFIX_BYTES = 8
_LONGEST_HEADER = 100_000_000  # the limit of the safetensors library
_TYPES_OF_BITS = {
    4: ("F4",),
    6: ("F6_E2M3", "F6_E3M2"),
    8: ("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"),
    16: ("U16", "I16", "F16", "BF16"),
    32: ("U32", "I32", "F32"),
    64: ("U64", "I64", "F64", "C64"),
}
_BITS = {dtype: bits for bits, dtypes in _TYPES_OF_BITS.items() for dtype in dtypes}


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor: its bytes are `[offset, offset + n_bytes)` of the file. `dtype` is safetensors' name of the type."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class FileMark:
    """What tells a file from another that took its place: size, time of change, digest of the header."""

    size_bytes: int
    mtime_ns: int
    inode: int
    header_digest: str


@dataclass(frozen=True, slots=True)
class FileHeader:
    """A file's tensors by name, and its mark."""

    path: Path
    mark: FileMark
    tensors: dict[str, StoredTensor]


def read_header(path: Path) -> FileHeader:
    """Read and check one header. Raises ModelDamaged for a file that is cut, overlaps itself or is no safetensors file,
    OSError where it cannot be read."""
    with reading(path) as file:
        status = os.fstat(file.fileno())
        prefix = file.read(_PREFIX_BYTES)
        n_header = int.from_bytes(prefix, "little")
        if len(prefix) < _PREFIX_BYTES or n_header > min(_LONGEST_HEADER, status.st_size - _PREFIX_BYTES):
            raise ModelDamaged(f"{path}: it is cut inside of its header; fetch it again")
        header = file.read(n_header)
    try:
        tensors = _tensors(header, _PREFIX_BYTES + n_header, status.st_size)
    except FieldError as error:
        raise ModelDamaged(f"{path}: {error}; fetch it again") from error
    mark = FileMark(status.st_size, status.st_mtime_ns, status.st_ino, xxhash.xxh3_128_hexdigest(header))
    return FileHeader(path, mark, tensors)


def _tensors(header: bytes, data_start: int, size_bytes: int) -> dict[str, StoredTensor]:
    try:
        entries = json.loads(header, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise FieldError(f"its header is not JSON ({error})") from error
    if not isinstance(entries, dict):
        raise FieldError("its header is not a JSON object")
    entries.pop("__metadata__", None)
    tensors = {name: _tensor(name, entry, data_start) for name, entry in entries.items()}
    end, before = data_start, "the header"
    for name, tensor in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].n_bytes)):
        if tensor.offset != end:
            how = "overlaps" if tensor.offset < end else "leaves a hole after"
            raise FieldError(f"tensor {name} {how} {before}")
        end, before = tensor.offset + tensor.n_bytes, name
    if end != size_bytes:
        raise FieldError(f"it has {size_bytes} bytes, its header says {end}")
    return tensors


def _without_doubles(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FieldError("its header names something twice")
    return found


def _tensor(name: str, entry: object, data_start: int) -> StoredTensor:
    fields = Fields(entry, within=f"tensor {name}: ")
    dtype, shape, offsets = fields.value("dtype"), fields.value("shape"), fields.value("data_offsets")
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise FieldError(f"tensor {name} has the unknown type {dtype!r}")
    sizes, ends = _whole_numbers(name, shape), _whole_numbers(name, offsets)
    if len(ends) != 2:
        raise FieldError(f"tensor {name} has {len(ends)} offsets")
    lo, hi = ends
    bits = math.prod(sizes) * _BITS[dtype]
    if bits % 8 or hi - lo != bits // 8:
        raise FieldError(f"tensor {name} has {hi - lo} bytes where its type and shape need {bits / 8:g}")
    return StoredTensor(dtype, sizes, data_start + lo, hi - lo)


def _whole_numbers(name: str, values: object) -> tuple[int, ...]:
    if not isinstance(values, list) or any(type(value) is not int or value < 0 for value in values):
        raise FieldError(f"tensor {name} has a shape or offsets that are not whole numbers")
    return tuple(values)
