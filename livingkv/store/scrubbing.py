"""Overwriting what LMDB keeps of deleted rows: slack of live pages and whole free pages (FORMAT.md, section 8).

LMDB never clears a page that it frees, and leaves deleted bytes in pages that live on. Rows that can hold content are
therefore put anew into fresh pages, and then every free page is filled with zeros.
"""

from __future__ import annotations

import time
from typing import Any

from livingkv.errors import StoreError
from livingkv.store import item_bytes
from livingkv.store.environment import Environment
from livingkv.store.snapshot import META, NAMES, REQUESTS, SESSIONS, SOURCE_KEYS, SOURCES, TAILS

_CONTENT = (NAMES, SESSIONS, SOURCES, SOURCE_KEYS, TAILS, REQUESTS)
_FILLER = b"~"
_PAGE_HEADER_BYTES = 16
_SPARE_PAGES = 8
_ATTEMPTS = 5


def scrub(environment: Environment, wait_s: float) -> None:
    """Leave nothing of deleted rows in the catalog's file; durable on return. Blocks up to `wait_s` for old readers.

    Raises StoreError if a reader keeps an older snapshot for longer, or pages could not be reached.
    """
    environment.reopen(writable=True)  # page buffers that are kept for reuse hold deleted bytes too
    handles = environment.handles

    def renew(transaction: Any) -> None:
        for name in _CONTENT:
            with transaction.cursor(db=handles[name]) as cursor:
                rows = [(bytes(key), bytes(value)) for key, value in cursor]
            transaction.drop(handles[name], delete=False)
            for key, value in rows:
                transaction.put(key, value, db=handles[name], append=True)

    environment.write(renew, lambda: None)
    freed_by = environment.commit_number
    for _ in range(2):  # LMDB reuses a page two commits after the one that freed it
        _clear(environment)
    _wait_for_readers(environment, freed_by, wait_s)
    for _ in range(_ATTEMPTS):
        if _fill(environment):
            return
    raise StoreError(f"{environment.folder}: free pages could not be overwritten; try again")


def _clear(environment: Environment) -> None:
    """Commit, and take away what an earlier filling may have left."""
    meta = environment.handles[META]

    def clear(transaction: Any) -> None:
        with transaction.cursor(db=meta) as cursor:
            keys = [bytes(key) for key, _ in cursor if bytes(key).startswith(_FILLER)]
        for key in keys:
            transaction.delete(key, db=meta)
        transaction.put(_FILLER, item_bytes.seal(_FILLER, b""), db=meta)

    environment.write(clear, lambda: None)


def _wait_for_readers(environment: Environment, freed_by: int, wait_s: float) -> None:
    deadline = time.monotonic() + wait_s
    while environment.oldest_reader() <= freed_by:
        if time.monotonic() > deadline:
            raise StoreError(f"{environment.folder}: a reader keeps an old snapshot open: end it, then try again")
        time.sleep(0.005)


def _fill(environment: Environment) -> bool:
    """Fill free pages with zeros and free them again; False if some may be left."""
    before, n_free, page_bytes = environment.free_pages()
    meta = environment.handles[META]

    def fill(transaction: Any) -> None:
        for number in range(n_free + _SPARE_PAGES):
            key = _FILLER + number.to_bytes(8, "big")
            body = bytes(page_bytes - _PAGE_HEADER_BYTES - item_bytes.CHECK_BYTES)
            transaction.put(key, item_bytes.seal(key, body), db=meta)

    environment.write(fill, lambda: None)
    grew = environment.free_pages()[0] > before
    _clear(environment)
    return grew
