"""Encrypted sessions on a tiny model: asked, talked to, forgotten, and found in no file."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.errors import InputError, KeyMissing
from livingkv.index import Index
from livingkv.migrating import migrate
from tests.tiny import tiny_model

pytestmark = pytest.mark.slow  # seconds in all: many stores

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The heron of pond {i} sleeps in tree {1000 + i * 7}. Nobody counts tree {i}.\n\n" for i in range(20))
MODEL = tiny_model()
QUESTION = "Where does the heron of pond 17 sleep?"


def in_the_clear(folder: Path) -> list[str]:
    """Files in which something of the text can be read."""
    words = (b"heron", b"Nobody", b"pond", b"birds.md")
    return [str(path) for path in folder.rglob("*") if path.is_file() and any(w in path.read_bytes() for w in words)]


def best(store: Path, settings: Settings = SMALL, session: str | None = None) -> str:
    """What mode extract finds in a later process."""
    with Memory.open(store, model=MODEL, settings=settings, read_only=True) as memory:
        return memory.ask(QUESTION, mode="extract", session=session).answer


def test_it_is_found_and_is_in_no_file(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        memory.ingest("plain.md", text=b"The gate is green.", kv=False)
        memory.ingest("birds.md", text=TEXT.encode(), session="birds", encrypt=True, kv=False)
        assert memory.session("birds").encrypted and not memory.session("default").encrypted
        assert "tree 1119" in memory.ask(QUESTION, mode="extract").answer
        memory.ingest("more.md", text=b"The heron of pond 99 sleeps on the roof.", session="birds")
        with pytest.raises(InputError, match="in the clear"):
            memory.ingest("x", text=b"More.", encrypt=True)
        assert memory.check().problems == ()
    assert "tree 1119" in best(store)
    assert in_the_clear(tmp_path) == []
    with Index.open(store / "index", None, "read") as index:  # its files are compressed: it is asked what it knows
        assert index.n_sentences == 1 and index.probe(QUESTION, limit=9, session_ids=frozenset({2})) == []


def test_the_search_of_these_tests_sees_a_session_in_the_clear(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("birds.md", text=b"The heron is back.", kv=False)
    assert in_the_clear(tmp_path) != []


def test_kv_chat_fork_repair_and_forgetting(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        memory.ingest("birds.md", text=TEXT.encode(), session="birds", encrypt=True)
        before = memory.ask(QUESTION, mode="kv", max_tokens=8)
        assert before.reused_tokens and "pond 17" in before.evidence[0].text
        memory.chat("The heron is back.", session="talk", max_tokens=70, encrypt=True)
        memory.chat("Is the heron back?", session="talk", max_tokens=5)
        assert memory.session("talk").n_turns == 2
        memory.fork("birds", "copy")
        before = memory.ask(QUESTION, mode="kv", session="birds", max_tokens=8)  # more sentences weigh words otherwise
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        assert memory.ask(QUESTION, mode="kv", session="birds", max_tokens=8).answer == before.answer
        assert memory.text("birds").decode() == TEXT
        memory._home.store().drop_pages(memory.session("birds").session_id, [1])
        assert [one.pages for one in memory.repair(session="birds")] == [(1,)]
        assert memory.check().problems == ()
    assert in_the_clear(tmp_path) == []
    migrate(store, model=MODEL, settings=Settings(codec="lossless", commit_tokens=64))
    assert in_the_clear(tmp_path) == []
    with Memory.open(store, model=MODEL) as memory:
        assert memory.session("birds").encrypted
        assert memory.text("copy").decode() == TEXT
        assert memory.forget(session="birds").n_keys == 1  # a copy is a session of its own in the new store
        assert "pond 17" in memory.ask(QUESTION, mode="extract", session="copy").answer
        memory.forget(everything=True)
    assert list((store / "keys").iterdir()) == []


def test_without_the_key_the_rest_goes_on(tmp_path: Path) -> None:
    store, keys = tmp_path / "s", tmp_path / "keys"
    keyed = Settings(window_tokens=256, block_tokens=64, commit_tokens=64, key_folder=str(keys))
    with Memory.open(store, model=MODEL, settings=keyed) as memory:
        memory.ingest("birds.md", text=TEXT.encode(), session="birds", encrypt=True, kv=False)
    with Memory.open(store, model=MODEL, settings=SMALL) as memory:
        memory.ingest("plain.md", text=b"The heron of the fountain sleeps standing.", kv=False)
        assert "fountain" in memory.ask(QUESTION, mode="extract").answer
        for read in (
            lambda: memory.text("birds"),
            lambda: memory.ask(QUESTION, mode="extract", session="birds"),
            lambda: memory.ingest("more", text=b"More.", session="birds"),
            lambda: memory.chat("Hello.", session="birds", max_tokens=2),
            lambda: memory.prune(session="birds", keep=1),
        ):
            with pytest.raises(KeyMissing, match="session 'birds' is encrypted; its key is not in"):
                read()
        assert memory.repair() == [] and memory.check().problems == () and memory.hottest() == []
    with Memory.open(store, model=MODEL, settings=keyed) as memory:
        assert "tree 1119" in memory.ask(QUESTION, mode="extract", session="birds").answer
        assert memory.forget(session="birds").n_keys == 1
    assert list(keys.iterdir()) == []


def test_a_reader_finds_what_a_writer_adds(tmp_path: Path) -> None:
    store = tmp_path / "s"
    with Memory.open(store, model=MODEL, settings=SMALL) as writer:
        writer.ingest("plain.md", text=b"The gate is green.", kv=False)
        with Memory.open(store, model=MODEL, settings=SMALL, read_only=True) as reader:
            assert "heron" not in reader.ask(QUESTION, mode="extract").answer
            writer.ingest("birds.md", text=TEXT.encode(), session="birds", encrypt=True, kv=False)
            assert "tree 1119" in reader.ask(QUESTION, mode="extract").answer
            writer.ingest("more.md", text=b"The crow of pond 99 sleeps on the roof.", session="birds")
            assert "roof" in reader.ask("Where does the crow of pond 99 sleep?", mode="extract").answer


def test_what_was_pruned_comes_back_encrypted_or_not_at_all(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("plain.md", text=b"The gate is green.", kv=False)
        memory.ingest("birds.md", text=b"The heron is back. It is Monday.", session="birds", encrypt=True, kv=False)
        memory.prune(session="birds", keep=1)
        (archived,) = memory.archived()
        assert archived.text.strip() == "The heron is back." and archived.source == "birds.md"
        with pytest.raises(InputError, match="in the clear"):
            memory.restore(session="default")
        memory.restore(session="found")
        assert memory.session("found").encrypted and memory.archived() == []
        assert b"The heron is back." in memory.text("found")
    assert in_the_clear(tmp_path) == []
