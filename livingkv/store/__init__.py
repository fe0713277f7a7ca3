"""The durable store. Bytes: FORMAT.md. Everything public is here; nothing in it knows torch or a model."""

from livingkv.store.appending import check_session_name
from livingkv.store.disk import Disk, Step
from livingkv.store.erasing_store import erase_store, what_erasing_takes
from livingkv.store.fingerprint import Fingerprint
from livingkv.store.items import StoredRequest
from livingkv.store.making import require_place
from livingkv.store.rows import (
    Append,
    ArchivedSentence,
    ChunkRow,
    DefragReport,
    ForgetReceipt,
    IdempotencyKey,
    PortableChunk,
    RebuildReport,
    Role,
    Sentence,
    SentenceRecord,
    SentenceWeight,
    SessionRow,
    SourceRow,
    StoreStats,
    TokenIds,
)
from livingkv.store.store import Store
from livingkv.store.store_path import BEFORE_MIGRATION, MIGRATING
from livingkv.store.transfer import portable_text, require_portable

__all__ = [
    "BEFORE_MIGRATION",
    "MIGRATING",
    "Append",
    "ArchivedSentence",
    "ChunkRow",
    "DefragReport",
    "Disk",
    "Fingerprint",
    "ForgetReceipt",
    "IdempotencyKey",
    "PortableChunk",
    "RebuildReport",
    "Role",
    "Sentence",
    "SentenceRecord",
    "SentenceWeight",
    "SessionRow",
    "SourceRow",
    "Step",
    "Store",
    "StoreStats",
    "StoredRequest",
    "TokenIds",
    "check_session_name",
    "erase_store",
    "portable_text",
    "require_place",
    "require_portable",
    "what_erasing_takes",
]
