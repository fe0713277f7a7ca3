"""A pipe or device in the place of one of the index's files is damage, seen at once, and rebuilding puts it right."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from livingkv.errors import IndexDamaged, IndexFault
from livingkv.index import Entry, Index
from livingkv.index.vector_file import create
from tests.index.word_embedder import WordEmbedder

pytestmark = pytest.mark.timeout(20)


def make_pipe(path: Path) -> None:
    """A pipe that nobody writes to."""
    os.mkfifo(path)


def link_device(path: Path) -> None:
    """A link to a device that has no end."""
    path.symlink_to("/dev/zero")


def filled(path: Path) -> Index:
    """An index with one sentence."""
    index = Index.recreate(path, WordEmbedder())
    index.add([Entry(0, 0, "The boiler in the flat failed again.")])
    index.commit(0)
    return index


@pytest.mark.parametrize("make", [make_pipe, link_device])
def test_every_file_of_an_index(tmp_path: Path, make: Callable[[Path], None]) -> None:
    filled(tmp_path / "model").close()
    names = [path.relative_to(tmp_path / "model") for path in (tmp_path / "model").rglob("*") if path.is_file()]
    assert len(names) > 5
    for name in names:
        root = tmp_path / name.name
        shutil.copytree(tmp_path / "model", root)
        (root / name).unlink()
        make(root / name)
        with pytest.raises(IndexDamaged) as caught, Index.open(root, WordEmbedder(), "write") as index:
            index.probe("Which boiler?", limit=1)
        assert "\n" not in str(caught.value)
    with filled(root) as index:
        assert [hit.sentence_id for hit in index.probe("Which boiler?", limit=1)] == [0]


def test_a_pipe_is_not_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_pipe(tmp_path / "vectors-1.lkv")
    monkeypatch.setattr(Path, "unlink", lambda *_, **__: None)  # somebody puts it there again
    with pytest.raises(IndexFault, match="cannot be written"):
        create(tmp_path / "vectors-1.lkv", "words", 8)
