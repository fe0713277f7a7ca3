"""The files of a checkpoint: their tensors by name, and whether they are still the files that were looked at.

Knows headers and marks; refuses to know models. The files are never written.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import xxhash

from livingkv.errors import CheckpointChanged, ModelDamaged, ModelNotFound
from livingkv.experts.safetensors_header import FileHeader, StoredTensor, read_header
from livingkv.fingerprints import weight_files


class Located(NamedTuple):
    """A tensor, and the number of its file in the checkpoint."""

    file: int
    tensor: StoredTensor


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """All files of one checkpoint, in the order of their names."""

    files: tuple[FileHeader, ...]
    tensors: dict[str, Located]

    @property
    def fingerprint(self) -> str:
        """Digest over name, size, time of change and header of every file; the weights are not read for it."""
        marks = [
            f"{file.path.name} {file.mark.size_bytes} {file.mark.mtime_ns} {file.mark.header_digest}\n"
            for file in self.files
        ]
        return xxhash.xxh3_128_hexdigest("".join(marks).encode())

    def require_unchanged(self, file: int, offset: int) -> None:
        """Raise CheckpointChanged if the file at that path is not the one that was indexed. One stat, no read."""
        header = self.files[file]
        try:
            now = header.path.stat()
        except OSError as error:
            reason = f"the file is gone since it was indexed ({error.strerror}); load the model again"
            raise CheckpointChanged(reason, path=str(header.path), offset=offset) from error
        then = header.mark
        if (now.st_size, now.st_mtime_ns, now.st_ino) != (then.size_bytes, then.mtime_ns, then.inode):
            reason = "the file changed since it was indexed; load the model again"
            raise CheckpointChanged(reason, path=str(header.path), offset=offset)


def read_checkpoint(folder: Path) -> Checkpoint:
    """The safetensors files of a model folder. Reads headers only.

    Raises ModelNotFound without such files, ModelDamaged for a damaged header and a tensor that two files hold.
    """
    paths = weight_files(folder)
    if not paths:
        raise ModelNotFound(f"{folder}: no *.safetensors weights in it; other weight files are not read")
    try:
        files = tuple(read_header(path) for path in paths)
    except OSError as error:
        raise ModelDamaged(f"{folder}: {error.filename}: {error.strerror}; fetch the model again") from error
    tensors: dict[str, Located] = {}
    for number, file in enumerate(files):
        for name, tensor in file.tensors.items():
            if name in tensors:
                other = files[tensors[name].file].path.name
                raise ModelDamaged(f"{file.path}: tensor {name} is in {other} too; fetch the model again")
            tensors[name] = Located(number, tensor)
    return Checkpoint(files, tensors)
