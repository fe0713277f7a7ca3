"""One snapshot as one file: FORMAT.md says how. Written whole or not at all, read with everything compared.

Knows bytes; refuses to know which snapshots are worth keeping.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from os import close, fchmod, getpid
from pathlib import Path
from typing import cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from livingkv.errors import SnapshotDamaged, StoreError
from livingkv.experts.formats import TORCH_TYPES
from livingkv.experts.layout import ALIGNMENT
from livingkv.json_fields import LARGEST, FieldError, Fields
from livingkv.regular_files import open_regular
from livingkv.snapshots.key import VERSION, SnapshotKey
from livingkv.snapshots.memory_blocks import Block, View, reach, room
from livingkv.snapshots.state import Json, State
from livingkv.store.disk import Disk, errors_named

DRAFT = ".draft"
_LONGEST_HEADER = 100_000_000

Tokens = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state after some tokens of a user."""

    user: str
    tokens: Tokens
    state: State

    @property
    def n_bytes(self) -> int:
        """Bytes of the state and of the tokens."""
        return self.state.n_bytes + self.tokens.nbytes


def write_snapshot(disk: Disk, path: Path, key: SnapshotKey, snapshot: Snapshot) -> None:
    """Durable when it returns. Raises a StoreError, StoreFull among them, and leaves nothing behind then."""
    draft = path.with_name(f"{path.name}.{getpid()}{DRAFT}")
    header = _header(_text(key, snapshot), len(snapshot.tokens), [block.n_bytes for block in snapshot.state.blocks])
    parts = [header, snapshot.tokens.tobytes(), *(block.data.numpy().data for block in snapshot.state.blocks)]
    with errors_named(path):
        try:
            descriptor = disk.open_new(draft)
            try:
                with suppress(OSError):  # a file system without locks
                    flock(descriptor, LOCK_EX | LOCK_NB)
                fchmod(descriptor, 0o600)
                disk.write(descriptor, cast(list[bytes], parts), 0)  # memory is written like bytes
                disk.sync(descriptor)
            finally:
                disk.close(descriptor)
            disk.rename(draft, path)
            disk.sync_folder(path.parent)
        except BaseException:
            with _as_good_as_possible():
                disk.remove(draft)
            raise


def is_left(draft: Path) -> bool:
    """Whether whoever wrote a draft died over it: nobody holds its lock. False where that cannot be told."""
    try:
        descriptor = open_regular(draft)
    except OSError:
        return False
    try:
        flock(descriptor, LOCK_EX | LOCK_NB)
    except OSError:
        return False
    finally:
        close(descriptor)
    return True


def read_snapshot(disk: Disk, path: Path, key: SnapshotKey, user: str, tokens: Tokens) -> Snapshot:
    """The state after exactly those tokens. SnapshotDamaged for anything else, StoreError where it cannot be read."""
    with errors_named(path):
        descriptor = disk.open_existing(path, writable=False)
        try:
            return _read(disk, descriptor, key, user, tokens)
        except (FieldError, SnapshotDamaged) as error:
            raise SnapshotDamaged(f"{path}: {error}; it is not used") from error
        finally:
            disk.close(descriptor)


def tokens_digest(tokens: Tokens) -> str:
    """What a file's name says of its tokens."""
    return xxhash.xxh3_128_hexdigest(tokens.tobytes())


def _read(disk: Disk, descriptor: int, key: SnapshotKey, user: str, tokens: Tokens) -> Snapshot:
    size = disk.size(descriptor)
    n_header = int.from_bytes(disk.read(descriptor, 8, 0), "little")
    if n_header > min(_LONGEST_HEADER, size - 8):
        raise FieldError("it is cut inside of its header")
    header = disk.read(descriptor, 8 + n_header, 0)
    text = Fields(Fields.read(header[8:]).value("__metadata__")).text("livingkv")
    fields = Fields.read(text)
    fields.integer("version", lo=VERSION, hi=VERSION)
    different = key.differences(fields.value("key"))
    if different:
        raise FieldError(f"it belongs to another {' and '.join(different)}")
    if fields.text("user") != user:
        raise FieldError("it belongs to another user")
    found = Fields(fields.value("tokens"))
    digests, sizes, residues = _blocks(fields)
    if header != _header(text, found.integer("number"), sizes):
        raise FieldError("its header is not the one that was written")
    if size != len(header) + 8 * found.integer("number") + sum(sizes):
        raise FieldError(f"it has {size} bytes, which is not what its header says")
    at = len(header)
    stored = np.frombuffer(disk.read(descriptor, 8 * found.integer("number"), at), np.int64)
    if not np.array_equal(stored, tokens) or tokens_digest(stored) != found.text("digest"):
        raise FieldError("it belongs to other tokens")
    at += stored.nbytes
    blocks = []
    for number, (digest, n_bytes, residue) in enumerate(zip(digests, sizes, residues, strict=True)):
        data = room(n_bytes, residue)
        target = data.numpy().data
        if disk.read_into(descriptor, [target], at, n_bytes) != n_bytes or xxhash.xxh3_128_hexdigest(target) != digest:
            raise FieldError(f"block {number} is damaged")
        blocks.append(Block(data, residue))
        at += n_bytes
    return Snapshot(user, tokens, State(fields.value("cache"), fields.value("layers"), blocks, _views(fields, blocks)))


