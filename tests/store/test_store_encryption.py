"""Encrypted sessions: every verb works on them, nothing of them is in the clear in any file, and without the key or in
another place nothing opens."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from xxhash import xxh3_64_intdigest

from livingkv.errors import InputError, KeyMissing, PageDamaged, RecordDamaged, SessionNotFound
from livingkv.store import Append, Disk, SentenceRecord, Step, Store
from livingkv.store.key_files import KEYS
from livingkv.store.making import SEGMENTS
from livingkv.store.records import RECORD_HEADER_BYTES
from tests.store.store_cases import (
    FINGERPRINT,
    PAGE_TOKENS,
    SessionModel,
    assert_session,
    assert_whole,
    make_append,
    new_store,
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


def test_the_secrets_are_seen_where_they_are(folder: Path) -> None:
    """The search of these tests finds what a session in the clear holds."""
    with new_store(folder / "s") as store:
        model = SessionModel(store.create_session("diary").session_id, "diary")
        store.append(secret_append(model))
    found = {needle for _, needle in in_the_clear(folder)}
    assert found == set(needles())


def test_what_is_sealed_reads_back_and_is_in_no_file(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
        assert store.session("diary").encrypted and store.session("diary").sources == (SOURCE,)
        source = store.source(model.session_id, SOURCE, DIGEST)
        assert source is not None and source.complete and source.n_bytes == 3 * len(TEXT)
        assert store.source(model.session_id, SOURCE, "another") is None
        assert [row.name for row in store.sources(model.session_id)] == [SOURCE]
        assert_session(store, model)
        assert_whole(store)
    with open_again(folder / "s") as store:
        assert_session(store, model)
        assert_whole(store)
    assert in_the_clear(folder) == []


def test_every_verb_leaves_nothing_in_the_clear(folder: Path) -> None:
    root = folder / "s"
    with new_store(root, segment_bytes=1 << 12) as store:
        model = filled(store, n_appends=5)
        store.rename(model.session_id, "journal")
        store.pin(model.session_id)
        store.drop_pages(model.session_id, [0, 1])
        store.replace_pages(model.session_id, {0: model.pages[0]}, tail=model.tail)
        fork = store.fork(model.session_id, "copy")
        model = replace(model, name="journal").without_pages(frozenset({1}))
        twin = replace(model, session_id=fork.session_id, name="copy")
        assert_session(store, twin)
        append = secret_append(twin)
        store.append(append)
        twin = twin.applied(append)
        first = next(store.sentences_of(model.session_id))[0]
        store.recharge([first.sentence_id])
        receipt = store.prune(model.session_id, keep=9)
        assert len(receipt.sentence_ids) == 1 and receipt.n_keys == 0
        (archived,) = store.archived()
        assert archived.source == SOURCE and archived.text.encode() in TEXT
        store.forget_sentences([receipt.sentence_ids[0] + 1] if receipt.sentence_ids[0] != 8 else [9])
        store.defrag()
        assert_session(store, twin)
        assert_whole(store)
    with open_again(root) as store:
        assert_session(store, twin)
        store.forget_source(store.session("journal").session_id, SOURCE)
        assert store.archived() == [] and store.session("journal").sources == ()
        assert_whole(store)
    assert in_the_clear(folder) == []


def test_random_appends_read_back(folder: Path) -> None:
    rng = random.Random(5)
    with new_store(folder / "s", segment_bytes=1 << 11) as store:
        models = [SessionModel(store.create_session(name, encrypt=name == "a").session_id, name) for name in ("a", "b")]
        for number in range(30):
            which = rng.randrange(2)
            append = make_append(models[which], rng, source=f"source {number % 3}")
            store.append_all([append])
            models[which] = models[which].applied(append)
        for model in models:
            assert_session(store, model)
        assert_whole(store)
    with open_again(folder / "s") as store:
        for model in models:
            assert_session(store, model)


def test_keys_elsewhere_are_needed_and_named(folder: Path) -> None:
    root, keys = folder / "s", folder / "keys"
    with new_store(root):
        pass
    with open_again(root, key_folder=keys) as store:
        model = filled(store)
        plain = SessionModel(store.create_session("plain").session_id, "plain")
        append = replace(secret_append(plain), text=b"", sentences=())
        store.append(append)
        plain = plain.applied(append)
    assert not (root / KEYS).exists() and len(keys_in(keys)) == 1
    with open_again(root) as store:
        row = store.session("diary")
        assert row.encrypted and row.sources == () and not store.has_key(row.session_id)
        assert_session(store, plain)
        assert_whole(store)  # checksums are over what is sealed
        assert store.sentences_after(None, 100) == []
        session_id = model.session_id
        for read in (
            lambda: store.text(session_id),
            lambda: store.token_ids(session_id, 0, 3),
            lambda: store.read_pages(session_id, [0]),
            lambda: store.read_tail(session_id),
            lambda: store.fork(session_id, "copy"),
            lambda: store.rename(session_id, "other"),
            lambda: store.append(secret_append(model)),
            lambda: store.source(session_id, SOURCE, DIGEST),
            lambda: store.export_session(session_id, folder / "x", decrypt=True),
        ):
            with pytest.raises(KeyMissing, match=r"'diary' is encrypted; its key is not in .*: pass --key-folder"):
                read()
        store.pin(session_id)
        store.drop_pages(session_id, [0])
        store.defrag(least_dead=0.0)
    with open_again(root, key_folder=keys) as store:
        assert_session(store, model.without_pages(frozenset({0})))


def test_forgetting_destroys_the_key(folder: Path) -> None:
    root, aside = folder / "s", folder / "aside"
    with new_store(root) as store:
        model = filled(store)
        (key,) = [path.read_bytes() for path in keys_in(root / KEYS)]
        shutil.copytree(root, aside)
        receipt = store.forget_session(model.session_id)
        assert (receipt.n_keys, receipt.keys_left) == (1, ())
        with pytest.raises(SessionNotFound):
            store.session("diary")
    everything = b"".join(path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert keys_in(root / KEYS) == [] and key[-40:-8] not in everything
    shutil.rmtree(aside / KEYS)  # a backup of the segments, and no key anywhere
    with open_again(aside) as store, pytest.raises(KeyMissing):
        store.text(model.session_id)


def test_the_key_goes_with_the_last_of_the_family(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
        fork = store.fork(model.session_id, "copy")
        assert store.forget_session(model.session_id).n_keys == 0
        assert_session(store, replace(model, session_id=fork.session_id, name="copy"))
        assert store.forget_everything().n_keys == 1
        assert keys_in(folder / "s" / KEYS) == []


def test_a_session_whose_key_somebody_removed_can_be_forgotten(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
    (key,) = keys_in(folder / "s" / KEYS)
    key.unlink()
    with open_again(folder / "s") as store:
        receipt = store.forget_session(model.session_id)
        assert (receipt.n_keys, receipt.keys_left) == (0, (key.name,))
        assert store.sessions() == []
        assert_whole(store)


def segment_bytes(root: Path) -> dict[Path, bytearray]:
    """All segments."""
    return {path: bytearray(path.read_bytes()) for path in sorted((root / SEGMENTS).glob("*.seg"))}


def resealed(data: bytearray, offset: int, payload: bytes) -> None:
    """Put a payload in the place of a record's, its checksums made right again, as one would who knows the format."""
    start = offset + RECORD_HEADER_BYTES
    data[start : start + len(payload)] = payload
    data[offset + 32 : offset + 40] = xxh3_64_intdigest(payload).to_bytes(8, "little")
    data[offset + 40 : offset + 48] = xxh3_64_intdigest(bytes(data[offset : offset + 40])).to_bytes(8, "little")


