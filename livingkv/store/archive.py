"""The archive: text of pruned sentences in one file of lines (FORMAT.md, section 14), which can be erased too.

Knows that file; refuses to know why a sentence was pruned. The file is replaced as a whole, atomically.
A line that is damaged stays when others are added, and goes when any are forgotten: it may hold what was to go.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Container, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from reprlib import repr as short

from xxhash import xxh3_64_hexdigest

from livingkv.errors import RecordDamaged, StoreError
from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import read_regular
from livingkv.store.chunk_payload import ROLES
from livingkv.store.disk import Disk, Step, errors_named
from livingkv.store.overwriting import overwrite_and_remove
from livingkv.store.rows import ArchivedSentence
from livingkv.store.sealing import Kind, Place, Vault, from_text, to_text

ARCHIVE = "archive"
_FILE = "sentences.jsonl"
_AWAY = "erase the archive, or remove that line"
_NAMES = {field.name for field in fields(ArchivedSentence)}


class Archive:
    """The archive of one store. One writer at a time."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._path = root / ARCHIVE / _FILE

    def read(self) -> list[ArchivedSentence]:
        """All sentences, oldest first. Raises RecordDamaged or StoreError."""
        return [self._sentence(number, line) for number, line in enumerate(self._lines(), 1)]

    def problems(self) -> list[str]:
        """One line for each run of damaged lines, or for a file that cannot be read. Whole lines that were cut off
        leave no trace."""
        try:
            known = self._known()
        except StoreError as error:
            return [f"the archive cannot be read: {error}"]
        damaged = [number for number, (_, sentence) in enumerate(known, 1) if sentence is None]
        known_bad = set(damaged)
        firsts = [number for number in damaged if number - 1 not in known_bad]
        lasts = [number for number in damaged if number + 1 not in known_bad]
        what_to_do = "restore the file from a backup, or remove them: their pruned text cannot be made anew"
        return [
            f"{self._path} {f'line {first}' if first == last else f'lines {first} to {last}'}: damaged; {what_to_do}"
            for first, last in zip(firsts, lasts, strict=True)
        ]

    def _lines(self) -> list[bytes]:
        with errors_named(self._path):
            try:
                return read_regular(self._path).splitlines()
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
        """Ids of the sentences that a forgetting takes along; None if it takes nothing, not even a damaged line."""
        known = [each for _, each in self._known()]
        ids = []
        for each in known:
            if each is not None:
                try:
                    goes = is_gone(each)
                except RecordDamaged:  # sealed, and it does not open: it may hold what is to go
                    goes = True
                ids += [each.sentence_id] if goes else []
        return ids if ids or None in known else None

    def _sentence(self, number: int, line: bytes) -> ArchivedSentence:
        check, _, body = line.partition(b" ")
        if check.decode("ascii", "replace") != xxh3_64_hexdigest(body):
            raise RecordDamaged(f"{self._path} line {number}: damaged; {_AWAY}")
        try:
            return _from_json(body)
        except FieldError as error:
            raise RecordDamaged(f"{self._path} line {number}: damaged: {error}; {_AWAY}") from error

    def add(self, sentences: Sequence[ArchivedSentence]) -> None:
        """Add sentences that are not there yet; durable on return. Raises StoreError."""
        self.drop_draft()
        known = self._known()
        ids = {each.sentence_id for _, each in known if each is not None}
        new = [_line(each) for each in sentences if each.sentence_id not in ids]
        self._write([*(line for line, _ in known), *new])

    def remove(self, is_gone: Callable[[ArchivedSentence], bool]) -> list[ArchivedSentence]:
        """Erase sentences: their bytes are overwritten on return. Gives them. Raises RecordDamaged or StoreError."""
        self.drop_draft()
        known = self.read()
        gone = [each for each in known if is_gone(each)]
        if gone:
            self._write([_line(each) for each in known if not is_gone(each)])
        return gone

    def forget(self, sentence_ids: Container[int]) -> None:
        """Erase these sentences and every damaged line: overwritten on return. Raises StoreError."""
        self.drop_draft()
        known = self._known()
        kept = [line for line, each in known if each is not None and each.sentence_id not in sentence_ids]
        if not kept:
            self.clear()
        elif len(kept) < len(known):
            self._write(kept)

    def clear(self) -> None:
        """Erase all of it, also what is damaged: overwritten on return. Raises StoreError."""
        self.drop_draft()
        with errors_named(self._path):
            if self._path.exists():
                overwrite_and_remove(self._disk, self._path)
                self._disk.sync_folder(self._path.parent)

    def drop_draft(self) -> None:
        """Erase what a write that broke off left: it may hold what is to be forgotten now."""
        draft = self._draft()
        with errors_named(draft):
            if draft.exists():
                overwrite_and_remove(self._disk, draft)
                self._disk.sync_folder(draft.parent)

    def _draft(self) -> Path:
        return self._path.with_name(_FILE + ".tmp")

    def _write(self, lines: Sequence[bytes]) -> None:
        draft = self._draft()
        with errors_named(self._path):
            self._disk.make_folder(self._path.parent)
            descriptor = self._disk.open_new(draft)
            try:
                self._disk.write(descriptor, [line + b"\n" for line in lines], 0)
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
                    self._disk.write(old, [bytes(self._disk.size(old))], 0)
                    self._disk.sync(old)


