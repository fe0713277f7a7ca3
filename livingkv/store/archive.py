"""The archive: text of pruned sentences in one file of lines (FORMAT.md, section 14), which can be erased too.

Knows that file; refuses to know why a sentence was pruned. The file is replaced as a whole, atomically. A line that is
damaged stays when others are added, and goes when any are erased: it may hold what was to be erased.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from xxhash import xxh3_64_hexdigest

from livingkv.errors import RecordDamaged
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.rows import ArchivedSentence

ARCHIVE = "archive"
_FILE = "sentences.jsonl"
_DRAFT = _FILE + ".tmp"


class Archive:
    """The archive of one store. One writer at a time."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._path = root / ARCHIVE / _FILE

    def read(self) -> list[ArchivedSentence]:
        """All sentences, oldest first. Raises RecordDamaged or StoreError."""
        return [self._sentence(number, line) for number, line in enumerate(self._lines(), 1)]

    def _lines(self) -> list[bytes]:
        with errors_named(self._path):
            try:
                return self._path.read_bytes().splitlines()
            except FileNotFoundError:
                return []

    def _known(self) -> list[tuple[bytes, ArchivedSentence | None]]:
        """Every line with its sentence, None for a damaged one."""
        found: list[tuple[bytes, ArchivedSentence | None]] = []
        for number, line in enumerate(self._lines(), 1):
            try:
                found.append((line, self._sentence(number, line)))
            except RecordDamaged:
                found.append((line, None))
        return found

    def leaving(self, is_gone: Callable[[ArchivedSentence], bool]) -> list[int] | None:
        """Ids of the sentences that `remove` would erase; None if it would erase nothing, not even a damaged line."""
        known = [each for _, each in self._known()]
        ids = [each.sentence_id for each in known if each is not None and is_gone(each)]
        return ids if ids or None in known else None

    def _sentence(self, number: int, line: bytes) -> ArchivedSentence:
        check, _, body = line.partition(b" ")
        if check.decode("ascii", "replace") != xxh3_64_hexdigest(body):
            raise RecordDamaged(f"{self._path} line {number}: damaged; erase the archive, or remove that line")
        return ArchivedSentence(**json.loads(body))

    def add(self, sentences: Sequence[ArchivedSentence]) -> None:
        """Add sentences that are not there yet; durable on return. Raises StoreError."""
        known = self._known()
        ids = {each.sentence_id for _, each in known if each is not None}
        new = [_line(each) for each in sentences if each.sentence_id not in ids]
        self._write([*(line + b"\n" for line, _ in known), *new])

    def remove(self, is_gone: Callable[[ArchivedSentence], bool]) -> int:
        """Erase sentences: their bytes are overwritten on return. How many there were. Raises StoreError."""
        known = self._known()
        kept = [line + b"\n" for line, each in known if each is not None and not is_gone(each)]
        if len(kept) < len(known):
            self._write(kept)
        return sum(each is not None for _, each in known) - len(kept)

    def recover(self) -> None:
        """Erase what a replacement left that was broken off. Idempotent; raises StoreError."""
        draft = self._path.with_name(_DRAFT)
        with errors_named(draft):
            if draft.exists():
                descriptor = self._disk.open_existing(draft, writable=True)
                try:
                    self._erase(descriptor)
                finally:
                    self._disk.close(descriptor)
                self._disk.remove(draft)
                self._disk.sync_folder(draft.parent)

    def _erase(self, descriptor: int) -> None:
        self._disk.write(descriptor, [bytes(self._disk.size(descriptor))], 0)
        self._disk.sync(descriptor)

    def _write(self, lines: Sequence[bytes]) -> None:
        draft = self._path.with_name(_DRAFT)
        with errors_named(self._path):
            self._disk.make_folder(self._path.parent)
            descriptor = self._disk.open_new(draft)
            try:
                self._disk.write(descriptor, lines, 0)
                self._disk.sync(descriptor)
            finally:
                self._disk.close(descriptor)
            with contextlib.ExitStack() as stack:
                old = None
                if self._path.exists():
                    old = self._disk.open_existing(self._path, writable=True)
                    stack.callback(self._disk.close, old)
                self._disk.rename(draft, self._path)
                self._disk.sync_folder(self._path.parent)
                self._disk.reached(Step.ARCHIVE_REPLACED)
                if old is not None:
                    self._erase(old)


def _line(sentence: ArchivedSentence) -> bytes:
    body = json.dumps(asdict(sentence)).encode()
    return f"{xxh3_64_hexdigest(body)} ".encode() + body + b"\n"