@pytest.mark.parametrize("how", ["flip", "swap", "clear"])
def test_tampering_is_damage_even_with_right_checksums(folder: Path, how: str) -> None:
    root = folder / "s"
    with new_store(root) as store:
        model = filled(store)
        places = [wanted.location for wanted in store.locate_pages(model.session_id, [0, 1])]
    (path,) = [path for path in segment_bytes(root) if int(path.stem) == places[0].segment]
    data = segment_bytes(root)[path]
    payloads = [bytes(data[p.offset + RECORD_HEADER_BYTES :][: p.length]) for p in places]
    assert len(payloads[0]) == len(payloads[1])
    changed = {
        "flip": [payloads[0][:50] + bytes([payloads[0][50] ^ 1]) + payloads[0][51:], payloads[1]],
        "swap": payloads[::-1],
        "clear": [b"\0" * len(payloads[0]), payloads[1]],
    }[how]
    for place, payload in zip(places, changed, strict=True):
        resealed(data, place.offset, payload)
    path.write_bytes(data)
    with open_again(root) as store:
        for page in (0, 1) if how == "swap" else (0,):
            with pytest.raises(PageDamaged, match=f"page {page} of session"):
                store.read_pages(model.session_id, [page])
        assert len(store.check().problems) == (2 if how == "swap" else 1)


