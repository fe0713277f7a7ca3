"""Which experts tokens chose, written down pass by pass: for simulations of caches, and to look at.

A file is a head (magic, version, the number of experts of each layer) and a record for each pass: layer, tokens,
experts per token, the choices, a checksum. A file that was broken off ends at its last whole record. It holds choices
and nothing of what the tokens were. Knows routes; refuses to know reads.
"""

from __future__ import annotations

import logging
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from livingkv.errors import InputError
from livingkv.regular_files import reading

LOG = logging.getLogger("livingkv.experts")

MAGIC = b"LKVROUTE"
VERSION = 1
_HEAD = struct.Struct("<8sHH")  # magic, version, layers; then a u32 for each layer: how many experts it has
_PASS = struct.Struct("<HHI")  # layer, experts per token, tokens; then a u16 for each choice
_CHECKSUM = struct.Struct("<I")  # CRC-32 of the record before it


@dataclass(frozen=True, slots=True)
class TracedPass:
    """One pass: the choice of each token, the likeliest first as far as its router sorts."""

    layer: int
    chosen: NDArray[np.uint16]  # [tokens, top_k]

    @property
    def experts(self) -> list[int]:
        """The experts that the pass needed, in ascending order."""
        found: list[int] = np.unique(self.chosen).tolist()
        return found


@dataclass(frozen=True, slots=True)
class Trace:
    """All passes of a file. n_experts: of each layer."""

    n_experts: tuple[int, ...]
    passes: tuple[TracedPass, ...]


class Routed(Protocol):
    """What is recorded of a pass: `livingkv.experts.Asked` has it."""

    @property
    def layer(self) -> int:
        """The layer, among those with experts."""

    @property
    def chosen(self) -> list[list[int]]:
        """The router's choice, [tokens][top_k]."""


class RouteRecorder:
    """Writes passes to a new file, buffered: `streamed.stream.on_asked = recorder.record`. Whole after `close`.

    Raises OSError where the file cannot be written; FileExistsError where it is there.
    """

    def __init__(self, path: Path, n_experts: tuple[int, ...]) -> None:
        self._file = path.open("xb")
        head = _HEAD.pack(MAGIC, VERSION, len(n_experts)) + struct.pack(f"<{len(n_experts)}I", *n_experts)
        self._file.write(head + _CHECKSUM.pack(zlib.crc32(head)))

    def record(self, routed: Routed) -> None:
        """Write one pass down."""
        chosen = np.asarray(routed.chosen, "<u2")
        if chosen.size:
            record = _PASS.pack(routed.layer, chosen.shape[1], chosen.shape[0]) + chosen.tobytes()
            self._file.write(record + _CHECKSUM.pack(zlib.crc32(record)))

    def close(self) -> None:
        """Write what is left and close the file."""
        self._file.close()

    def __enter__(self) -> RouteRecorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_trace(path: Path) -> Trace:
    """The passes of a file, up to the first record that is not whole; that is said in the log.

    Raises InputError where it is no such file, OSError where it cannot be read.
    """
    with reading(path) as file:
        data = file.read()
    n_experts, at = _head(path, data)
    passes: list[TracedPass] = []
    while at < len(data):
        found = _pass(data, at, len(n_experts))
        if found is None:
            LOG.warning("%s: it ends in the middle of a record at byte %d; %d passes are whole", path, at, len(passes))
            break
        one, at = found
        passes.append(one)
    return Trace(n_experts, tuple(passes))


def _head(path: Path, data: bytes) -> tuple[tuple[int, ...], int]:
    if len(data) < _HEAD.size or data[: len(MAGIC)] != MAGIC:
        raise InputError("trace", path, "it is no record of routes")
    _, version, n_layers = _HEAD.unpack_from(data)
    end = _HEAD.size + 4 * n_layers
    if version != VERSION:
        raise InputError("trace", path, f"its version {version} is not known; record it again")
    if len(data) < end + _CHECKSUM.size or _CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(data[:end]):
        raise InputError("trace", path, "its head is damaged; record it again")
    return struct.unpack_from(f"<{n_layers}I", data, _HEAD.size), end + _CHECKSUM.size


def _pass(data: bytes, at: int, n_layers: int) -> tuple[TracedPass, int] | None:
    """The record at that byte and where it ends, None where it is not whole."""
    if at + _PASS.size > len(data):
        return None
    layer, top_k, n_tokens = _PASS.unpack_from(data, at)
    begin, end = at + _PASS.size, at + _PASS.size + 2 * top_k * n_tokens
    if end + _CHECKSUM.size > len(data) or layer >= n_layers or not top_k * n_tokens:
        return None
    if _CHECKSUM.unpack_from(data, end)[0] != zlib.crc32(data[at:end]):
        return None
    chosen = np.frombuffer(data, "<u2", top_k * n_tokens, begin).reshape(n_tokens, top_k)
    return TracedPass(layer, chosen), end + _CHECKSUM.size
