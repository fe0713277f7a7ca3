"""An encrypted session whose every trace can be looked for, and ways to open its store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from livingkv.store import Append, Disk, SentenceRecord, Store
from tests.store.store_cases import (
    PAGE_TOKENS,
    SessionModel,
)

TEXT = b"The heron nests behind the mill. Nobody else knows it. "
SOURCE = "diary-of-the-miller.md"
DIGEST = "5ec4e7d16e57"
IDS = np.random.default_rng(3).integers(1 << 17, 1 << 18, 11, dtype=np.int32)
SECRETS = [b"heron", b"Nobody else", SOURCE.encode(), DIGEST.encode()]


def secret_append(model: SessionModel) -> Append:
    """An append whose text, ids, pages and tail can be searched for."""
    byte, first, n_tokens = len(model.text), len(model.ids), len(IDS)
    n_pages = (first + n_tokens) // PAGE_TOKENS - len(model.pages)
    return Append(
        session_id=model.session_id,
        first_token=first,
        token_ids=IDS,
        text=TEXT,
        sentences=(
            SentenceRecord(byte, byte + 33, first, first + 6),
            SentenceRecord(byte + 33, byte + len(TEXT), first + 6, first + n_tokens),
        ),
        source=SOURCE,
        role="document",
        pages=tuple(f"page of keys and values {number} ".encode() * 9 for number in range(n_pages)),
        tail=b"tail of keys and values " * 9 if (first + n_tokens) % PAGE_TOKENS else b"",
        source_digest=DIGEST,
        end_of_source=True,
    )


def filled(store: Store, name: str = "diary", n_appends: int = 3) -> SessionModel:
    """An encrypted session in a store; what it holds."""
    model = SessionModel(store.create_session(name, encrypt=True).session_id, name)
    for _ in range(n_appends):
        append = secret_append(model)
        store.append(append)
        model = model.applied(append)
    return model


def needles() -> list[bytes]:
    """What must be in no file: text, sources, KV, and token ids as they are stored when they are not compressed."""
    ids = IDS.view(np.uint8).reshape(-1, 4)[:, :3]
    return [*SECRETS, np.ascontiguousarray(ids.T).tobytes(), b"page of keys", b"tail of keys"]


def in_the_clear(root: Path) -> list[tuple[str, bytes]]:
    """Which secrets are in which files."""
    files = [(path, path.read_bytes()) for path in root.rglob("*") if path.is_file()]
    return [(str(path), needle) for path, data in files for needle in needles() if needle in data]


def open_again(root: Path, *, key_folder: Path | None = None, disk: Disk | None = None) -> Store:
    """An existing store, for writing."""
    return Store.open(root, mode="write", catalog_bytes=1 << 24, key_folder=key_folder, disk=disk)


def keys_in(folder: Path) -> list[Path]:
    """Key files."""
    return sorted(folder.glob("*.key"))
