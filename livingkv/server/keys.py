"""API keys: made, listed, revoked, and looked up in constant time. The file holds salted digests, never a key.

Knows the file and what a key allows; knows no HTTP. A key is `lkv_ID_SECRET` with 256 random bits, so a fast digest is
enough: there is nothing to guess.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from hashlib import blake2b
from hmac import compare_digest
from pathlib import Path
from typing import Literal, get_args

from filelock import FileLock

from livingkv.errors import InputError
from livingkv.json_fields import FieldError, Fields
from livingkv.regular_files import read_regular, require_regular

Scope = Literal["read", "write", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
TENANT = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
DEFAULT_TENANT = "default"
_KEY = re.compile(r"lkv_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_VERSION = 1
_LATEST_S = 1e11


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is known of a key. forwards_users: it is a proxy's, whose headers say for whom it asks."""

    key_id: str
    tenant: str
    name: str
    scopes: tuple[Scope, ...]
    salt: str
    digest: str
    created_s: float
    forwards_users: bool = False

    def allows(self, scope: Scope) -> bool:
        """Admin allows everything, write allows reading."""
        order = SCOPES.index(scope)
        return any(SCOPES.index(own) >= order for own in self.scopes)


def make_key(path: Path, tenant: str, name: str, scopes: Collection[str], *, forwards_users: bool = False) -> str:
    """Add a key to the file, made where there is none, durably. The key, which nothing can show again. Blocks while
    another process changes the file.

    Raises InputError for a tenant or a scope that may not be, or where the file cannot be read or written.
    """
    if not TENANT.fullmatch(tenant):
        raise InputError("tenant", repr(tenant), "1 to 64 of a-z, 0-9, - and _ are allowed, the first no sign")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InputError("scope", ", ".join(scopes) or "none", f"{', '.join(SCOPES)} are allowed")
    secret, salt = secrets.token_urlsafe(32), secrets.token_hex(16)
    key_id, wanted = secrets.token_hex(6), _ordered(scopes)
    made = ApiKey(key_id, tenant, name, wanted, salt, _digest(secret, salt), time.time(), forwards_users)
    with _changing(path):
        _write(path, [*(read_keys(path) if path.exists() else ()), made])
    return f"lkv_{key_id}_{secret}"


def revoke_key(path: Path, key_id: str) -> ApiKey:
    """Take a key out of the file, durably. Blocks while another process changes the file. Raises InputError where there
    is none of this id, or where the file cannot be read or written."""
    read_keys(path)  # a file that is not there gets no lock beside it
    with _changing(path):
        keys = read_keys(path)
        gone = next((key for key in keys if key.key_id == key_id), None)
        if gone is None:
            raise InputError("key id", repr(key_id), f"those of {path} are allowed: keys list shows them")
        _write(path, [key for key in keys if key is not gone])
    return gone


def read_keys(path: Path) -> list[ApiKey]:
    """The keys of a file. Raises InputError where it cannot be read as such, or a later version wrote it."""
    try:
        return _keys_of(read_regular(path))
    except OSError as error:
        raise InputError("keys file", path, f"a file of `livingkv keys add` is allowed ({error.strerror})") from error
    except FieldError as error:
        raise InputError("keys file", path, f"a file of `livingkv keys add` is allowed: in this one {error}") from error


class KeyRing:
    """The keys of one file, read again when it changes. Not thread-safe."""

    def __init__(self, path: Path) -> None:
        """Raises InputError as `read_keys`, or where the file has no key."""
        self._path = path
        self._keys: dict[str, ApiKey] = {}
        self._stamp: tuple[int, int] | None = None
        if not read_keys(path):
            raise InputError("keys file", path, "at least one key is needed: make it with `livingkv keys add`")

    def _refresh(self) -> None:
        require_regular(self._path)
        status = self._path.stat()
        stamp = (status.st_mtime_ns, status.st_ino)
        if stamp != self._stamp:
            self._keys = {key.key_id: key for key in read_keys(self._path)}
            self._stamp = stamp

    def find(self, presented: str) -> ApiKey | None:
        """What a presented key allows, None for one that is unknown. Takes the same time for a wrong secret as for a
        right one."""
        found = _KEY.fullmatch(presented)
        if found is None:
            return None
        key = self.known(found[1])
        salt, digest = (key.salt, key.digest) if key is not None else ("00" * 16, "00" * 32)
        return key if compare_digest(_digest(found[2], salt), digest) else None

    def known(self, key_id: str) -> ApiKey | None:
        """The key of this id as the file has it now, None where there is none (any more)."""
        try:
            self._refresh()
        except (OSError, InputError):
            self._keys, self._stamp = {}, None  # a file that is gone or damaged lets nobody in
        return self._keys.get(key_id)


def _digest(secret: str, salt: str) -> str:
    return blake2b(secret.encode(), salt=bytes.fromhex(salt), digest_size=32).hexdigest()


def _ordered(scopes: Collection[str]) -> tuple[Scope, ...]:
    return tuple(scope for scope in SCOPES if scope in scopes)


def _keys_of(data: bytes) -> list[ApiKey]:
    file = Fields.read(data)
    file.integer("version", lo=_VERSION, hi=_VERSION)
    entries = file.value("keys")
    if not isinstance(entries, list):
        raise FieldError("keys is not a list")
    return [_key_of(Fields(entry, within=f"keys[{n}].")) for n, entry in enumerate(entries)]


def _key_of(entry: Fields) -> ApiKey:
    scopes = entry.texts("scopes")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise FieldError(f"scopes of a key are not of {', '.join(SCOPES)}")
    created_s = entry.value("created_s")
    if isinstance(created_s, bool) or not isinstance(created_s, (int, float)) or not 0 <= created_s < _LATEST_S:
        raise FieldError("created_s of a key is not a time")
    return ApiKey(
        key_id=_matching(entry, "key_id", r"[0-9a-f]{12}"),
        tenant=_matching(entry, "tenant", TENANT.pattern),
        name=entry.text("name", stray_bytes=True),
        scopes=_ordered(scopes),
        salt=_matching(entry, "salt", r"[0-9a-f]{32}"),
        digest=_matching(entry, "digest", r"[0-9a-f]{64}"),
        created_s=created_s,
        forwards_users=entry.flag("forwards_users"),
    )


def _matching(entry: Fields, name: str, pattern: str) -> str:
    value = entry.text(name)
    if not re.fullmatch(pattern, value):
        raise FieldError(f"{name} of a key is not what it must be")
    return value


@contextmanager
def _changing(path: Path) -> Iterator[None]:
    """Hold the file's lock: two that read, change and write it at once would lose a key or bring a revoked one back."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_name(f".{path.name}.lock"), mode=0o600):
            yield
    except OSError as error:
        raise InputError("keys file", path, f"one that can be written is needed ({error.strerror})") from error


def _write(path: Path, keys: list[ApiKey]) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"version": _VERSION, "keys": [asdict(key) for key in keys]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
