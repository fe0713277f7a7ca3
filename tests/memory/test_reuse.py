"""Stored KV is really used again: counted by the runner, by token ids and not by text, whatever came before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from livingkv import Memory, Settings
from livingkv.codec_gate import measure_codec
from livingkv.engine import Engine
from livingkv.sampling import Sampler
from livingkv.settings import CodecName
from livingkv.store import Store
from livingkv.stored_kv import restore_hot_window
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds in all: many stores

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(40)).encode()
MODEL = tiny_model()


def steps(memory: Memory, session: str, n: int = 6) -> list[torch.Tensor]:
    """Logits of a few greedy steps from a session's stored state, which stays as it is."""
    home = memory._home
    row = home.store().session(session)
    state = restore_hot_window(home.store(), home.engine(), row, home.settings, home.n_sinks)
    assert state.n_tokens == row.n_tokens
    found, token = [], torch.tensor([11])
    for _ in range(n):
        found.append(home.engine().runner.logits(token, state)[0, -1])
        token = found[-1].argmax()[None]
    return found


def pages_of(memory: Memory, session: str) -> list[bytes]:
    """All sealed pages of a session, and its tail."""
    store = memory._home.store()
    row = store.session(session)
    pages = store.read_pages(row.session_id, range(row.n_sealed_tokens // 64))
    return [*pages, store.read_tail(row.session_id)[1]]


@pytest.mark.parametrize("codec", ["int8", "lossless"])
def test_a_short_session_after_a_long_one_and_back(tmp_path: Path, codec: CodecName) -> None:
    settings = Settings(window_tokens=256, block_tokens=64, codec=codec)
    sizes = {"long": TEXT, "short": TEXT[:90], "middle": TEXT[:700]}
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory:
        for name, text in sizes.items():
            memory.ingest(name, text=text, session=name)
    alone = {}
    for name in sizes:
        with Memory.open(tmp_path / "s", model=MODEL, settings=settings, read_only=True) as memory:
            alone[name] = steps(memory, name)
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory:
        for name in ("long", "short", "long", "middle", "short"):
            assert all(map(torch.equal, steps(memory, name), alone[name]))
            with memory._home.hot_window(memory._home.store().session(name)) as hot:  # as chat goes on
                logits = memory._home.engine().runner.logits(torch.tensor([11]), hot.branch(1))[0, -1]
            assert torch.allclose(logits, alone[name][0], atol=1e-4)


def test_a_turn_reads_its_own_words_and_nothing_else(tmp_path: Path) -> None:
    """The next turn reuses all that is stored; the runner's own count says so (llama.cpp 26676)."""
    with Memory.open(tmp_path / "s", model=MODEL) as memory:
        memory.ingest("doors", text=TEXT)
        memory.chat("Hello there.", max_tokens=9)
        stored = memory.session("default").n_tokens
    with Memory.open(tmp_path / "s", model=MODEL) as memory:
        runner, words = memory._home.engine().runner, memory._home.engine().words
        before = runner.n_prefilled
        turn = memory.chat("And again.", max_tokens=1)
        own = len(words.encode("And again.")) + len(words.framing.answer)
        assert turn.reused_tokens == stored > 500 and turn.prefilled_tokens <= own + len(words.framing.reopen)
        assert runner.n_prefilled - before <= own + 1 + len(words.framing.reopen) * 2


def test_ids_are_kept_that_no_tokenizer_would_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may spell "the" in three tokens; its text is one. The stored ids go on, the text is not read again."""
    with Memory.open(tmp_path / "s", model=MODEL) as memory:
        words = memory._home.engine().words
        spelled = [words.encode(letter)[0] for letter in " the and the"]
        assert len(words.encode(" the and the")) < len(spelled)
        coming = iter(spelled)
        with monkeypatch.context() as patch:
            patch.setattr(Sampler, "pick", lambda sampler, logits: next(coming))
            assert memory.chat("Say it.", max_tokens=len(spelled)).answer == "the and the"
        before, stored = steps(memory, "default"), memory.session("default").n_tokens
    with Memory.open(tmp_path / "s", model=MODEL) as memory:
        ids = memory._home.store().token_ids(1, 0, stored).tolist()
        assert any(ids[at : at + len(spelled)] == spelled for at in range(stored))
        assert all(map(torch.equal, steps(memory, "default"), before))
        turn = memory.chat("Go on.", max_tokens=2)
        assert turn.reused_tokens == stored and turn.prefilled_tokens < 30
        memory._home.store().drop_pages(1, range(memory._home.store().session(1).n_sealed_tokens // 64))
        memory.repair()
        assert memory._home.store().token_ids(1, 0, stored).tolist() == ids


def test_what_was_acknowledged_is_there_for_others_at_once(tmp_path: Path) -> None:
    """At every acknowledgement another reader restores the whole prefix; nothing is only in the writer's memory. What
    comes behind it may be durable already."""
    seen: list[int] = []
    compared: list[int] = []
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:

        def acknowledged(done: int, total: int) -> None:
            home = memory._home
            engine = home.engine()
            with Store.open(tmp_path / "s", mode="read") as store:
                row = store.session("default")
                text = store.text(row.session_id)
                assert len(text) >= done and TEXT.startswith(text)
                restored = restore_hot_window(store, engine, row, SMALL, home.n_sinks)
            home.let_go()  # evicted right after it
            again = restore_hot_window(home.store(), engine, row, SMALL, home.n_sinks)
            assert restored.n_tokens >= row.n_tokens and again.n_tokens >= row.n_tokens
            if restored.n_tokens == again.n_tokens:  # else more became durable between the two
                one, two = restored.branch(1), again.branch(1)
                assert torch.equal(one.view(one.start, one.end).keys, two.view(two.start, two.end).keys)
                compared.append(done)
            seen.append(again.n_tokens)

        memory.ingest("doors", text=TEXT, progress=acknowledged)
        assert len(seen) > 5 and seen[-1] == memory.session("default").n_tokens and compared[-1] == len(TEXT)


@pytest.mark.parametrize("codec", ["int8", "lossless"])
def test_a_warm_up_changes_no_byte(tmp_path: Path, codec: CodecName) -> None:
    settings = Settings(window_tokens=256, block_tokens=64, commit_tokens=64, codec=codec)
    with Memory.open(tmp_path / "cold", model=tiny_model(), settings=settings) as memory:
        memory.ingest("doors", text=TEXT)
        memory.chat("Hello.", max_tokens=20)
        cold = pages_of(memory, "default")
    model = tiny_model()
    measure_codec(Engine.of(model, "int8"))
    with Memory.open(tmp_path / "warm", model=model, settings=settings) as memory:
        memory.ingest("warm-up", text=b"Loud words! " * 300, session="warm-up")
        memory.chat("Warm up.", session="warm-up", max_tokens=80)
        memory.ask("What is loud?", mode="kv", max_tokens=10)
        memory.ingest("doors", text=TEXT)
        memory.chat("Hello.", max_tokens=20)
        assert pages_of(memory, "default") == cold and len(cold) > 10


def test_nothing_forgotten_is_held_on(tmp_path: Path) -> None:
    """The hot window on the device and the pages in RAM go before the receipt is given; what is asked next finds
    nothing."""
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
        memory.chat("Hello.", session="talk", max_tokens=4)
        memory.ingest("more", text=b"The Zanzibarquince is below the stairs.")
        assert memory.ask("Where is the Zanzibarquince?", mode="kv", max_tokens=2).reused_tokens > 0
        home = memory._home
        assert home._hot and home.pages().counts().ram.size_bytes > 0
        memory.forget(session="default")
        assert not home._hot
        assert {key.session_id for key in home.pages()._ram.held()} == set()
        assert not any("Zanzibar" in found.text for found in memory.ask("Zanzibarquince?", mode="extract").evidence)
