"""The life of sessions on a tiny model: repair, fork, forget, export, text-only, weights, budgets, migration."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from livingkv import Memory, Settings
from livingkv.codec import KV
from livingkv.errors import FingerprintMismatch, InputError, SessionNotFound, StoreFull
from livingkv.migrating import migrate
from livingkv.results import Forgotten, Mode
from livingkv.store import Store
from tests.memory.test_damaged_pages import damage_all_pages
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds in all: other processes, many stores

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(40)).encode()
MODEL = tiny_model()
QUESTION = "What is the code of door 17?"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one document session and one conversation."""
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        memory.chat("Hello there.", session="talk", max_tokens=70)
        memory.chat("And again.", session="talk", max_tokens=5)
    return tmp_path / "s"


def answers(store: Path, mode: Mode = "kv") -> str:
    """The answer to one question."""
    with Memory.open(store, model=MODEL, settings=SMALL, read_only=True) as memory:
        return memory.ask(QUESTION, mode=mode, session="default", max_tokens=12).answer


def decoded(memory: Memory, session: str) -> KV:
    """All sealed KV of a session."""
    home = memory._home
    row = home.store().session(session)
    pages = home.store().read_pages(row.session_id, range(row.n_sealed_tokens // 64))
    return home.engine().codec.decode(pages, range(0, row.n_sealed_tokens, 64), home.engine().model.device)


@pytest.mark.parametrize(("codec", "tolerance"), [("lossless", 1e-4), ("int8", 0.1)])
def test_repair_rebuilds_what_is_damaged(tmp_path: Path, codec: str, tolerance: float) -> None:
    """Blocks fall differently when a session is read again: what was attended raw may be attended decoded now."""
    settings = Settings.from_dict({"block_tokens": 64, "codec": codec})
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory:
        memory.ingest("doors", text=TEXT)
        memory.chat("Hello there.", session="talk", max_tokens=70)
        before = {info.name: decoded(memory, info.name) for info in memory.sessions()}
    damage_all_pages(tmp_path / "s")
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory:
        repaired = memory.repair()
        assert sum(len(one.pages) for one in repaired) == memory.stats().n_pages
        assert memory.check().problems == () and memory.repair() == []
        for name, kv in before.items():
            now = decoded(memory, name)
            assert (now.keys - kv.keys).norm() < tolerance * kv.keys.norm()
            assert (now.values - kv.values).norm() < tolerance * kv.values.norm()
        assert memory.ask(QUESTION, mode="kv", session="default", max_tokens=4).mode == "kv"


def test_repair_touches_only_what_is_damaged(store: Path) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        kept = memory._home.store().read_pages(1, [0, 1, 4])
        memory._home.store().drop_pages(1, [2, 3])
        (repaired,) = memory.repair(session="default")
        assert repaired.pages == (2, 3) and not repaired.tail
        assert memory._home.store().read_pages(1, [0, 1, 4]) == kept


def test_a_conversation_whose_kv_was_dropped_goes_on(store: Path) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        row = memory._home.store().session("talk")
        memory._home.store().drop_pages(row.session_id, range(row.n_sealed_tokens // 64))
        assert memory.chat("Third.", session="talk", max_tokens=5).turn == 3
        assert memory.check().problems == ()


def test_forks_are_independent(store: Path) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        size = memory.stats().size_bytes
        fork = memory.fork("default", "copy")
        assert fork.n_tokens == memory.session("default").n_tokens
        assert memory.stats().size_bytes - size < size / 4
        memory.ingest("more", text=b"Only the copy knows this.", session="copy")
        assert memory.text("default") == TEXT and memory.text("copy") == TEXT + b"Only the copy knows this."
        memory.forget(session="default")
        assert memory.text("copy").startswith(TEXT) and memory.check().problems == ()
        with pytest.raises(SessionNotFound):
            memory.session("default")
        assert memory.rename("copy", "kept").name == "kept"
    assert "kept" in {info.name for info in Memory.open(store, read_only=True).sessions()}


@pytest.mark.parametrize(
    "forget",
    [
        lambda memory: memory.forget(session="secret"),
        lambda memory: memory.forget(session="secret", source="diary"),
        lambda memory: memory.forget(sentence_ids=[secret_id(memory)]),
        lambda memory: memory.forget(everything=True),
    ],
    ids=["session", "source", "sentence", "everything"],
)
def test_what_is_forgotten_is_gone_from_every_file(store: Path, forget: Callable[[Memory], Forgotten]) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        memory.ingest("diary", text=b"The Zanzibarquince is hidden below the stairs.", session="secret")
        assert memory.ask("Where is the Zanzibarquince?", mode="extract").confident
    assert files_with(store, b"anzibarquince")
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        receipt = forget(memory)
        assert receipt.n_sentences >= 1 and receipt.n_bytes >= 46
        if memory.sessions():
            assert "anzibarquince" not in memory.ask("Where is the Zanzibarquince?", mode="extract").answer
        assert memory.check().problems == ()
    assert files_with(store, b"anzibarquince") == []


@pytest.mark.parametrize("deep", [False, True])
def test_the_receipt_counts_the_pages_whose_kv_is_gone(store: Path, deep: bool) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        n_pages = memory._home.store().session(1).n_sealed_tokens // 64
        receipt = memory.forget(sentence_ids=[0], deep=deep)
        assert n_pages > 2 and receipt.n_pages == (n_pages if deep else 1)


def secret_id(memory: Memory) -> int:
    """The id of the one sentence of session "secret"."""
    sentences = memory._home.store().sentences_after(None, 10_000)
    return next(sentence.sentence_id for sentence in sentences if sentence.session == "secret")


def files_with(store: Path, word: bytes) -> list[Path]:
    """Files below the store that hold the word as it is."""
    return [path for path in store.rglob("*") if path.is_file() and word in path.read_bytes()]


def test_forget_wants_one_thing_named(store: Path) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        for wrong in ({}, {"session": "talk", "everything": True}, {"source": "doors"}):
            with pytest.raises(InputError, match="forget"):
                memory.forget(**wrong)
        assert memory.text("default") == TEXT


@pytest.mark.parametrize("kv", [True, False])
def test_an_exported_session_lives_on_elsewhere(store: Path, tmp_path: Path, kv: bool) -> None:
    before = answers(store)
    with Memory.open(store, model=MODEL, settings=SMALL, read_only=True) as memory:
        assert memory.export("default", tmp_path / "doors.lkv", kv=kv) == (tmp_path / "doors.lkv").stat().st_size
    with Memory.open(tmp_path / "other", model=MODEL, settings=SMALL) as memory:
        memory.ingest("first", text=b"Something else.", session="first")
        memory.import_file(tmp_path / "doors.lkv", kv=kv)
        assert memory.text("default") == TEXT
        assert bool(memory.repair(session="default")) != kv
    if kv:
        assert answers(tmp_path / "other") == before
    stranger = tiny_model(seed=5)
    with Memory.open(tmp_path / "third", model=stranger, settings=SMALL) as memory:
        memory.ingest("first", text=b"Something else.", session="first")
        if kv:
            with pytest.raises(FingerprintMismatch):
                memory.import_file(tmp_path / "doors.lkv")
            assert [info.name for info in memory.sessions()] == ["first"]


def test_a_text_only_session_is_found_and_read(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("note", text=b"A note.", session="other")
        before = memory._home.engine().runner.n_prefilled
        memory.ingest("log", text=TEXT, kv=False)
        assert memory._home.engine().runner.n_prefilled == before
        assert memory.text("default") == TEXT
        assert memory.ask(QUESTION, mode="extract").evidence
        answer = memory.ask(QUESTION, mode="kv", session="default", max_tokens=8)
        assert answer.mode == "ground" and "read again" in answer.reason
        memory.ingest("log2", text=b"One more line.", kv=True)  # the session stays as it was made
        assert memory._home.store().session("default").text_only
        (made,) = memory.repair(session="default")
        assert len(made.pages) > 3 and made.tail == bool(memory.session("default").n_tokens % 64)
        assert memory.ask(QUESTION, mode="kv", session="default", max_tokens=8).mode == "kv"


def test_recalled_sentences_grow_hot(store: Path) -> None:
    for _ in range(3):
        answers(store)
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        hottest = memory.hottest(3)
        assert hottest and hottest[0].n_recalls == 3 and hottest[0].session == "default"
        memory.ask(QUESTION, mode="kv", session="default", max_tokens=2)
        assert memory.hottest(1)[0].n_recalls == 4


def test_a_disk_budget_takes_kv_and_leaves_text(tmp_path: Path) -> None:
    budget = 2 << 20
    settings = Settings(window_tokens=256, block_tokens=256, commit_tokens=64, disk_budget_bytes=budget)
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory:
        memory.ingest("pinned", text=TEXT[:600], session="pinned")
        memory.pin("pinned")
        for part in range(6):
            memory.ingest(f"part {part}", text=TEXT.replace(b"door", b"gate %d" % part), session="big")
        stats = memory.stats()
        assert stats.size_bytes <= budget * 1.25
        row = memory._home.store().session("pinned")
        assert memory._home.store().missing_pages(row.session_id) == []
        assert len(memory.text("big")) > 6 * len(TEXT) and memory.check().problems == ()
    again = Settings(window_tokens=256, block_tokens=256, commit_tokens=64)
    with Memory.open(tmp_path / "s", model=MODEL, settings=again) as memory:  # says nothing of a budget
        for part in range(6, 9):
            memory.ingest(f"part {part}", text=TEXT.replace(b"door", b"gate %d" % part), session="big")
        stats = memory.stats()
        assert stats.disk_budget_bytes == budget and 0.6 * budget < stats.held_bytes <= budget * 1.1
        memory.limit_disk(None)
        assert memory.stats().disk_budget_bytes is None
    done = migrate(tmp_path / "s", model=MODEL, settings=settings)
    assert Path(done.old_path).exists()
    with Memory.open(tmp_path / "s", read_only=True) as memory:
        assert memory.stats().disk_budget_bytes == budget


@pytest.mark.parametrize("other", ["codec", "model"])
def test_migration_reads_the_kept_text_again(store: Path, other: str) -> None:
    model = MODEL if other == "codec" else tiny_model("llama", seed=3)
    settings = Settings.from_dict({"codec": "lossless" if other == "codec" else "int8", "window_tokens": 256})
    with Memory.open(store, read_only=True) as memory:
        before = {info.name: memory.text(info.name) for info in memory.sessions()}
    done = migrate(store, model=model, settings=settings)
    assert done.n_sessions == 2 and Path(done.old_path).exists()
    with Memory.open(store, model=model, settings=settings) as memory:
        assert {info.name: memory.text(info.name) for info in memory.sessions()} == before
        assert memory.session("talk").n_turns == 2
        assert memory.chat("On we go.", session="talk", max_tokens=4).turn == 3
        assert memory.check().problems == ()
    with pytest.raises(InputError, match="earlier migration"):
        migrate(store, model=model, settings=settings)


@pytest.mark.parametrize("dropped_from", [20, 0])
def test_a_session_whose_kv_a_budget_took_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropped_from: int
) -> None:
    """Its window is read again as a repair would; of its KV only that comes back, or nothing where there is no room."""
    settings = Settings.from_dict({"window_tokens": 256, "block_tokens": 64, "commit_tokens": 64, "codec": "lossless"})
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory:
        memory.ingest("doors", text=TEXT)
        store, row = memory._home.store(), memory._home.store().session("default")
        n_pages = row.n_sealed_tokens // 64
        windows = []
        for budget in (None, 64 << 20):
            store.limit_disk(budget)
            store.drop_pages(row.session_id, range(dropped_from, n_pages))
            if budget and dropped_from == 0:
                monkeypatch.setattr(Store, "replace_pages", raise_full)
            memory._home.let_go()
            with memory._home.hot_window(row) as hot:
                space = hot.branch(1)
                windows.append(space.view(space.start, space.end))
        for one, other in zip(*windows, strict=True):
            assert torch.allclose(one, other, atol=1e-3)
        kept = n_pages - 4 if dropped_from else n_pages
        assert store.missing_pages(row.session_id) == list(range(dropped_from, kept)), "four pages are the window"
        assert memory.chat("And then?", max_tokens=3).n_tokens > row.n_tokens


def raise_full(*_: object) -> None:
    """No room."""
    raise StoreFull("no room")
