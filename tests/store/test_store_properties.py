"""Random operations against a plain dict, with failures, reopening and readers among the operations."""

from __future__ import annotations

import errno
import random
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from livingkv.errors import InputError, SessionExists, StoreError
from livingkv.store import Append
from tests.store.crash_operations import applied, make_change, perform
from tests.store.faulty_disk import FailingDisk
from tests.store.store_cases import (
    SessionModel,
    assert_session,
    assert_whole,
    make_append,
    new_session,
    new_store,
    read_store,
    rebuild,
    write_store,
)

SEGMENT_BYTES = 1500
seeds = st.integers(0, 1 << 30)


class StoreAgainstDict(RuleBasedStateMachine):
    """A store and a dict of what it must hold."""

    @initialize()
    def make(self) -> None:
        shared_memory = Path("/dev/shm")
        self.folder = tempfile.TemporaryDirectory(dir=shared_memory if shared_memory.is_dir() else None)
        self.root = Path(self.folder.name) / "store"
        self.disk = FailingDisk()
        self.store = new_store(self.root, disk=self.disk, segment_bytes=SEGMENT_BYTES)
        self.reader = read_store(self.root)
        self.models = {"first": new_session(self.store, "first")}
        self.n_made = 1

    @rule(name=st.sampled_from(["a", "b", "c", "日本"]))
    def create_session(self, name: str) -> None:
        if name in self.models:
            with pytest.raises(SessionExists):
                self.store.create_session(name)
        else:
            self.models[name] = new_session(self.store, name)
            self.n_made += 1

    @rule(seed=seeds)
    def change(self, seed: int) -> None:
        rng = random.Random(seed)
        name = rng.choice(sorted(self.models))
        what = make_change(rng, self.models, name, f"made {self.n_made + 1} {seed}", self.n_made + 1)
        perform(self.store, what, self.models, Path(self.folder.name))
        self.models = applied(self.models, what)
        self.n_made += what.kind in ("fork", "copy")

    @rule()
    def lose_the_catalog(self) -> None:
        self.store.close()
        self.reader.close()
        write_store(self.root).close()  # cuts what a failed append may have left
        rebuild(self.root)
        self.store = write_store(self.root, disk=self.disk, segment_bytes=SEGMENT_BYTES)
        self.reader = read_store(self.root)
        for model in self.models.values():
            if model.has_tail and self.store.session(model.session_id).needs_tail:
                self.store.replace_pages(model.session_id, {}, tail=model.tail)
        self.models = {name: replace(each, has_tail=self._has_tail(each)) for name, each in self.models.items()}
        self.n_made = max(row.session_id for row in self.store.sessions())

    def _has_tail(self, model: SessionModel) -> bool:
        return not self.store.session(model.session_id).needs_tail

    def _appends(self, seed: int) -> tuple[list[Append], dict[str, SessionModel]]:
        rng = random.Random(seed)
        models, appends = dict(self.models), []
        for _ in range(rng.choice([1, 1, 1, 4])):
            name = rng.choice(sorted(models))
            append = make_append(models[name], rng, page_bytes=rng.choice([1, 50, 2000]), source=rng.choice(["x", "y"]))
            appends.append(append)
            models[name] = models[name].applied(append)
        return appends, models

    @rule(seed=seeds)
    def append(self, seed: int) -> None:
        appends, models = self._appends(seed)
        self.store.append_all(appends)
        self.models = models

    @rule(seed=seeds)
    def append_what_does_not_fit(self, seed: int) -> None:
        appends, _ = self._appends(seed)
        wrong = replace(appends[-1], first_token=appends[-1].first_token + 1)
        with pytest.raises(InputError):
            self.store.append_all([*appends[:-1], wrong])

    @rule(
        seed=seeds,
        fail_at=st.integers(0, 6),
        number=st.sampled_from([errno.ENOSPC, errno.EIO, errno.EDQUOT]),
        lasting=st.booleans(),
    )
    def append_on_a_failing_disk(self, seed: int, fail_at: int, number: int, lasting: bool) -> None:
        appends, models = self._appends(seed)
        self.disk.arm(fail_at, number, lasting=lasting)
        try:
            self.store.append_all(appends)
            self.models = models
        except StoreError:
            pass
        finally:
            self.disk.arm(None, 0, lasting=False)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = write_store(self.root, disk=self.disk, segment_bytes=SEGMENT_BYTES)

    @rule()
    def reopen_the_reader(self) -> None:
        self.reader.close()
        self.reader = read_store(self.root)

    @invariant()
    def the_store_is_the_dict(self) -> None:
        for store in (self.store, self.reader):
            assert {row.name for row in store.sessions()} == set(self.models)
            for model in self.models.values():
                assert_session(store, model)

    def teardown(self) -> None:
        if hasattr(self, "store"):
            assert_whole(self.store)
            self.reader.close()
            self.store.close()
            self.folder.cleanup()


TestStoreAgainstDict = StoreAgainstDict.TestCase
TestStoreAgainstDict.settings = settings(
    max_examples=12, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)


class StoreAgainstDictAtLength(StoreAgainstDict):
    """The same, for longer."""


TestStoreAgainstDictAtLength = pytest.mark.slow(StoreAgainstDictAtLength.TestCase)
TestStoreAgainstDictAtLength.settings = settings(TestStoreAgainstDict.settings, max_examples=100)
