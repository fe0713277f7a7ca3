"""Every kind of bad source has its clear error; good ones come back byte for byte."""

from __future__ import annotations

import io
import os
import socket
import sys
from pathlib import Path

import pytest

from livingkv.errors import SourceError
from livingkv.text import check_text, read_source, walk_sources

MAX_LINE = 1 << 20


def read(path: Path | str, max_line_bytes: int = MAX_LINE) -> bytes:
    return read_source(path, max_line_bytes=max_line_bytes)


def written(folder: Path, content: bytes, name: str = "notes.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content", [b"a", b"\xef\xbb\xbfBOM\r\n\r\n", "é\u2028👩\u200d👧 \u200b\n".encode(), b"x\n" * (3 << 20), b"no end"]
)
def test_bytes_come_back_unchanged(tmp_path: Path, content: bytes) -> None:
    assert read(written(tmp_path, content)) == content


def test_a_character_across_two_chunks_is_whole(tmp_path: Path) -> None:
    content = b"x" * ((1 << 20) - 1) + "é".encode() + b"y"
    assert read(written(tmp_path, content), 2 << 20) == content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "which is empty; text with at least one visible character is needed"),
        (b" \r\n\t\n", "which holds only white space"),
        ("\ufeff\u200b\n".encode(), "which holds only white space"),
        (b"ok\n\0\n", r"a binary file \(NUL at byte 3\); text in UTF-8 is needed"),
        (b"x\n" * (1 << 20) + b"\0", r"NUL at byte 2,097,152"),
        (b"abc\xff", r"not UTF-8 at byte 3 \(0xff\); UTF-8 is needed; convert it"),
        ("résumé".encode("latin-1"), r"not UTF-8 at byte 1 \(0xe9\)"),
        (b"cut \xf0\x9f\x91", r"not UTF-8 at byte 4 \(0xf0\)"),
        (b"x\n" * (1 << 19) + b"\xed\xa0\x80", r"not UTF-8 at byte 1,048,576 \(0xed\)"),
        (b"x\n" * ((1 << 19) - 1) + b"x\xc3y", r"not UTF-8 at byte 1,048,575 \(0xc3\)"),
        ("text".encode("utf-16"), r"in UTF-16 .*; UTF-8 is needed; convert it with \"iconv -f UTF-16 -t UTF-8\""),
        ("text".encode("utf-32"), "in UTF-32 "),
        (
            b"one\ntwo\r\nthree\r" + b"y" * 2000 + b"\n",
            r"whose line 4 has 2,000 bytes; a line may have 1,024; break it",
        ),
    ],
)
def test_what_is_no_text_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    max_line_bytes = 1024 if b"y" * 2000 in content else MAX_LINE
    with pytest.raises(SourceError, match=message) as caught:
        read(written(tmp_path, content), max_line_bytes)
    assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match=message):
        check_text(content, "the text", max_line_bytes=max_line_bytes)


@pytest.mark.parametrize(("n_bytes", "fits"), [(1024, True), (1025, False)])
@pytest.mark.parametrize("ending", [b"\n", b"\r", b"\r\n", b""])
def test_the_longest_line_that_fits(n_bytes: int, fits: bool, ending: bytes) -> None:
    text = b"ok\n" + b"z" * n_bytes + ending
    if fits:
        check_text(text, "the text", max_line_bytes=1024)
    else:
        with pytest.raises(SourceError, match="line 2 has 1,025 bytes"):
            check_text(text, "the text", max_line_bytes=1024)


def test_fifty_megabytes_in_one_line_are_refused_without_being_held(tmp_path: Path) -> None:
    import tracemalloc

    path = written(tmp_path, b"short\n" + b"x" * 50_000_000 + b"\nmore\n")
    tracemalloc.start()
    with pytest.raises(SourceError, match=r"line 2 has 50,000,000 bytes; .*settings\.max_line_bytes"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 << 20


def test_a_large_file_is_held_once(tmp_path: Path) -> None:
    import tracemalloc

    path = written(tmp_path, b"some words of text\n" * 1_000_000)
    tracemalloc.start()
    assert len(read(path)) == 19_000_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 19_000_000 * 1.35


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    for path, message in [
        (tmp_path / "none.txt", "there is no such file"),
        (tmp_path, "a folder; a regular file is needed"),
        (Path("/dev/zero"), "a special file"),
        (Path("a\0b"), "cannot be read"),
    ]:
        with pytest.raises(SourceError, match=message):
            read(path)


def test_a_pipe_or_socket_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SourceError, match="a special file"):
        read(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        with pytest.raises(SourceError, match="a special file"):
            read(tmp_path / "s")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path) -> None:
    path = written(tmp_path, b"secret")
    path.chmod(0)
    with pytest.raises(SourceError, match="may not be read; change its permissions"):
        read(path)


def test_a_refused_open_is_a_source_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path, b"secret")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("livingkv.sources.reading", refuse)
    with pytest.raises(SourceError, match="may not be read; change its permissions"):
        read(path)


class _Input:
    def __init__(self, content: bytes) -> None:
        self.buffer = io.BytesIO(content)


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _Input(b"typed\n"))
    assert read("-") == b"typed\n"
    monkeypatch.setattr(sys, "stdin", _Input(b"x" * 5000))
    with pytest.raises(SourceError, match="standard input, whose line 1 has more than 1,024 bytes"):
        read("-", 1024)


def test_a_walk_takes_text_in_order_and_skips_the_rest(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / ".git").mkdir()
    for name, content in [
        ("b/2.md", b"two"),
        ("b/10.md", "Füße".encode()),
        ("a.txt", b"one"),
        (".hidden", b"no"),
        (".git/config", b"no"),
        ("image.png", b"\x89PNG\0"),
        ("latin.txt", b"caf\xe9 au lait"),
        ("wide.txt", "text".encode("utf-16")),
        ("empty.py", b""),
        ("long.txt", b"x" * 8191 + "é".encode()),
    ]:
        written(tmp_path, content, name)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    expected = ["a.txt", "b/10.md", "b/2.md", "long.txt"]
    assert [str(path.relative_to(tmp_path)) for path in walk_sources([tmp_path])] == expected
    again = walk_sources([tmp_path / "image.png", tmp_path / "a.txt", tmp_path, "-"])
    assert again[0].name == "image.png"  # named, so it is kept and refused when it is read
    assert again[-1] == Path("-")
    assert len(again) == len(set(again)) == 6


def test_a_walk_that_finds_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="at least one text file"):
        walk_sources([tmp_path])
    with pytest.raises(SourceError, match="no such file or folder"):
        walk_sources([tmp_path / "none"])


@pytest.mark.timeout(10)
def test_a_pipe_that_comes_in_a_files_place_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at a path and its opening somebody may put a pipe there."""
    path = written(tmp_path, b"text")
    looked = path.stat()
    path.unlink()
    os.mkfifo(path)
    monkeypatch.setattr(Path, "stat", lambda *_, **__: looked)
    with pytest.raises(SourceError, match="pipe, socket or device"):
        read(path)