def test_a_chunk_of_another_session_does_not_open(folder: Path) -> None:
    root = folder / "s"
    with new_store(root) as store:
        first, second = filled(store, "one", 1), filled(store, "two", 1)
        with store._catalog.read() as snapshot:
            places = [snapshot.chunk(model.session_id, 0).location for model in (first, second)]
    path = root / SEGMENTS / f"{places[0].segment:08d}.seg"
    data = bytearray(path.read_bytes())
    payloads = [bytes(data[p.offset + RECORD_HEADER_BYTES :][: p.length]) for p in places]
    assert len(payloads[0]) == len(payloads[1])
    resealed(data, places[0].offset, payloads[1])
    path.write_bytes(data)
    with open_again(root) as store, pytest.raises(RecordDamaged, match="not sealed with the session's key"):
        store.text(first.session_id)


def test_export_is_refused_unless_it_is_meant(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
        with pytest.raises(InputError, match="encrypted"):
            store.export_session(model.session_id, folder / "x")
        assert not (folder / "x").exists()
        store.export_session(model.session_id, folder / "x", decrypt=True)
    with new_store(folder / "t") as store:
        row = store.import_session(folder / "x", name="back", encrypt=True)
        assert row.encrypted
        assert_session(store, replace(model, session_id=row.session_id, name="back"))
        assert_whole(store)
    assert in_the_clear(folder / "t") == []
    with open_again(folder / "t") as store:
        assert [chunk.text for chunk in store.portable_chunks(row.session_id)] == [TEXT] * 3


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_lost_catalog_is_rebuilt_with_the_keys_only(folder: Path, elsewhere: bool) -> None:
    root, keys = folder / "s", folder / "keys" if elsewhere else None
    with new_store(root):
        pass
    with open_again(root, key_folder=keys) as store:
        gone, model = filled(store, "gone"), filled(store)
        store.forget_session(gone.session_id)
    shutil.rmtree(root / "catalog")
    moved = folder / "moved"
    (keys or root / KEYS).rename(moved)
    with pytest.raises(KeyMissing, match="cannot be rebuilt"):
        Store.rebuild_catalog(root, catalog_bytes=1 << 24, key_folder=keys)
    moved.rename(keys or root / KEYS)
    report = Store.rebuild_catalog(root, catalog_bytes=1 << 24, key_folder=keys)
    assert report.n_sessions == 1 and report.problems == ()
    with open_again(root, key_folder=keys) as store:
        assert store.session("diary").encrypted
        store.replace_pages(model.session_id, {}, tail=model.tail)
        assert_session(store, model)
        assert_whole(store)
    assert in_the_clear(root) == []


class StoppingDisk(Disk):
    """A disk that ends everything at a step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.is_armed = False

    def reached(self, step: Step) -> None:
        if self.is_armed and step is self.step:
            raise KeyboardInterrupt


MAKING = [Step.KEY_MADE, Step.MANIFEST_WRITTEN, Step.MANIFEST_RENAMED, Step.LOG_WRITTEN, Step.SEGMENTS_SYNCED]


@pytest.mark.parametrize("step", [*MAKING, Step.COMMIT_PREPARED, Step.COMMITTED])
def test_no_session_is_without_its_key(folder: Path, step: Step) -> None:
    disk = StoppingDisk(step)
    store = new_store(folder / "s", disk=disk)
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        store.create_session("diary", encrypt=True)
    store.close()
    with open_again(folder / "s") as store:
        names = [row.name for row in store.sessions()]
        assert names == (["diary"] if step is Step.COMMITTED else [])
        assert len(keys_in(folder / "s" / KEYS)) == len(names)
        assert all(store.has_key(row.session_id) for row in store.sessions())
        assert_whole(store)
        model = filled(store, "next")
        assert_session(store, model)


@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize(
    "step", [Step.COMMIT_PREPARED, Step.COMMITTED, Step.KEY_OVERWRITTEN, Step.KEY_REMOVED, Step.ERASED, Step.SCRUBBED]
)
def test_no_key_is_left_after_a_forgetting(folder: Path, step: Step, elsewhere: bool) -> None:
    keys = folder / "keys" if elsewhere else None
    with new_store(folder / "s"):
        pass
    disk = StoppingDisk(step)
    store = open_again(folder / "s", key_folder=keys, disk=disk)
    model = filled(store)
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        store.forget_session(model.session_id)
    store.close()
    with open_again(folder / "s", key_folder=keys) as store:
        left = keys_in(keys or folder / "s" / KEYS)
        if step is Step.COMMIT_PREPARED:
            assert len(left) == 1
            assert_session(store, model)
        else:
            assert left == [] and store.sessions() == []
            with store._catalog.read() as snapshot:
                assert snapshot.dropped_keys() == []
        assert_whole(store)


def test_a_key_elsewhere_stays_listed_until_it_can_be_destroyed(folder: Path) -> None:
    keys, disk = folder / "keys", StoppingDisk(Step.COMMITTED)
    with new_store(folder / "s"):
        pass
    store = open_again(folder / "s", key_folder=keys, disk=disk)
    model = filled(store)
    disk.is_armed = True
    with pytest.raises(KeyboardInterrupt):
        store.forget_session(model.session_id)
    store.close()
    open_again(folder / "s").close()
    assert len(keys_in(keys)) == 1
    open_again(folder / "s", key_folder=keys).close()
    assert keys_in(keys) == []


def test_a_damaged_key_file_is_named(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
    (path,) = keys_in(folder / "s" / KEYS)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(path.read_bytes()[:-1])
    with open_again(folder / "s") as store:
        with pytest.raises(RecordDamaged, match=f"{path.name} is damaged"):
            store.text(model.session_id)
        assert any(path.name in problem for problem in store.check().problems)


def test_the_rest_of_a_store_goes_on_beside_a_damaged_key_file(folder: Path) -> None:
    with new_store(folder / "s") as store:
        model = filled(store)
    (path,) = keys_in(folder / "s" / KEYS)
    path.write_bytes(b"")
    with open_again(folder / "s") as store:
        assert not store.has_key(model.session_id)
        assert store.sentences_after(None, 100) == []
        plain = store.create_session("plain")
        assert len(store.check().problems) == 1
        store.forget_session(model.session_id)
        assert [row.name for row in store.sessions()] == [plain.name] and keys_in(folder / "s" / KEYS) == []
        assert store.check().problems == ()


def test_a_store_gets_the_feature_with_its_first_encrypted_session(folder: Path) -> None:
    with new_store(folder / "s") as store:
        store.create_session("plain")
    assert '"features": []' in (folder / "s" / "manifest.json").read_text()
    with open_again(folder / "s") as store:
        store.create_session("diary", encrypt=True)
    assert '"encryption"' in (folder / "s" / "manifest.json").read_text()
    (folder / "s" / "manifest.json").unlink()
    with Store.open(folder / "s", mode="write", fingerprint=FINGERPRINT, create=True, catalog_bytes=1 << 24) as store:
        assert store.session("diary").encrypted and store.seal_bytes
    assert '"encryption"' in (folder / "s" / "manifest.json").read_text()
