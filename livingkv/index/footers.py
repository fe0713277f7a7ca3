"""Checks the checksum that tantivy writes at the end of each of its files but never reads on its own.

Knows the footer (tantivy, directory/footer.rs): body, JSON with the body's CRC-32, length of the JSON, a magic number.
A file with another ending is left to tantivy to judge.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import reading

_ENDING = struct.Struct("<II")  # length of the JSON, magic
_MAGIC = 1337
_CHUNK_BYTES = 1 << 20


def damaged_files(folder: Path) -> list[str]:
    """Names of the files in a tantivy folder whose body does not match its checksum. Reads every byte once."""
    return [path.name for path in sorted(folder.iterdir()) if not path.name.startswith(".") and not _is_whole(path)]


def _is_whole(path: Path) -> bool:
    try:
        with reading(path) as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _ENDING.size))
            ending = file.read()
            if len(ending) < _ENDING.size or _ENDING.unpack(ending)[1] != _MAGIC:
                return True
            body_bytes = size - _ENDING.size - _ENDING.unpack(ending)[0]
            if body_bytes < 0:
                return False
            file.seek(body_bytes)
            try:
                crc = Fields.read(file.read(size - _ENDING.size - body_bytes)).integer("crc")
            except FieldError:
                return False
            file.seek(0)
            seen = 0
            while body_bytes > 0 and (chunk := file.read(min(_CHUNK_BYTES, body_bytes))):
                seen = zlib.crc32(chunk, seen)
                body_bytes -= len(chunk)
            return bool(seen == crc)
    except FileNotFoundError:
        return True  # a writer beside us removed it after a merge
