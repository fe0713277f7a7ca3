"""One LMDB environment per folder and process, shared by all stores that are open on it.

Knows LMDB's rules: never opened twice in one process, never used across a fork, short readers, a map that grows.
Refuses to know what is stored in it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from livingkv.errors import RecordDamaged, StoreError
from livingkv.regular_files import require_regular
from livingkv.store.disk import errors_named
from livingkv.store.lmdb_errors import lmdb_errors_named, reserve_lock_file

MAX_READERS = 1022
_LEAST_MAP_BYTES = 1 << 22


class Environment:
    """An open LMDB environment with its named databases. Threads may share it; a forked child may not.

    Made by `acquire`. `databases` are created if it is writable.
    """

    def __init__(self, folder: Path, databases: tuple[bytes, ...], map_bytes: int, *, writable: bool) -> None:
        self.folder = folder
        self.writable = writable
        self.n_users = 0
        self.pid = os.getpid()
        self._databases = databases
        self._map_bytes = map_bytes
        self._idle = threading.Condition()
        self._n_active = 0
        self._open()

    def _open(self) -> None:
        for name in ("data.mdb", "lock.mdb"):
            with errors_named(self.folder / name):
                require_regular(self.folder / name)
        with lmdb_errors_named(self.folder):
            reserve_lock_file(self.folder / "lock.mdb")
            self._environment = self._open_environment()
            self._require_whole_file()
            if self.writable:
                self._environment.reader_check()
            self.handles = self._open_databases()

    def _require_whole_file(self) -> None:
        """Raise RecordDamaged for a file that is shorter than its last page: touching what is missing would end the
        process (SIGBUS)."""
        file = self.folder / "data.mdb"
        wanted = (self._environment.info()["last_pgno"] + 1) * self._environment.stat()["psize"]
        if file.stat().st_size < wanted and self._environment.info()["last_pgno"] > 1:
            self._environment.close()
            raise RecordDamaged(
                f"{file} is cut off at {file.stat().st_size} of {wanted} bytes: run `livingkv repair` on the store"
            )

    def _open_environment(self) -> Any:
        while True:
            try:
                return lmdb.open(
                    str(self.folder),
                    map_size=self._map_bytes,
                    max_dbs=len(self._databases) + 16,
                    max_readers=MAX_READERS,
                    max_spare_txns=0,  # a kept transaction would be shared with forked children
                    readonly=not self.writable,
                    create=self.writable,
                )
            except lmdb.MemoryError:  # the process may have a limit of address space
                if self._map_bytes <= _LEAST_MAP_BYTES:
                    raise
                self._map_bytes //= 2

    def _open_databases(self) -> dict[bytes, Any]:
        if not self.writable:  # a read transaction of ours would be reset at its end, and the handles with it
            handles = {}
            for name in self._databases:
                with contextlib.suppress(lmdb.NotFoundError):  # an earlier livingkv did not make it
                    handles[name] = self._environment.open_db(name, create=False)
            return handles
        with self._environment.begin(write=True) as transaction:
            return {name: self._environment.open_db(name, txn=transaction) for name in self._databases}

    def close(self) -> None:
        """Close it. No transaction may be open."""
        self._environment.close()

    def abandon(self) -> None:
        """In a forked child: let go of the parent's environment, which goes on with it.

        Raises StoreError if a transaction was open at the fork: closing it here would end it for the parent.
        """
        if self._n_active:
            raise StoreError(f"{self.folder.parent} was in use when this process was forked: start it by spawn instead")
        self.close()

    @property
    def commit_number(self) -> int:
        """Number of the newest commit, whoever made it."""
        self._enter()
        try:
            return int(self._environment.info()["last_txnid"])
        finally:
            self._leave()

    def oldest_reader(self) -> int:
        """The lowest commit number that a reader of any process has open; the newest if there is none."""
        self._environment.reader_check()
        lines = self._environment.readers().splitlines()[1:]
        open_now = [int(line.split()[2]) for line in lines if len(line.split()) == 3 and line.split()[2].isdigit()]
        return min([self.commit_number, *open_now])

    def free_pages(self) -> tuple[int, int, int]:
        """Highest page number in use or freed, number of free pages at most, bytes of a page."""
        with self._environment.begin() as transaction:
            stats = [transaction.stat(db=handle) for handle in self.handles.values()]
            stats.append(self._environment.stat())
            last = int(self._environment.info()["last_pgno"])
        used = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return last, last + 1 - used, int(stats[0]["psize"])

    def begin_read(self) -> Any:
        """A read transaction on the newest commit; end it soon with `end_read`. Raises StoreError in a forked child."""
        while True:
            self._enter()
            transaction = None
            try:
                with lmdb_errors_named(self.folder):
                    transaction = self._environment.begin()
                return transaction
            except lmdb.MapResizedError:
                pass
            except lmdb.ReadersFullError as error:
                if not self._environment.reader_check():
                    raise StoreError(f"{self.folder} has {MAX_READERS} open readers: close some") from error
                continue
            finally:
                if transaction is None:
                    self._leave()
            self._resize(0)  # another process has grown the map: take its size

    def end_read(self, transaction: Any) -> None:
        """End a read transaction."""
        transaction.abort()
        self._leave()

    def write(self, apply: Callable[[Any], None], before_commit: Callable[[], None]) -> None:
        """Run `apply` in a write transaction, then `before_commit`, then commit; durable on return.

        `apply` runs again if the map has to grow. Nothing is changed when an error leaves this method, unless LMDB
        itself failed while it switched its meta page: `reopen`, then read what holds.
        """
        while True:
            self._enter()
            try:
                with lmdb_errors_named(self.folder), self._environment.begin(write=True) as transaction:
                    apply(transaction)
                    before_commit()
                return
            except (lmdb.MapFullError, lmdb.MapResizedError):
                pass
            finally:
                self._leave()
            self._map_bytes = 2 * max(self._map_bytes, int(self._environment.info()["map_size"]))
            self._resize(self._map_bytes)

    def reopen(self, *, writable: bool) -> None:
        """Close and open again, when no transaction is left: after a failed commit, or to become writable."""
        with self._idle:
            self._idle.wait_for(lambda: self._n_active == 0)
            self._environment.close()
            self.writable = writable
            self._open()

    def _resize(self, map_bytes: int) -> None:
        with self._idle:
            self._idle.wait_for(lambda: self._n_active == 0)
            with lmdb_errors_named(self.folder):
                self._environment.set_mapsize(map_bytes)

    def _enter(self) -> None:
        if os.getpid() != self.pid:
            raise StoreError(f"{self.folder.parent} was opened before a fork: open it again in this process")
        with self._idle:
            self._n_active += 1

    def _leave(self) -> None:
        with self._idle:
            self._n_active -= 1
            if not self._n_active:
                self._idle.notify_all()


class _Registry:
    """The environments that this process has open, by real path."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[str, Environment] = {}

    def acquire(self, folder: Path, databases: tuple[bytes, ...], map_bytes: int, *, writable: bool) -> Environment:
        path = os.path.realpath(folder)
        with self._lock:
            environment = self._open.get(path)
            if environment is not None and environment.pid != os.getpid():
                environment.abandon()
                environment = None
            if environment is None:
                environment = Environment(folder, databases, map_bytes, writable=writable)
                self._open[path] = environment
            elif writable and not environment.writable:
                environment.reopen(writable=True)
            environment.n_users += 1
            return environment

    def release(self, environment: Environment) -> None:
        if environment.pid != os.getpid():
            return
        with self._lock:
            environment.n_users -= 1
            if not environment.n_users:
                self._open.pop(os.path.realpath(environment.folder))
                environment.close()

    def is_open(self, folder: Path) -> bool:
        with self._lock:
            found = self._open.get(os.path.realpath(folder))
            return found is not None and found.pid == os.getpid()


_REGISTRY = _Registry()  # process-wide, because LMDB's rule is


def acquire(folder: Path, databases: tuple[bytes, ...], map_bytes: int, *, writable: bool) -> Environment:
    """The process's environment of `folder`, opened if it is not yet. Pair with `release`.

    Raises StoreFull, StoreUnwritable or StoreError.
    """
    return _REGISTRY.acquire(folder, databases, map_bytes, writable=writable)


def release(environment: Environment) -> None:
    """Give an environment back; the last user's release closes it. In a forked child it does nothing."""
    _REGISTRY.release(environment)


def is_open(folder: Path) -> bool:
    """True while any store of this process has the environment of `folder` open."""
    return _REGISTRY.is_open(folder)