def _from_json(body: bytes) -> ArchivedSentence:
    """The sentence of a line. Raises FieldError."""
    given = Fields.read(body)
    role = given.text("role")
    if role not in ROLES or given.names - _NAMES:
        raise FieldError(f"role is {short(role)}" if role not in ROLES else f"{min(given.names - _NAMES)} is unknown")
    sealed = given.text("sealed") if "sealed" in given.names else ""
    try:
        from_text(sealed)
    except RecordDamaged as error:
        raise FieldError(f"sealed is {short(sealed)}") from error
    return ArchivedSentence(
        sentence_id=given.integer("sentence_id"),
        session_id=given.integer("session_id", hi=(1 << 32) - 1),
        session=given.text("session"),
        source=given.text("source", stray_bytes=True),
        role=ROLES[ROLES.index(role)],
        text=given.text("text", stray_bytes=True),
        sealed=sealed,
    )


def _line(sentence: ArchivedSentence) -> bytes:
    values = asdict(sentence)
    if not sentence.sealed:
        del values["sealed"]
    body = json.dumps(values).encode()
    return f"{xxh3_64_hexdigest(body)} ".encode() + body


def sealed(vault: Vault, key_id: bytes, sentence: ArchivedSentence) -> ArchivedSentence:
    """A sentence of an encrypted session as it may stand in the archive; another one as it is. Raises KeyMissing."""
    if not key_id:
        return sentence
    content = json.dumps({"source": sentence.source, "text": sentence.text}).encode()
    data = vault.seal(key_id, Place(Kind.ARCHIVED, sentence.session_id, sentence.sentence_id), content)
    return replace(sentence, source="", text="", sealed=to_text(data))


def unsealed(vault: Vault, key_id: bytes, sentence: ArchivedSentence) -> ArchivedSentence:
    """The sentence of `sealed`; as it is where the key is not there. Raises RecordDamaged."""
    if not sentence.sealed or not key_id or not vault.can_open(key_id):
        return sentence
    place = Place(Kind.ARCHIVED, sentence.session_id, sentence.sentence_id)
    content = vault.open(key_id, place, from_text(sentence.sealed))
    try:
        given = Fields.read(content)
        source, text = (given.text(name, stray_bytes=True) for name in ("source", "text"))
    except FieldError as error:
        raise RecordDamaged(f"archive: sentence {sentence.sentence_id}, opened: {error}") from error
    return replace(sentence, source=source, text=text, sealed="")
