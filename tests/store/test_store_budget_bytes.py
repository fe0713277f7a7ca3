"""A disk budget counts what the file system really holds: pages of any size, text, index, files without holes."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from livingkv.errors import InputError, RecordDamaged, StoreFull
from livingkv.store import Disk, Store
from tests.store.store_cases import FINGERPRINT, SessionModel, assert_session, assert_whole, make_append

BUDGET, SEGMENT = 1_000_000, 100_000


class DiskWithoutHoles(Disk):
    """A file system that cannot give blocks in the middle of a file back."""

    def punch(self, descriptor: int, n_bytes: int, offset: int) -> bool:
        """See Disk."""
        return False


def held_by_file_system(root: Path) -> int:
    """As `du` counts."""
    return sum(path.stat().st_blocks * 512 for path in [root, *root.rglob("*")])


def budgeted(path: Path, disk: Disk | None = None, budget: int | None = BUDGET) -> Store:
    """A store for writing, whose budget is set unless that is None."""
    return Store.open(
        path, mode="write", fingerprint=FINGERPRINT, create=True, segment_bytes=SEGMENT, catalog_bytes=1 << 24,
        disk_budget_bytes=budget, disk=disk,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("page_bytes", "holes"),
    [pytest.param(700, True, marks=pytest.mark.slow), (5000, True), (9000, True), (9000, False)],
)
def test_small_pages_fill_the_budget_and_no_more(folder: Path, page_bytes: int, holes: bool) -> None:
    root, rng = folder / "store", random.Random(6)
    n_pages = 3 * BUDGET // page_bytes
    with budgeted(root, None if holes else DiskWithoutHoles()) as store:
        pinned = SessionModel(store.create_session("pinned").session_id, "pinned")
        append = make_append(pinned, rng, n_tokens=4 * 10, page_bytes=page_bytes)
        store.append(append)
        pinned = pinned.applied(append)
        store.pin(pinned.session_id)
        model = SessionModel(store.create_session("main").session_id, "main")
        peak = 0
        while len(model.pages) < n_pages:
            append = make_append(model, rng, n_tokens=4 * (40_000 // page_bytes), page_bytes=page_bytes)
            store.append(append)
            model = model.applied(append)
            peak = max(peak, held_by_file_system(root))
        assert peak <= BUDGET + SEGMENT
        missing = store.missing_pages(model.session_id)
        kept_bytes = (len(model.pages) - len(missing)) * page_bytes
        assert kept_bytes >= 0.5 * (BUDGET - held_by_file_system(root / "catalog")), "no more went than had to"
        model = model.without_pages(frozenset(missing))
        for each in (pinned, model):
            assert_session(store, each)
        assert_whole(store)


def fill(store: Store, model: SessionModel, rng: random.Random, n_bytes: int) -> SessionModel:
    """Appends of 40,000-byte pages until so many bytes of them were written."""
    for _ in range(n_bytes // 80_000):
        append = make_append(model, rng, n_tokens=8, page_bytes=40_000)
        store.append(append)
        model = model.applied(append)
    return model


def test_a_budget_stays_with_the_store_until_it_is_lifted(folder: Path) -> None:
    root, rng = folder / "store", random.Random(3)
    with budgeted(root) as store:
        model = fill(store, SessionModel(store.create_session("main").session_id, "main"), rng, 2 * BUDGET)
    with Store.open(root, mode="read") as reader:
        stats = reader.stats()
        assert (stats.disk_budget_bytes, reader.disk_budget_bytes) == (BUDGET, BUDGET)
        assert 0.8 * BUDGET < stats.held_bytes == held_by_file_system(root) <= BUDGET
        with pytest.raises(InputError, match="write"):
            Store.open(root, mode="read", disk_budget_bytes=BUDGET)
    with budgeted(root, budget=None) as store:  # another process that says nothing of a budget
        model = fill(store, model, rng, 2 * BUDGET)
        assert held_by_file_system(root) <= BUDGET + SEGMENT
        store.limit_disk(None)
        model = fill(store, model, rng, 2 * BUDGET)
    with budgeted(root, budget=None) as store:
        assert held_by_file_system(root) > 2 * BUDGET and store.stats().disk_budget_bytes is None
        store.limit_disk(BUDGET)
        assert held_by_file_system(root) <= BUDGET
        with pytest.raises(InputError, match="disk budget"):
            store.limit_disk(0)
        assert_session(store, model.without_pages(frozenset(store.missing_pages(model.session_id))))
        assert_whole(store)


def test_a_budget_that_cannot_be_met_changes_nothing(folder: Path) -> None:
    root, rng = folder / "store", random.Random(3)
    with budgeted(root, budget=None) as store:
        model = SessionModel(store.create_session("main").session_id, "main")
        store.pin(model.session_id)
        model = fill(store, model, rng, BUDGET)
        for _ in range(2):
            with pytest.raises(StoreFull, match="budget"):
                store.limit_disk(BUDGET // 2)
            assert store.stats().disk_budget_bytes is store.disk_budget_bytes is None
        assert_session(store, model)
        store.append(make_append(model, rng, n_tokens=8, page_bytes=40_000))


def test_what_is_rebuilt_stays_within_the_budget(folder: Path) -> None:
    root, rng = folder / "store", random.Random(3)
    with budgeted(root) as store:
        model = fill(store, SessionModel(store.create_session("main").session_id, "main"), rng, 2 * BUDGET)
        missing = store.missing_pages(model.session_id)
        assert 0 not in missing, "whatever is restored of a session begins with its first page"
        for page in missing:
            store.replace_pages(model.session_id, {page: model.pages[page]})
            assert held_by_file_system(root) <= BUDGET + SEGMENT
        assert store.read_pages(model.session_id, missing[-1:]) == [model.pages[missing[-1]]]
        assert_session(store, model.without_pages(frozenset(store.missing_pages(model.session_id))))


def test_text_alone_is_counted_too(folder: Path) -> None:
    root, rng = folder / "store", random.Random(3)
    with budgeted(root) as store:
        model = SessionModel(store.create_session("log", kv=False).session_id, "log")
        with pytest.raises(StoreFull, match="only text"):
            for number in range(10_000):
                (root / "index").mkdir(exist_ok=True)
                (root / "index" / f"{number}").write_bytes(rng.randbytes(10_000))  # an index grows with its text
                append = make_append(model, rng, n_tokens=0)
                store.append(append)
                model = model.applied(append)
        assert 0.9 * BUDGET < held_by_file_system(root) <= BUDGET + 20_000


def test_a_manifest_with_no_number_for_a_budget_is_damaged(folder: Path) -> None:
    root = folder / "store"
    budgeted(root).close()
    manifest = root / "manifest.json"
    values = json.loads(manifest.read_bytes())
    assert values["disk_budget_bytes"] == BUDGET
    for bad in ("1G", 0, True):
        manifest.write_text(json.dumps(values | {"disk_budget_bytes": bad}))
        with pytest.raises(RecordDamaged, match="disk_budget_bytes"):
            Store.open(root, mode="write")


def test_the_rest_of_a_last_block_is_not_taken_for_dead(folder: Path) -> None:
    """A moved segment of a few hundred bytes takes a whole block, and would be moved again for ever."""
    root, rng = folder / "store", random.Random(3)
    with Store.open(root, mode="write", fingerprint=FINGERPRINT, create=True, catalog_bytes=1 << 24) as store:
        model = fill(store, SessionModel(store.create_session("main").session_id, "main"), rng, BUDGET)
        store.create_session("empty")
        store.limit_disk(BUDGET // 2)
        assert held_by_file_system(root) <= BUDGET // 2
        assert len(list((root / "segments").iterdir())) <= 4
        assert_session(store, model.without_pages(frozenset(store.missing_pages(model.session_id))))


def test_an_encrypted_session_and_a_budget_leave_one_another_in_the_manifest(folder: Path) -> None:
    pytest.importorskip("cryptography")
    root = folder / "store"
    with budgeted(root, budget=None) as store:
        store.limit_disk(BUDGET)
        store.create_session("secret", encrypt=True)
        store.limit_disk(2 * BUDGET)
    values = json.loads((root / "manifest.json").read_bytes())
    assert (values["features"], values["disk_budget_bytes"]) == (["encryption"], 2 * BUDGET)
    with budgeted(root, budget=None) as store:
        assert store.disk_budget_bytes == 2 * BUDGET
        assert_whole(store)
