"""The header of a GGUF file: its metadata and the list of its tensors.

The format is ggml's (docs/gguf.md in its repository). Why not the package gguf: it makes an array of every word of the
vocabulary first, which takes it seconds, a minute on a busy machine; a plan needs none of them.
Knows bytes; knows no model.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from livingkv.errors import ModelDamaged
from livingkv.regular_files import reading

_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_TEXT, _LIST = 8, 9
_MOST_ENTRIES, _MOST_TEXT, _MOST_ITEMS, _MOST_DEPTH = 1 << 20, 1 << 26, 1 << 26, 2
_KEPT_ITEMS = 1 << 14
"""Longer lists, such as vocabularies, are passed over."""


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape: the fastest dimension first, as GGUF has it."""

    shape: tuple[int, ...]
    n_elements: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """metadata: numbers, texts, and lists that are not long."""

    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf_header(path: Path) -> GgufHeader:
    """Raises ModelDamaged for what is no GGUF file of version 2 or 3, or has no whole header."""
    try:
        with reading(path) as file:
            return _header(_Bytes(file))
    except (ValueError, OverflowError, MemoryError, struct.error) as error:
        raise ModelDamaged(f"{path}: the GGUF file is damaged or cut off ({error})") from error
    except OSError as error:
        raise ModelDamaged(f"{path}: it cannot be read ({error.strerror or error})") from error


class _Bytes:
    """Little-endian values of a file, one after the other. Raises ValueError at its end."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def number(self, code: str) -> Any:
        size = struct.calcsize(f"<{code}")
        return struct.unpack(f"<{code}", self.take(size))[0]

    def take(self, n_bytes: int) -> bytes:
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise ValueError("it ends within its header")
        return data

    def skip(self, n_bytes: int) -> None:
        self._file.seek(n_bytes - 1, 1)
        self.take(1)

    def text(self) -> str:
        return self.take(self.count(_MOST_TEXT)).decode("utf-8", "replace")

    def skip_text(self) -> None:
        if n_bytes := self.count(_MOST_TEXT):
            self.take(n_bytes)  # reading a few bytes on is faster than moving

    def count(self, most: int) -> int:
        found = int(self.number("Q"))
        if found > most:
            raise ValueError(f"it counts {found} of something")
        return found


def _header(data: _Bytes) -> GgufHeader:
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    if data.take(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version = data.number("I")
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, and 2 and 3 are known")
    n_tensors, n_entries = data.count(_MOST_ENTRIES), data.count(_MOST_ENTRIES)
    metadata = {data.text(): _value(data, data.number("I"), 0) for _ in range(n_entries)}
    tensors = {}
    for _ in range(n_tensors):
        name = data.text()
        n_dimensions = data.number("I")
        if n_dimensions > 8:
            raise ValueError(f"{name[:40]!r} has {n_dimensions} dimensions")
        shape = tuple(data.count(1 << 40) for _ in range(n_dimensions))
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(data.number("I"))]
        data.number("Q")
        n_elements = math.prod(shape)
        tensors[name] = GgufTensor(shape, n_elements, n_elements // block * block_bytes)
    return GgufHeader(metadata, tensors)


def _value(data: _Bytes, kind: int, depth: int) -> Any:
    if kind in _NUMBERS:
        return data.number(_NUMBERS[kind])
    if kind == _TEXT:
        return data.text()
    if kind != _LIST or depth == _MOST_DEPTH:
        raise ValueError(f"it has a value of the unknown kind {kind}")
    of, n_items = data.number("I"), data.count(_MOST_ITEMS)
    if n_items <= _KEPT_ITEMS:
        return [_value(data, of, depth + 1) for _ in range(n_items)]
    if of in _NUMBERS:
        data.skip(n_items * struct.calcsize(f"<{_NUMBERS[of]}"))
        return None
    if of != _TEXT:
        raise ValueError(f"it has a long list of kind {of}")
    for _ in range(n_items):
        data.skip_text()
    return None
