"""Sealed bytes (FORMAT.md, section 17): AES-256-GCM with a session's key, bound to the place where they stand.

Knows keys and what is sealed with them; refuses to know files and rows. The package `cryptography` is imported when a
key is first used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import struct
from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from livingkv.errors import KeyMissing, RecordDamaged, StoreError
from livingkv.store.key_files import KEY_ID_BYTES, KeyFiles
from livingkv.store.records import Record, RecordFlags, RecordType, pack_record, unpack_record_header

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

_NONCE_BYTES = 12
_TAG_BYTES = 16
SEAL_BYTES = KEY_ID_BYTES + _NONCE_BYTES + _TAG_BYTES
"""By how much sealed bytes are longer than plain ones."""

_PLACE = struct.Struct("<BIQ")
SEALED_NAME = "sealed:"
"""How the digest of a source begins whose name is sealed."""
_EVENTS_WITH_CONTENT = ("create", "rename", "fork")


class Kind(IntEnum):
    """What sealed bytes are, besides the records of segments."""

    TAIL = RecordType.TAIL
    ARCHIVED = 6
    NAME = 7
    ASIDE = 8


class Place(NamedTuple):
    """Where sealed bytes belong: they open nowhere else."""

    kind: int
    session_id: int
    number: int


class _Key(NamedTuple):
    """The ciphers of one key."""

    records: AESGCM
    names: AESGCM
    name_nonces: bytes


class Vault:
    """The keys of one store, each read when it is first needed. Threads may share it."""

    def __init__(self, files: KeyFiles) -> None:
        self.files = files
        self._keys: dict[bytes, _Key] = {}

    def make_key(self) -> bytes:
        """The id of a new key, durable on return. Raises KeyMissing without `cryptography`, or StoreError."""
        _require_package()
        return self.files.make()

    def require(self, key_id: bytes, who: str) -> None:
        """Raise KeyMissing, naming `who` needs it, unless the key can be used; RecordDamaged if its file is."""
        self._key(key_id, who)

    def can_open(self, key_id: bytes) -> bool:
        """True without a key id, and where the key can be used: not where its file is missing, damaged or unreadable.
        `require` says which."""
        if key_id:
            try:
                self._key(key_id, "a session")
            except StoreError:
                return False
        return True

    def forget(self, key_id: bytes) -> None:
        """Keep the key in memory no longer."""
        self._keys.pop(key_id, None)

    def _key(self, key_id: bytes, who: str) -> _Key:
        known = self._keys.get(key_id)
        if known is None:
            key = self.files.read(key_id)
            if key is None:
                places = " or ".join(map(str, self.files.folders))
                raise KeyMissing(f"{who} is encrypted; its key is not in {places}: pass --key-folder (key_folder)")
            _require_package()
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            records, names = AESGCM(_subkey(key, "records")), AESGCM(_subkey(key, "names"))
            known = self._keys[key_id] = _Key(records, names, _subkey(key, "name nonces"))
        return known

    def seal(self, key_id: bytes, place: Place, data: bytes | memoryview) -> bytes:
        """Sealed bytes for a place. Raises KeyMissing."""
        nonce = os.urandom(_NONCE_BYTES)
        cipher = self._key(key_id, f"session {place.session_id}").records
        return key_id + nonce + cipher.encrypt(nonce, data, _PLACE.pack(*place))

    def open(self, key_id: bytes, place: Place, sealed: bytes | memoryview) -> bytes:
        """The bytes of `seal`. Raises RecordDamaged unless they were sealed for this place, or KeyMissing."""
        return _opened(self._key(key_id, f"session {place.session_id}").records, key_id, place, sealed)

    def seal_name(self, key_id: bytes, session_id: int, name: str, digest: str) -> str:
        """What stands for the name and digest of a source: the same for the same ones. Raises KeyMissing."""
        key = self._key(key_id, f"session {session_id}")
        data = name.encode("utf-8", "surrogateescape") + b"\0" + digest.encode()
        place = _PLACE.pack(Kind.NAME, session_id, 0)
        nonce = hmac.digest(key.name_nonces, place + data, hashlib.sha256)[:_NONCE_BYTES]
        sealed = key_id + nonce + key.names.encrypt(nonce, data, place)
        return SEALED_NAME + base64.b64encode(sealed).decode()

    def open_name(self, key_id: bytes, session_id: int, sealed: str) -> tuple[str, str]:
        """Name and digest of `seal_name`. Raises RecordDamaged or KeyMissing."""
        place = Place(Kind.NAME, session_id, 0)
        cipher = self._key(key_id, f"session {session_id}").names
        data = _opened(cipher, key_id, place, from_text(sealed.removeprefix(SEALED_NAME)))
        name, _, digest = data.rpartition(b"\0")
        return name.decode("utf-8", "surrogateescape"), digest.decode()


def key_id_of(sealed: bytes) -> bytes:
    """The id of the key that sealed bytes were sealed with."""
    return sealed[:KEY_ID_BYTES]


def to_text(sealed: bytes) -> str:
    """Sealed bytes for JSON."""
    return base64.b64encode(sealed).decode()


def from_text(text: str) -> bytes:
    """The bytes of `to_text`. Raises RecordDamaged."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise RecordDamaged(f"sealed bytes: {error}") from error


def seal_record(vault: Vault, record: Record, key_id_for: Callable[[int], bytes]) -> Record:
    """A record as it is to be written: sealed if its session has a key, and it has content. Raises KeyMissing."""
    header = unpack_record_header(record[0], 0, 0)
    key_id = key_id_for(header.session_id)
    if not key_id or header.flags & RecordFlags.SEALED or not _has_content(header.record_type, record[1]):
        return record
    place = Place(header.record_type, header.session_id, header.number)
    flags = RecordFlags(header.flags) | RecordFlags.SEALED
    payload = vault.seal(key_id, place, record[1])
    return pack_record(RecordType(header.record_type), flags, *place[1:], header.sequence, payload)


def _has_content(record_type: int, payload: bytes | memoryview) -> bool:
    return record_type != RecordType.SESSION or json.loads(bytes(payload))["event"] in _EVENTS_WITH_CONTENT


def _opened(cipher: AESGCM, key_id: bytes, place: Place, sealed: bytes | memoryview) -> bytes:
    from cryptography.exceptions import InvalidTag

    nonce_end = KEY_ID_BYTES + _NONCE_BYTES
    if len(sealed) < SEAL_BYTES or bytes(sealed[:KEY_ID_BYTES]) != key_id:
        raise RecordDamaged("it is not sealed with the session's key")
    try:
        return cipher.decrypt(bytes(sealed[KEY_ID_BYTES:nonce_end]), sealed[nonce_end:], _PLACE.pack(*place))
    except InvalidTag as error:
        raise RecordDamaged("it does not open with the session's key: it was changed, or belongs elsewhere") from error


def _subkey(key: bytes, use: str) -> bytes:
    return hmac.digest(key, f"livingkv {use} 1".encode(), hashlib.sha256)


def _require_package() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError as error:
        raise KeyMissing("encrypted sessions need the package cryptography: pip install cryptography") from error
