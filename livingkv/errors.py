"""Every error that livingkv raises on purpose, as one tree.

    LivingKVError
    ├── InputError              what the caller gave cannot be used; nothing was changed
    │   ├── SourceError             a file or text to ingest (missing, empty, binary, not UTF-8, one endless line)
    │   ├── SettingError            a setting that the store, the model or the machine cannot be used with
    │   ├── SentenceForgotten       a sentence id whose sentence was forgotten
    │   └── QuestionError           a question or message (empty, longer than the hot window)
    ├── ModelError              the model itself
    │   ├── ModelNotFound           no such folder, file, hub id or short name, or it could not be fetched
    │   ├── ModelDamaged            a checksum or a tensor does not match
    │   ├── UnsupportedModel        no growing rotary KV cache (Mamba, RWKV, hybrids, sliding windows, ...)
    │   ├── CodecRefused            the self-test gate found the page codec unfit for this model
    │   ├── PackError               a pack of experts cannot be written, is damaged or is of another checkpoint
    │   ├── ExpertReadError         bytes of an expert cannot be read
    │   │   └── CheckpointChanged       a file of the checkpoint is not the one that was indexed
    │   └── StagedRowsError         rows of a table were asked for that were not staged for this pass
    ├── StoreError              the durable store
    │   ├── StoreNotFound           no store at that path
    │   ├── StoreHalfErased         its erasing was begun and is to be finished
    │   ├── StoreUnwritable         no permission, not a folder, read-only file system
    │   ├── StoreLocked             another process writes to it
    │   ├── StoreFull               no disk space; the last commit stands
    │   ├── FingerprintMismatch     written by another model, codec or page size
    │   ├── FormatUnsupported       a format version this code does not read
    │   ├── SessionNotFound         no session of that name or id
    │   ├── SessionExists           the name is taken
    │   ├── KeyMissing              an encrypted session's key, or the package that uses it, is not there
    │   └── RecordDamaged           bytes failed their checksum or are missing
    │       ├── PageDamaged             the same for a KV page: rebuild it from the session's text
    │       │   └── PageDropped             its KV was given up (quota, quarantine, forgetting, text only)
    │       └── SnapshotDamaged         the same for a snapshot of a model's state: read the tokens again
    └── IndexFault              the sentence index (always rebuildable from the store)
        ├── EmbedderMismatch        vectors of another embedder
        └── IndexDamaged            cannot be read; rebuild

Messages are one line and say what to do. This module knows no other module of livingkv.
"""

from __future__ import annotations


class LivingKVError(Exception):
    """Base of all errors that livingkv raises on purpose. `str(error)` is one line fit for a person."""


class InputError(LivingKVError):
    """Bad input: names the field, what was given and what is allowed. Nothing was changed."""

    def __init__(self, field: str, given: object, allowed: str) -> None:
        super().__init__(f"{field}: got {given}; {allowed}")
        self.field = field
        self.given = given
        self.allowed = allowed


class SourceError(InputError):
    """A file or text to ingest cannot be used."""


class SettingError(InputError):
    """A setting that cannot be used with this store, this model or this machine."""


class SentenceForgotten(InputError):
    """The sentence was there and was forgotten."""


class KeyReused(InputError):
    """The idempotency key came with another request before."""


class QuestionError(InputError):
    """A question or chat message cannot be used."""


class ModelError(LivingKVError):
    """The model cannot be used."""


class ModelNotFound(ModelError):
    """No such model, or it could not be fetched."""


class ModelDamaged(ModelError):
    """The model's bytes are not the expected ones."""


class UnsupportedModel(ModelError):
    """The model has no growing rotary KV cache that could be stored."""


class CodecRefused(ModelError):
    """The page codec failed its self-test gate on this model."""


class PackError(ModelError):
    """A pack of experts cannot be written, is damaged, or is one of another checkpoint."""


class PackOfAnother(PackError):
    """A pack of experts is one of another checkpoint, or of this one before it changed."""


class ExpertReadError(ModelError):
    """Bytes of an expert cannot be read. `path` is the file and `offset` the first byte that was wanted of it."""

    def __init__(self, reason: str, *, path: str, offset: int) -> None:
        super().__init__(f"{path} at byte {offset}: {reason}")
        self.path = path
        self.offset = offset


class CheckpointChanged(ExpertReadError):
    """A file of the checkpoint is not the one that was indexed: load the model again."""


class StagedRowsError(ModelError):
    """Rows of a table are asked for that were not staged for this pass, or not for these tokens."""


class StoreError(LivingKVError):
    """The durable store cannot do what was asked."""


class StoreNotFound(StoreError):
    """There is no store at the path."""


class StoreHalfErased(StoreError):
    """The store was being erased: part of it is gone, and erasing is all that can be done with it."""


class StoreUnwritable(StoreError):
    """The path cannot be written."""


class StoreLocked(StoreError):
    """Another process holds the store's writer lock."""


class StoreFull(StoreError):
    """No disk space is left. The last commit stands."""


class FingerprintMismatch(StoreError):
    """The store was written by another model, codec or page size."""


class FormatUnsupported(StoreError):
    """The store has a format version that this code does not read."""


class SessionNotFound(StoreError):
    """There is no such session."""


class SessionExists(StoreError):
    """A session of that name exists already."""


class KeyMissing(StoreError):
    """The key of an encrypted session, or the package that uses it, is not there."""


class RecordDamaged(StoreError):
    """Stored bytes failed their checksum or are missing.

    `segment` is the segment's number and `offset` the record's byte offset in it, where they are known.
    """

    def __init__(self, message: str, *, segment: int | None = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.segment = segment
        self.offset = offset


class PageDamaged(RecordDamaged):
    """A KV page failed its checksum or is missing. `session_id` and `page` say which."""

    def __init__(
        self, message: str, *, session_id: int, page: int, segment: int | None = None, offset: int | None = None
    ) -> None:
        super().__init__(message, segment=segment, offset=offset)
        self.session_id = session_id
        self.page = page


class PageDropped(PageDamaged):
    """A page or tail whose KV is not kept; nothing is damaged. It can be rebuilt from the session's text."""


class SnapshotDamaged(RecordDamaged):
    """A snapshot of a model's state is not what was written, or not of these tokens: read the tokens again."""


class IndexFault(LivingKVError):
    """The sentence index cannot do what was asked. It can always be rebuilt from the store."""


class EmbedderMismatch(IndexFault):
    """The index holds vectors of another embedder."""


class IndexDamaged(IndexFault):
    """The index cannot be read."""
