"""What can be found and mended before a memory is opened: a lost catalog, above all.

Knows that store and index depend on it; needs no model.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from livingkv.errors import RecordDamaged
from livingkv.results import CheckReport
from livingkv.store import RebuildReport, Store


def rebuild_if_lost(path: str | Path, *, key_folder: str | None = None) -> RebuildReport | None:
    """Rebuild the catalog of a store that cannot be opened without it, from its segments; None if it is whole.

    Durable on return. The index is dropped with it, because ids of forgotten sentences may be given out again; the
    next use makes it anew. Raises StoreNotFound, RecordDamaged (the manifest), StoreLocked or StoreError.
    """
    try:
        with Store.open(path, mode="read") as store:
            store.require_catalog()
    except RecordDamaged:
        report = Store.rebuild_catalog(path, key_folder=key_folder)
        shutil.rmtree(Path(path) / "index", ignore_errors=True)
        return report
    return None


def mend_files(path: str | Path, *, key_folder: str | None = None) -> tuple[int, ...]:
    """`Store.mend_segments` of the store at `path`: the numbers of the segments that were replaced."""
    with Store.open(path, mode="write", key_folder=key_folder) as store:
        return store.mend_segments()


def problems_of(report: CheckReport, session_id: int | None) -> tuple[str, ...]:
    """What `check` found; of one session only, where its id is given."""
    if session_id is None:
        return report.problems
    own = (f"session {session_id} ", f"session {session_id}:")
    return tuple(problem for problem in report.problems if problem.startswith(own))


def check_at(path: str | Path, *, key_folder: str | None = None) -> CheckReport:
    """`Store.check` of the store at `path`; one that cannot be opened because it is damaged has that as its problem.

    Raises StoreNotFound, FormatUnsupported or StoreError.
    """
    try:
        with Store.open(path, mode="read", key_folder=key_folder) as store:
            return store.check()
    except RecordDamaged as error:
        return CheckReport(str(path), 0, 0, 0, (str(error),))
