"""Erasing records that no commit needs any more, so that their space, and where it matters their bytes, are gone.

Knows void records and holes in files (FORMAT.md, section 8); refuses to know why a record was given up.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice
from pathlib import Path

from livingkv.store.catalog import Catalog, Changes
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.items import Erasure
from livingkv.store.records import RECORD_HEADER_BYTES, pack_void_header, record_bytes
from livingkv.store.segment_writer import segment_path

_BATCH = 10_000
_ZEROS = bytes(1 << 20)


class Erasing:
    """Works off the catalog's list of records to erase. One thread at a time, beside no commit."""

    def __init__(self, disk: Disk, folder: Path, catalog: Catalog) -> None:
        self._disk = disk
        self._folder = folder
        self._catalog = catalog

    def run(self) -> None:
        """Erase all listed records; durable on return. Raises StoreError; it can be called again then."""
        while True:
            with self._catalog.read() as snapshot:
                batch = list(islice(snapshot.erasures(), _BATCH))
            if not batch:
                return
            for number, own in groupby(batch, key=lambda item: item.location.segment):
                self._segment(number, list(own))
            self._disk.reached(Step.ERASED)

            def apply(changes: Changes, done: Sequence[Erasure] = tuple(batch)) -> None:
                for item in done:
                    changes.remove_erasure(item)

            self._catalog.commit(apply, before_commit=lambda: None)

    def _segment(self, number: int, own: Sequence[Erasure]) -> None:
        path = segment_path(self._folder, number)
        with errors_named(path):
            if not path.is_file():
                return
            descriptor = self._disk.open_existing(path, writable=True)
            try:
                size = self._disk.size(descriptor)
                own = [item for item in own if item.location.offset + record_bytes(item.location.length) <= size]
                for item in own:
                    self._void(descriptor, item)
                self._disk.sync(descriptor)  # zeros are on the disk before their blocks are given back
                for item in own:
                    length = record_bytes(item.location.length) - RECORD_HEADER_BYTES
                    self._disk.punch(descriptor, length, item.location.offset + RECORD_HEADER_BYTES)
            finally:
                self._disk.close(descriptor)

    def _void(self, descriptor: int, item: Erasure) -> None:
        _, offset, length = item.location
        left = record_bytes(length) - RECORD_HEADER_BYTES if item.overwrite else 0
        at = offset + RECORD_HEADER_BYTES
        while left:
            part = memoryview(_ZEROS)[: min(left, len(_ZEROS))]
            self._disk.write(descriptor, [bytes(part)], at)
            left -= len(part)
            at += len(part)
        self._disk.write(descriptor, [pack_void_header(length)], offset)