def _text(key: SnapshotKey, snapshot: Snapshot) -> str:
    state = snapshot.state
    document: Json = {
        "version": VERSION,
        "key": asdict(key),
        "user": snapshot.user,
        "tokens": {"number": len(snapshot.tokens), "digest": tokens_digest(snapshot.tokens)},
        "blocks": [
            [block.n_bytes, block.residue, xxhash.xxh3_128_hexdigest(block.data.numpy().data)] for block in state.blocks
        ],
        "views": [list(view) for view in state.views],
        "cache": state.cache,
        "layers": state.layers,
    }
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _header(text: str, n_tokens: int, sizes: list[int]) -> bytes:
    """The 8 bytes of length and the header that belong to a text."""
    entries: dict[str, Json] = {
        "__metadata__": {"livingkv": text, "checksum": xxhash.xxh3_128_hexdigest(text.encode())},
        "tokens": {"dtype": "I64", "shape": [n_tokens], "data_offsets": [0, 8 * n_tokens]},
    }
    at = 8 * n_tokens
    for number, n_bytes in enumerate(sizes):
        entries[f"block.{number:06}"] = {"dtype": "U8", "shape": [n_bytes], "data_offsets": [at, at + n_bytes]}
        at += n_bytes
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header


def _blocks(fields: Fields) -> tuple[list[str], list[int], list[int]]:
    found = fields.value("blocks")
    if not isinstance(found, list):
        raise FieldError("blocks is not a list")
    digests, sizes, residues = [], [], []
    for one in found:
        n_bytes, residue, digest = one if isinstance(one, list) and len(one) == 3 else (None, None, None)
        each = Fields({"bytes": n_bytes, "residue": residue, "digest": digest}, within="blocks: ")
        sizes.append(each.integer("bytes"))
        residues.append(each.integer("residue", hi=ALIGNMENT - 1))
        digests.append(each.text("digest"))
    return digests, sizes, residues


def _views(fields: Fields, blocks: list[Block]) -> list[View]:
    """The views, each within its block. The text's checksum was compared, so this finds our mistakes and forgeries."""
    found: list[View] = []
    listed = fields.value("views")
    if not isinstance(listed, list):
        raise FieldError("views is not a list")
    for one in listed:
        kinds = tuple(type(value) for value in one) if isinstance(one, list) else ()
        if kinds != (int, str, list, list, int, str):
            raise FieldError("views are not as they were written")
        view = View(one[0], one[1], tuple(one[2]), tuple(one[3]), one[4], one[5])
        numbers = [*view.shape, *view.strides, view.offset, view.block]
        are_numbers = all(type(number) is int and 0 <= number <= LARGEST for number in numbers)
        if not are_numbers or len(view.shape) != len(view.strides):
            raise FieldError(f"view {len(found)} is made of other things than numbers")
        block = blocks[view.block] if view.block < len(blocks) else None
        if (
            block is None
            or view.dtype not in TORCH_TYPES
            or reach(view) > block.n_bytes
            or (block.residue + view.offset) % TORCH_TYPES[view.dtype].itemsize
        ):
            raise FieldError(f"view {len(found)} is not within its block")
        found.append(view)
    return found


@contextmanager
def _as_good_as_possible() -> Iterator[None]:
    """Errors of cleaning up do not hide the one that made it necessary."""
    try:
        yield
    except (OSError, StoreError):
        return
