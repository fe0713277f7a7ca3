"""Snapshots are found by the longest beginning; what is damaged or foreign is not there, and never tokens."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers.cache_utils import DynamicCache

import livingkv.snapshots.snapshot_folder as folder_module
from livingkv.errors import InputError, SnapshotDamaged, StoreUnwritable
from livingkv.snapshots import SnapshotKey, Tier, snapshot_key
from livingkv.snapshots.snapshot_file import _header, read_snapshot
from livingkv.snapshots.state import restored_cache, state_of
from livingkv.store.disk import Disk
from tests.snapshots.conftest import NetworkOf
from tests.snapshots.small import KEY, ONE, cache_of, files, fresh, opened


@pytest.mark.parametrize("tier", list(Tier))
def test_the_longest_beginning_wins_and_leaves_a_token(tmp_path: Path, tier: Tier) -> None:
    snapshots = opened(tmp_path, ram=(1 << 20) if tier is Tier.RAM else 0)
    for n_tokens in (2, 4, 6):
        snapshots.take(range(n_tokens), cache_of(n_tokens, n_tokens))
    for prompt, expected in [([0, 1, 2, 3, 4, 5, 6], 6), ([0, 1, 2, 3, 4, 5], 4), ([0, 1, 2, 9, 9, 9, 9], 2)]:
        if tier is Tier.RAM:  # which can be cut as well
            expected = {4: 5, 2: 3}.get(expected, expected)
        found = snapshots.longest(prompt)
        assert found is not None and (found.n_tokens, found.tier) == (expected, tier)
        assert found.cache.get_seq_length() == expected
    for prompt in ([], [0], [9, 0, 1, 2, 3, 4, 5, 6]):
        assert snapshots.longest(prompt) is None or (tier is Tier.RAM and prompt == [0])
    assert snapshots.counts().n_missed == 3


def test_users_and_keys_are_apart(tmp_path: Path) -> None:
    snapshots = opened(tmp_path, ram=0)
    taken = snapshots.take([1, 2], cache_of(2), user="ann")
    assert taken.on_disk and not taken.in_ram and taken.reason is None
    assert snapshots.longest([1, 2, 3], user="bob") is None and snapshots.longest([1, 2, 3]) is None
    for part in ("model", "config", "code", "cache", "place"):
        assert opened(tmp_path, key=replace(KEY, **{part: "other"})).longest([1, 2, 3], user="ann") is None
    assert opened(tmp_path).longest([1, 2, 3], user="ann") is not None
    assert snapshots.counts().n_refused == 0


def test_a_file_is_private_and_safetensors(tmp_path: Path) -> None:
    folder = tmp_path / "tenant"
    opened(folder).take([7, 8, 9], cache_of(3), user="ann")
    (path,) = files(folder)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(folder.stat().st_mode) == 0o700
    with safe_open(path, "pt") as file:
        assert file.get_tensor("tokens").tolist() == [7, 8, 9]
        text = json.loads(file.metadata()["livingkv"])
        assert text["user"] == "ann" and text["key"]["model"] == "model" and len(text["views"]) == 6
        assert len(list(file.keys())) == 7


Damage = Callable[[Path], None]


def flipped(at: int) -> Damage:
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 4
        path.write_bytes(data)

    return damage


def forged(place: int, value: object) -> Damage:
    """The text says something else of its first view, and its checksum is made anew."""

    def damage(path: Path) -> None:
        data = path.read_bytes()
        n_header = int.from_bytes(data[:8], "little")
        text = json.loads(json.loads(data[8 : 8 + n_header])["__metadata__"]["livingkv"])
        text["views"][0][place] = value
        sizes = [block[0] for block in text["blocks"]]
        header = _header(json.dumps(text, sort_keys=True, separators=(",", ":")), text["tokens"]["number"], sizes)
        path.write_bytes(header + data[8 + n_header :])

    return damage


def other_file(path: Path) -> None:
    path.write_bytes(b"\2\0\0\0\0\0\0\0{}" + bytes(2000))


def a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


DAMAGES: dict[str, Damage] = {
    "last byte": flipped(-1),
    "block": flipped(-ONE),
    "text": flipped(300),
    "length of the header": flipped(0),
    "token": flipped(-2 * ONE * 3 // 2 - 8),
    "cut": lambda path: os.truncate(path, path.stat().st_size - 1),
    "cut in the header": lambda path: os.truncate(path, 100),
    "empty": lambda path: os.truncate(path, 0),
    "longer": lambda path: os.truncate(path, path.stat().st_size + 1),
    "no snapshot": other_file,
    "forged size": forged(2, [1, 1, 3, 900]),
    "forged shape": forged(2, 7),
    "forged type": forged(1, ["F32"]),
    "forged stride": forged(3, [1 << 70, 24, 8, 1]),
    "forged offset": forged(4, -8),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_tampered_snapshots_are_not_there(name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path).take([1, 2], cache_of(2))
    opened(tmp_path).take([1, 2, 3], cache_of(3))
    damaged = files(tmp_path)[1]
    DAMAGES[name](damaged)
    with pytest.raises(SnapshotDamaged, match="it is not used"):
        read_snapshot(Disk(), damaged, KEY, "", torch.tensor([1, 2, 3]).numpy())
    snapshots = opened(tmp_path)
    found = snapshots.longest([1, 2, 3, 4])
    assert found is not None and found.n_tokens == 2, "the next one is used"
    assert snapshots.counts().n_refused == 1 and not damaged.exists()
    assert [record.levelname for record in caplog.records] == ["WARNING"] and damaged.name in caplog.text


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path).take([1, 2], cache_of(2))
    a_pipe(files(tmp_path)[0])
    assert opened(tmp_path).longest([1, 2, 3]) is None and "pipe" in caplog.text


def test_a_file_under_another_name_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever a file is called, its key, user and tokens are compared."""
    other = tmp_path / "other"
    mine = tmp_path / "mine"
    for change in ("key", "user", "tokens"):
        key = replace(KEY, config="other") if change == "key" else KEY
        source = opened(other, key=key)
        source.take([1, 9] if change == "tokens" else [1, 2], cache_of(2), user="bob" if change == "user" else "ann")
        opened(mine).take([1, 2], cache_of(2), user="ann")
        files(other)[0].rename(files(mine)[0])
        snapshots = opened(mine)
        assert snapshots.longest([1, 2, 3], user="ann") is None
        assert snapshots.counts().n_refused == 1
    for what in ("another config", "another user", "other tokens"):
        assert what in caplog.text


