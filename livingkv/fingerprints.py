"""Digests that say whether two models are the same one: of weights, of a tokenizer, of a file.

A digest of a large file is remembered in livingkv's cache under the file's path, inode, size and time of change, so
that later starts take milliseconds. Except for `file_sha256` the digests are xxh3-128: they tell models apart, they do
not withstand an attacker. Knows nothing of where models come from.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from livingkv.errors import ModelDamaged
from livingkv.spans import Span, read_spans

if TYPE_CHECKING:
    from torch import Tensor

_BLOCK_BYTES = 1 << 24
_TOKENIZER_PROBE = "The year 2024:\n\n\tdef f(x): return x**2  # naïve é 日本語 🙂👩‍👩‍👧 don't  <|im_start|> 1234567"


def file_sha256(path: Path, cache: Path) -> str:
    """SHA-256 of a file, in hex. Raises OSError when it cannot be read."""
    return _remembered("sha256", [path], cache, lambda: _sha256(path))


def weights_digest(folder: Path, cache: Path) -> str:
    """Digest over names, types, shapes and bytes of all tensors in the folder's safetensors files.

    File headers and the split into files do not count. Raises ModelDamaged when a file cannot be parsed.
    """
    files = weight_files(folder)
    return _remembered("weights", files, cache, lambda: _stored_digest(files))


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that hold the folder's weights: those of its index, else model.safetensors, else all."""
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if not index.is_file():
        return [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    try:
        names = set(json.loads(index.read_text("utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ModelDamaged(f"{index}: cannot be read; fetch the model again") from error
    strange = [name for name in names if not _is_inside(name)]
    if strange:
        raise ModelDamaged(f"{index}: {strange[0]!r} is no file of this folder; fetch the model again")
    return sorted(folder / name for name in names)


def _is_inside(name: object) -> bool:
    """Whether that is the name of a file in a folder or in one of its folders."""
    return isinstance(name, str) and bool(name) and not Path(name).is_absolute() and ".." not in Path(name).parts


def network_digest(network: Any) -> str:
    """Digest over names, types, shapes and bytes of all tensors of a network in memory. Its own kind of digest."""
    return "network-" + _tensors_digest(_network_tensors(network.state_dict()))


def tokenizer_digest(tokenizer: Any, folder: Path | None = None, cache: Path | None = None) -> str:
    """Digest over vocabulary, merges, added tokens and the ids of a probe text; the chat template does not count.

    With the `folder` that the tokenizer was loaded from, the digest of its unchanged tokenizer.json is remembered.
    """
    stored = folder / "tokenizer.json" if folder else None
    if stored and cache and stored.is_file():
        return _remembered("tokenizer", [stored], cache, lambda: _tokenizer_digest(tokenizer))
    return _tokenizer_digest(tokenizer)


def _tokenizer_digest(tokenizer: Any) -> str:
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in backend["model"].get("merges") or ()]
    added = sorted((token["id"], token["content"], token["special"]) for token in backend["added_tokens"])
    vocabulary = sorted((index, piece) for piece, index in tokenizer.get_vocab().items())
    probe = tokenizer(_TOKENIZER_PROBE, add_special_tokens=False)["input_ids"]
    parts = [vocabulary, merges, added, probe]
    return xxhash.xxh3_128_hexdigest(json.dumps(parts, ensure_ascii=True, separators=(",", ":")).encode())


def _remembered(kind: str, files: list[Path], cache: Path, compute: Callable[[], str]) -> str:
    """The digest from the cache if no file has changed since, else computed and put there."""
    stats = [(str(file.resolve()), file.stat()) for file in files]
    identity = [[path, s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns] for path, s in stats]
    note = cache / "digests" / xxhash.xxh3_128_hexdigest(json.dumps([kind, identity]).encode())
    try:
        digest = note.read_text("ascii")
        if digest.isalnum():  # empty or torn after a power cut: computed again
            return digest
    except (OSError, UnicodeDecodeError):
        pass
    digest = compute()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        temporary = note.with_name(f"{note.name}.{os.getpid()}")
        temporary.write_text(digest, "ascii")
        temporary.replace(note)
    except OSError:
        return digest  # a cache that cannot be written costs time, not correctness
    return digest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _tensors_digest(tensors: Iterator[tuple[str, memoryview]]) -> str:
    digest = xxhash.xxh3_128()
    for description, content in tensors:
        digest.update(f"{description}\n".encode())
        for start in range(0, len(content), _BLOCK_BYTES):
            digest.update(content[start : start + _BLOCK_BYTES])
    return digest.hexdigest()


def _stored_digest(files: list[Path]) -> str:
    """As `_tensors_digest` of what the files hold, by name. Reads all of it, as fast as the drive does."""
    found: list[tuple[str, dict[str, Any], Path, int]] = []
    for file in files:
        header, data_start = _safetensors_header(file)
        found += [(name, entry, file, data_start) for name, entry in header.items() if name != "__metadata__"]
    found.sort(key=lambda item: item[0])
    spans = []
    for number, (name, entry, file, data_start) in enumerate(found):
        low, high = (data_start + offset for offset in entry["data_offsets"])
        if high > file.stat().st_size:
            raise ModelDamaged(f"{file}: the file is cut off inside tensor {name}; fetch the model again")
        spans.append(Span(file, low, high, number))
    digest, n_begun = xxhash.xxh3_128(), 0
    try:
        for piece in read_spans(spans):
            n_begun = _describe(digest, found, n_begun, piece.number + 1)
            digest.update(piece.data)
    except EOFError as error:
        raise ModelDamaged(f"{error}: the file was cut off while it was read; fetch the model again") from error
    except OSError as error:
        raise ModelDamaged(f"{error.filename}: it cannot be read ({error.strerror}); fetch the model again") from error
    _describe(digest, found, n_begun, len(found))
    return digest.hexdigest()


def _describe(digest: Any, found: list[tuple[str, dict[str, Any], Path, int]], first: int, end: int) -> int:
    """Put names, types and shapes of tensors into a digest, of those that hold nothing, too. Answers the end."""
    for name, entry, _, _ in found[first:end]:
        digest.update(f"{name} {entry['dtype']} {entry['shape']}\n".encode())
    return max(first, end)


def _safetensors_header(file: Path) -> tuple[dict[str, Any], int]:
    with file.open("rb") as stream:
        length = stream.read(8)
        try:
            (size,) = struct.unpack("<Q", length)
            header = json.loads(stream.read(min(size, 1 << 28)))
        except (struct.error, ValueError) as error:
            raise ModelDamaged(f"{file}: not a safetensors file; fetch the model again") from error
    return header, 8 + size


def _network_tensors(state: dict[str, Tensor]) -> Iterator[tuple[str, memoryview]]:
    import torch

    for name, tensor in sorted(state.items()):
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        yield f"{name} {tensor.dtype} {list(tensor.shape)}", flat.numpy().data
