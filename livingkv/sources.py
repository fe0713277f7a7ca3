"""Reading and checking of what a person wants to have remembered: files, folders and standard input.

Knows bytes, lines and UTF-8, and nothing of sentences or stores. Whatever cannot be prose is refused here, before
anything is changed, with an error that names the line or byte and says what to do.
"""

from __future__ import annotations

import codecs
import contextlib
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import regex

from livingkv.errors import SourceError
from livingkv.regular_files import reading

STANDARD_INPUT = "-"
_CHUNK_BYTES = 1 << 20
_SNIFF_BYTES = 1 << 13
_VISIBLE = regex.compile(r"[^\s\p{Cc}\p{Cf}]")
_OTHER_ENCODINGS = (  # UTF-32 first: its little-endian mark begins with that of UTF-16
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def read_source(path_or_dash: str | Path, *, max_line_bytes: int) -> bytes:
    """The bytes of a regular file, or of standard input for "-", unchanged and checked as `check_text` does.

    Blocks until standard input ends. Holds the bytes once; what is refused is not read further than needed to say why.
    Raises SourceError when there is nothing to read, no permission, or the bytes cannot be prose.
    """
    if str(path_or_dash) == STANDARD_INPUT:
        return _read(sys.stdin.buffer, "standard input", max_line_bytes, is_stream=True)
    path = Path(path_or_dash)
    with _refusals(path), _open_regular(path) as file:
        return _read(file, str(path), max_line_bytes, is_stream=False)


def check_text(text: bytes, name: str, *, max_line_bytes: int) -> None:
    """Raise SourceError unless `text` is UTF-8 with at least one visible character, no NUL and no endless line.

    `name` is what the error calls it.
    """
    _read(BytesIO(text), name, max_line_bytes, is_stream=False)


def walk_sources(paths: Iterable[str | Path], on_left_out: Callable[[Path, str], None] | None = None) -> list[Path]:
    """The files to read, without repeats: files and "-" as named, folders walked in sorted order.

    A walk skips hidden names, links to folders, special files, empty files and files that are not UTF-8 text; a file
    that was named is returned whatever it holds, so that `read_source` refuses it. `on_left_out` is told what a walk
    skips and why, hidden names aside.
    Raises SourceError for a path that does not exist, a folder without any text, and what may not be read.
    """
    found: dict[Path, None] = {}
    for given in paths:
        path = Path(given)
        if str(path) == STANDARD_INPUT:
            found[path] = None
            continue
        with _refusals(path):
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        inside = list(_walk(path, on_left_out or _forget_it)) if is_folder else [path]
        if not inside:
            raise SourceError("source", path, "a folder needs at least one text file that is not hidden; name another")
        found.update(dict.fromkeys(inside))
    return list(found)


def _walk(folder: Path, leave_out: Callable[[Path, str], None]) -> Iterator[Path]:
    with _refusals(folder):
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    for entry in entries:
        if entry.name.startswith("."):
            continue
        with _refusals(entry):
            is_folder, is_file = entry.is_dir(), entry.is_file()
        if is_folder and not entry.is_symlink():
            yield from _walk(entry, leave_out)
            continue
        reason = _not_text(entry) if is_file else "a link to a folder" if is_folder else "no regular file"
        if reason is None:
            yield entry
        else:
            leave_out(entry, reason)


def _forget_it(path: Path, reason: str) -> None:
    """Nobody wants to know what was left out."""


def _not_text(path: Path) -> str | None:
    """Why a file's beginning cannot be that of a text; None if it can."""
    with _refusals(path), _open_regular(path) as file:
        head = file.read(_SNIFF_BYTES)
    if not head:
        return "empty"
    if encoding := _other_encoding(head):
        return f"{encoding}, not UTF-8"
    if b"\0" in head:
        return "binary"
    try:
        codecs.getincrementaldecoder("utf-8")().decode(head)  # a character cut off by the sniff is no error
    except UnicodeDecodeError as error:
        return f"not UTF-8 at byte {error.start:,}"
    return None


def _open_regular(path: Path) -> BinaryIO:
    """Open a regular file; SourceError for anything else, which is not touched (a pipe would block)."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a special file (pipe, socket or device)"
        raise SourceError("source", f"{path}, {kind}", 'a regular file is needed, or "-" for standard input')
    return reading(path)


@contextlib.contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into SourceError."""
    try:
        yield
    except FileNotFoundError as error:
        raise SourceError("source", path, "there is no such file or folder; check the path") from error
    except PermissionError as error:
        raise SourceError("source", path, "it may not be read; change its permissions or the user") from error
    except (OSError, ValueError) as error:
        raise SourceError("source", repr(str(path)), f"it cannot be read: {error}") from error


def _read(file: BinaryIO, name: str, max_line_bytes: int, *, is_stream: bool) -> bytes:
    kept = BytesIO()  # hands its bytes over without a copy
    decoder = codecs.getincrementaldecoder("utf-8")()
    visible = False
    open_bytes = 0  # of the line that the chunk before left open
    while chunk := file.read(_CHUNK_BYTES):
        offset = kept.tell()
        if offset == 0 and (encoding := _other_encoding(chunk)):
            fix = f'UTF-8 is needed; convert it with "iconv -f {encoding} -t UTF-8"'
            raise SourceError("source", f"{name} in {encoding} (it begins with that byte-order mark)", fix)
        if (nul := chunk.find(b"\0")) >= 0:
            given = f"{name}, a binary file (NUL at byte {offset + nul:,})"
            raise SourceError("source", given, "text in UTF-8 is needed; extract the text first")
        overlong_lo, end_bytes = _overlong_line(chunk, open_bytes, max_line_bytes)
        if overlong_lo is not None:
            line = _n_newlines(kept.getvalue() + chunk[:overlong_lo]) + 1
            n_bytes = None if is_stream else _line_bytes(file, chunk[overlong_lo:], 0 if overlong_lo else open_bytes)
            size = f"more than {max_line_bytes:,}" if n_bytes is None else f"{n_bytes:,}"
            fix = f"a line may have {max_line_bytes:,}; break it into lines or raise settings.max_line_bytes"
            raise SourceError("source", f"{name}, whose line {line:,} has {size} bytes", fix)
        open_bytes = end_bytes
        visible = _decoded(decoder, chunk, offset, name) or visible
        kept.write(chunk)
    _decoded(decoder, b"", kept.tell(), name)
    if not visible:
        state = "holds only white space" if kept.tell() else "is empty"
        raise SourceError("source", f"{name}, which {state}", "text with at least one visible character is needed")
    return kept.getvalue()


def _decoded(decoder: codecs.IncrementalDecoder, chunk: bytes, offset: int, name: str) -> bool:
    """Check the next bytes of a stream, which begin at `offset`; True when they show a visible character."""
    pending = len(decoder.getstate()[0])
    try:
        characters = decoder.decode(chunk, final=not chunk)
    except UnicodeDecodeError as error:
        at = offset - pending + error.start
        given = f"{name}, not UTF-8 at byte {at:,} (0x{error.object[error.start]:02x})"
        fix = 'UTF-8 is needed; convert it, for example with "iconv -f LATIN1 -t UTF-8"'
        raise SourceError("source", given, fix) from error
    return _VISIBLE.search(characters) is not None


def _other_encoding(head: bytes) -> str | None:
    return next((name for mark, name in _OTHER_ENCODINGS if head.startswith(mark)), None)


def _overlong_line(chunk: bytes, open_bytes: int, max_line_bytes: int) -> tuple[int | None, int]:
    """Where in the chunk a line starts that is too long, else None; and the bytes of the line left open at its end.

    `open_bytes` of the first line came with earlier chunks. A line ends at LF, CR or CR LF.
    """
    lo = 0
    while lo < len(chunk):
        room = max_line_bytes - open_bytes + 1
        newline = max(chunk.rfind(b"\n", lo, lo + room), chunk.rfind(b"\r", lo, lo + room))
        if newline < 0:
            rest = len(chunk) - lo
            return (None, open_bytes + rest) if rest < room else (lo, 0)
        lo, open_bytes = newline + 1, 0
    return None, 0


def _n_newlines(head: bytes) -> int:
    return head.count(b"\n") + head.count(b"\r") - head.count(b"\r\n")


def _line_bytes(file: BinaryIO, chunk: bytes, n_bytes: int) -> int:
    """The size of a line of which `n_bytes` have gone by, `chunk` is at hand and the rest is in the file."""
    while chunk:
        ends = [at for sign in (b"\n", b"\r") if (at := chunk.find(sign)) >= 0]
        if ends:
            return n_bytes + min(ends)
        n_bytes += len(chunk)
        chunk = file.read(_CHUNK_BYTES)
    return n_bytes
