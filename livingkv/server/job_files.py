"""The texts of accepted ingests on disk, until they are done: each job's text and what it is to become.

Knows one tenant's folder for this, beside the tenant's store; knows no model. A text is durable before its job is
told of, readable by the service's user alone, sealed where it is for an encrypted session, and overwritten at the end.
"""

from __future__ import annotations

import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

import xxhash

from livingkv.errors import RecordDamaged
from livingkv.json_fields import FieldError, Fields
from livingkv.store.disk import Disk, errors_named
from livingkv.store.overwriting import overwrite_and_remove

LOG = logging.getLogger("livingkv.server")
WORK = ".work"
"""Behind a tenant's name: its folder for texts and files on their way. No tenant's name has a dot."""
_NAME = re.compile(r"job-[0-9a-f]{24}")
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Accepted:
    """An ingest that was accepted. session: its stored name. n_bytes: of the text. digest: of what is kept of it (XXH3,
    128 bits). sealed_for: the encrypted session whose key opens that."""

    job_id: str
    user: str
    session: str
    source: str
    kv: bool
    n_bytes: int
    digest: str
    created_ms: int
    sealed_for: int | None = None


class JobFiles:
    """The accepted ingests of one tenant. All methods block. They raise StoreFull, StoreUnwritable or StoreError."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = Disk()

    def keep(self, accepted: Accepted, data: bytes) -> None:
        """Keep a text, or what it was sealed to; durable on return, or not there."""
        with errors_named(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._disk.sync_folder(self._folder.parent)
            try:
                self._write(self._text(accepted.job_id), data)
                record, draft = {"version": _VERSION, **asdict(accepted)}, self._draft(accepted.job_id)
                self._write(draft, json.dumps(record, ensure_ascii=False).encode())
                self._disk.rename(draft, self._record(accepted.job_id))
                self._disk.sync_folder(self._folder)
            except OSError:
                self._take_away(accepted.job_id)
                raise

    def data(self, accepted: Accepted) -> bytes:
        """What `keep` kept. Raises RecordDamaged where it is something else."""
        with errors_named(self._folder):
            data = self._text(accepted.job_id).read_bytes()
        if digest_of(data) != accepted.digest:
            raise RecordDamaged(f"{self._text(accepted.job_id)} was changed: ingest the text again")
        return data

    def remove(self, job_id: str) -> None:
        """Overwrite a text and remove it; what is not there is no error."""
        with errors_named(self._folder):
            self._take_away(job_id)

    def unfinished(self) -> list[Accepted]:
        """What was accepted and not removed, oldest first; remains of what was never accepted are removed. A record
        that cannot be read is left alone, and logged."""
        if not self._folder.is_dir():
            return []
        found = []
        with errors_named(self._folder):
            for job_id in sorted(
                {path.name.partition(".")[0] for path in self._folder.iterdir() if _NAME.match(path.name)}
            ):
                if not self._record(job_id).exists():
                    self._take_away(job_id)
                    continue
                try:
                    found.append(self._read(job_id))
                except FieldError as error:
                    LOG.error("%s: %s: the ingest is left alone", self._record(job_id), error)
        return sorted(found, key=lambda each: (each.created_ms, each.job_id))

    def _read(self, job_id: str) -> Accepted:
        fields = Fields.read(self._record(job_id).read_bytes())
        fields.integer("version", lo=_VERSION, hi=_VERSION)
        return Accepted(
            job_id=job_id,
            user=fields.text("user"),
            session=fields.text("session"),
            source=fields.text("source"),
            kv=fields.flag("kv"),
            n_bytes=fields.integer("n_bytes"),
            digest=fields.text("digest"),
            created_ms=fields.integer("created_ms"),
            sealed_for=fields.integer("sealed_for") if fields.has("sealed_for") else None,
        )

    def _write(self, path: Path, data: bytes) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            self._disk.write(descriptor, [data], 0)
            self._disk.sync(descriptor)
        finally:
            os.close(descriptor)

    def _take_away(self, job_id: str) -> None:
        """The record first: a text without one was never accepted, or is done."""
        self._disk.remove(self._record(job_id))
        for path in (self._draft(job_id), self._text(job_id)):
            overwrite_and_remove(self._disk, path)
        self._disk.sync_folder(self._folder)

    def _text(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.text"

    def _draft(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.draft"

    def _record(self, job_id: str) -> Path:
        return self._folder / f"{job_id}.json"


def digest_of(data: bytes) -> str:
    """What tells whether kept bytes are as they were."""
    return xxhash.xxh3_128_hexdigest(data)
