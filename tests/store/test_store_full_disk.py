"""A disk that is really full: a small file system in memory, filled to the last block. A signal would end the process,
so that each case runs in one of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

START = """
import os, sys
from pathlib import Path
from livingkv.errors import LivingKVError, StoreFull
from livingkv.store import Store
from tests.store.store_cases import *

root = Path(sys.argv[1]) / "store"

def fill():
    with open(root.parent / "ballast", "ab", buffering=0) as file:
        for size in (65536, 4096, 512):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                pass

def free():
    (root.parent / "ballast").unlink()
"""

CASES = {
    "reader without a lock file": """
model = filled_store(root)
(root / "catalog" / "lock.mdb").unlink()
fill()
try:
    read_store(root).close()
    raise AssertionError("there was room")
except StoreFull as error:
    assert "no disk space" in str(error) and "\\n" not in str(error)
assert sorted(path.name for path in (root / "catalog").iterdir()) == ["data.mdb"]
free()
with read_store(root) as store:
    assert_session(store, model)
""",
    "reader with a sparse lock file": """
model = filled_store(root)
(root / "catalog" / "lock.mdb").write_bytes(b"")
os.truncate(root / "catalog" / "lock.mdb", 65536)
fill()
try:
    read_store(root).close()
    raise AssertionError("there was room")
except StoreFull:
    free()
with read_store(root) as store:
    assert_session(store, model)
""",
    "reader with its lock file": """
model = filled_store(root)
fill()
with read_store(root) as store:
    assert_session(store, model)
""",
    "writer": """
import random
model, rng = filled_store(root), random.Random(3)
with write_store(root) as store:
    n_failed = 0
    for round in range(6):
        fill()
        for page_bytes in (9_000, 50, 9_000):
            append = make_append(model, rng, n_tokens=13, page_bytes=page_bytes)
            try:
                store.append(append)
                model = model.applied(append)
            except StoreFull as error:
                assert "\\n" not in str(error)
                n_failed += 1
            assert_session(store, model)
        free()
        append = make_append(model, rng, n_tokens=13, page_bytes=500)
        store.append(append)
        model = model.applied(append)
        assert_session(store, model)
    assert n_failed > 6
    fill()
    for change in (
        lambda: store.create_session("more" * 50), lambda: store.fork(1, "fork"), lambda: store.rename(1, "other"),
        lambda: store.recharge(range(9)), lambda: store.prune(1, keep=3), lambda: store.drop_pages(1, [0, 1]),
        lambda: store.defrag(least_dead=0.0), lambda: store.export_session(1, root.parent / "exported"),
        lambda: store.forget_sentences([2]),
    ):
        try:
            change()
        except LivingKVError as error:
            assert "\\n" not in str(error)
    free()
with write_store(root) as store:
    assert_whole(store)
""",
    "a new store": """
fill()
try:
    filled_store(root)
    raise AssertionError("there was room")
except StoreFull:
    free()
filled_store(root)
""",
    "rebuilding": """
model = filled_store(root)
(root / "catalog" / "data.mdb").unlink()
fill()
try:
    Store.rebuild_catalog(root, catalog_bytes=1 << 24)
    raise AssertionError("there was room")
except StoreFull:
    free()
assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()
""",
}


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 4 MB, where mounting one is allowed."""
    place = folder / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_full_disk_is_an_error_and_no_signal(small_disk: Path, case: str) -> None:
    command = [sys.executable, "-c", START + CASES[case], str(small_disk)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
