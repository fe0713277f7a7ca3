"""What a service is started with: one frozen dataclass, checked when it is made.

Knows names, units and allowed ranges; knows nothing of how they are used.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from livingkv.errors import InputError
from livingkv.regular_files import is_file
from livingkv.settings import Settings

LogFormat = Literal["text", "json"]

_LEAST = {
    "max_body_bytes": 1024,
    "max_ingest_bytes": 1024,
    "max_import_bytes": 1024,
    "max_new_tokens": 1,
    "default_new_tokens": 1,
    "max_uploads": 1,
    "max_upload_bytes": 1024,
    "max_sessions": 1,
    "max_tenant_bytes": 1 << 20,
    "requests_per_minute": 1,
    "state_ram_bytes": 0,
    "state_disk_bytes": 0,
    "n_waiting": 1,
    "n_side_by_side": 1,
    "max_batch": 1,
    "context_tokens": 1,
    "idle_s": 0.01,
    "stop_s": 0,
}
_MOST_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """A service over the stores in `folder`, one for each tenant. Raises InputError for what is out of range.

    host: an address of this machine; one that is not loopback needs `keys_file`.
    settings: of every tenant's memory. n_waiting: requests of one tenant that may wait; n_side_by_side: requests whose
    steps take turns on the model, each with a hot window of its own. max_batch: replies that share a forward pass; with
    1 each is computed as it is alone, to the last bit. max_ingest_bytes, max_import_bytes: a text to ingest, and a
    file to import; max_body_bytes: any other body. context_tokens: prompt and reply together, None for what the
    model was trained for. stop_s: how long streams may go on after SIGTERM.
    state_ram_bytes, state_disk_bytes: of each tenant, for the states of a model that is not of plain keys and values.
    idle_s: after so long without work, sessions leave device memory and RAM.
    allowed_hosts, allowed_origins: names in Host headers, and web pages, besides the service's own.
    """

    folder: Path
    host: str = "127.0.0.1"
    port: int = 8345
    keys_file: Path | None = None
    settings: Settings = field(default_factory=Settings)
    n_waiting: int = 64
    n_side_by_side: int = 8
    max_batch: int = 8
    context_tokens: int | None = None
    default_new_tokens: int = 1024
    max_new_tokens: int = 1 << 14
    max_body_bytes: int = 1 << 22
    max_ingest_bytes: int = 1 << 26
    max_import_bytes: int = 1 << 32
    max_uploads: int = 64
    max_upload_bytes: int = 1 << 28
    max_sessions: int = 100_000
    max_tenant_bytes: int | None = None
    requests_per_minute: int | None = None
    state_ram_bytes: int = 1 << 30
    state_disk_bytes: int = 1 << 33
    idle_s: float = 60.0
    stop_s: float = 4.0
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    log_format: LogFormat = "text"

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            kind = (int, float) if name.endswith("_s") else int
            if value is not None and not (isinstance(value, kind) and not isinstance(value, bool) and value >= least):
                raise InputError(name, value, f"{least} or more is allowed")
        for name in ("idle_s", "stop_s"):
            if getattr(self, name) > _MOST_SECONDS:
                raise InputError(name, getattr(self, name), f"at most {_MOST_SECONDS} seconds are allowed")
        if self.log_format not in get_args(LogFormat):
            raise InputError("log_format", repr(self.log_format), f"one of {get_args(LogFormat)} is allowed")
        if self.max_upload_bytes < self.max_body_bytes:
            allowed = f"max_body_bytes, {self.max_body_bytes}, or more is allowed"
            raise InputError("max_upload_bytes", self.max_upload_bytes, allowed)
        if not 0 <= self.port < 1 << 16:
            raise InputError("port", self.port, "0 (any free one) to 65535 is allowed")
        if self.keys_file is None and not is_loopback(self.host):
            raise InputError("host", self.host, "without --keys (keys_file) only this machine is served: 127.0.0.1")
        if is_file(self.folder / "manifest.json"):
            raise InputError(
                "folder", self.folder, "a folder of stores is allowed, one for each tenant: this is a store"
            )


def is_loopback(host: str) -> bool:
    """True for an address or name that other machines cannot reach."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