def test_tokens_whose_digests_collide_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "tokens_digest", lambda tokens: "0" * 32)
    for ram in (1 << 20, 0):
        snapshots = opened(tmp_path, ram=ram)
        snapshots.take([1, 2], cache_of(2))
        found = snapshots.longest([1, 3, 4])
        assert found is None or found.n_tokens == 1
        assert snapshots.longest([7, 8, 9]) is None


class BrokenDisk(Disk):
    """Fails with an error number at the nth write, read or sync."""

    def __init__(self, number: int, at: str) -> None:
        self.number, self.at = number, at

    def _maybe(self, what: str) -> None:
        if what == self.at:
            raise OSError(self.number, os.strerror(self.number))

    def write(self, descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> None:
        super().write(descriptor, parts[:2], offset)
        self._maybe("write")
        super().write(descriptor, parts, offset)

    def sync(self, descriptor: int) -> None:
        self._maybe("sync")
        super().sync(descriptor)

    def read_into(self, descriptor: int, parts: Sequence[memoryview], offset: int, n_wanted: int) -> int:
        self._maybe("read")
        return super().read_into(descriptor, parts, offset, n_wanted)


@pytest.mark.parametrize("at", ["write", "sync"])
def test_a_full_disk_is_a_reason_and_leaves_nothing(at: str, tmp_path: Path) -> None:
    snapshots = opened(tmp_path, disk=BrokenDisk(errno.ENOSPC, at))
    taken = snapshots.take([1, 2], cache_of(2))
    assert taken.in_ram and not taken.on_disk and "no disk space" in str(taken.reason)
    assert files(tmp_path) == [] and snapshots.counts().n_unwritten == 1
    assert snapshots.longest([1, 2, 3]) is not None
    assert not snapshots.write([1, 2])
    assert opened(tmp_path).longest([1, 2, 3]) is None


def test_a_drive_that_does_not_read_is_a_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path).take([1, 2], cache_of(2))
    assert opened(tmp_path, disk=BrokenDisk(errno.EIO, "read")).longest([1, 2, 3]) is None
    assert "Input/output error" in caplog.text and len(files(tmp_path)) == 1
    assert opened(tmp_path).longest([1, 2, 3]) is not None


def test_ram_keeps_what_was_used_last() -> None:
    size = opened(None).take([0] * 4, cache_of(4)).n_bytes
    snapshots = opened(None, ram=2 * size)
    assert snapshots.take([1] * 4, cache_of(4)).reason == "there is no folder for snapshots"
    snapshots.take([2] * 4, cache_of(4))
    assert snapshots.longest([1] * 4 + [0])
    snapshots.take([3] * 4, cache_of(4))
    assert [snapshots.longest([one] * 4 + [0]) is not None for one in (1, 2, 3)] == [True, False, True]
    assert snapshots.counts().ram_bytes == 2 * size and snapshots.counts().n_evicted_from_ram == 1
    assert snapshots.counts().n_saved_tokens == 3 * 4
    assert not snapshots.take([5] * 90, cache_of(90)).in_ram and snapshots.counts().ram_bytes == 2 * size


def test_a_state_that_names_a_function_makes_no_cache() -> None:
    state = state_of(cache_of(2))
    state.layers[0]["vars"]["dtype"] = {"dtype": "load"}
    with pytest.raises(SnapshotDamaged, match="load, which is no type"):
        restored_cache(state, fresh, torch.device("cpu"))


def test_what_is_used_in_part_was_used() -> None:
    snapshots = opened(None, ram=2 * opened(None).take([0] * 4, cache_of(4)).n_bytes)
    for one in (1, 2):
        snapshots.take([one] * 4, cache_of(4))
    found = snapshots.longest([1, 1, 1, 9, 9])
    assert found is not None and found.n_tokens == 3
    snapshots.take([3] * 4, cache_of(4))
    assert [snapshots.longest([one] * 4 + [0]) is not None for one in (1, 2, 3)] == [True, False, True]


def test_bad_arguments_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="ram_bytes"):
        opened(tmp_path, ram=-1)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnwritable):
        opened(tmp_path / "file")


def test_the_key_knows_model_config_code_and_place(network_of: NetworkOf) -> None:
    network = network_of("qwen3_next")
    key = snapshot_key(network, "digest", lambda: DynamicCache(config=network.config))
    assert key.model == "digest" and "transformers" in key.code and key.place.startswith("cpu torch.float32")
    assert snapshot_key(network, "digest", DynamicCache).differences(json.loads(json.dumps({**vars_of(key)}))) == (
        "cache",
    )
    assert key.digest == snapshot_key(network, "digest", lambda: DynamicCache(config=network.config)).digest
    assert key.differences(None) == ("cache", "code", "config", "model", "place")


def vars_of(key: SnapshotKey) -> dict[str, str]:
    return {name: getattr(key, name) for name in ("model", "config", "code", "cache", "place")}
