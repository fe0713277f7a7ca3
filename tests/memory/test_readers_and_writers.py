"""Readers beside a writer, locks after failures, and what cannot be asked."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from livingkv import Memory, Settings
from livingkv.errors import FingerprintMismatch, InputError, QuestionError, RecordDamaged, StoreNotFound
from livingkv.framing import Words
from livingkv.stored_kv import StoredKV, restore_hot_window
from livingkv.text import SentenceSpan
from tests.tiny import tiny_model

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(8)).encode()
MODEL = tiny_model()
QUESTION = "What is the code of door 5?"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with one source."""
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
    return tmp_path / "s"


def test_a_row_that_a_writer_made_old_still_gives_the_right_kv(store: Path) -> None:
    with (
        Memory.open(store, model=MODEL, settings=SMALL) as writer,
        Memory.open(store, model=MODEL, read_only=True) as reader,
    ):
        home = reader._home
        row = home.store().session("default")
        kv = StoredKV(home.store(), home.engine(), home.pages())
        want = kv.run(row, row.n_sealed_tokens - 10, row.n_tokens)
        writer.ingest("more", text=TEXT.replace(b"door", b"gate"))
        assert home.store().session("default").n_sealed_tokens > row.n_sealed_tokens
        got = StoredKV(home.store(), home.engine(), home.pages()).run(row, row.n_sealed_tokens - 10, row.n_tokens)
        assert got.keys.shape == want.keys.shape
        step = want.keys.abs().max() / 100  # the tail was lossless, its page is 8-bit now
        assert (got.keys - want.keys).abs().max() < step
        hot = restore_hot_window(home.store(), home.engine(), row, SMALL, home.n_sinks)
        assert hot.n_tokens == home.store().session("default").n_tokens


def test_a_reader_finds_what_a_writer_adds_later(store: Path) -> None:
    with (
        Memory.open(store, model=MODEL, settings=SMALL) as writer,
        Memory.open(store, model=MODEL, read_only=True) as reader,
    ):
        assert "okapi" not in reader.ask("Where is the okapi?", mode="extract").answer
        writer.ingest("more", text=b"The okapi sleeps behind the barn.")
        assert "okapi" in reader.ask("Where is the okapi?", mode="extract").answer


def test_a_reader_never_writes_the_index(store: Path) -> None:
    def files() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in (store / "index").rglob("*") if path.is_file()}

    for path in (store / "index" / "lexical").iterdir():
        if path.name.endswith("meta.json"):
            path.write_bytes(b"{")
    before = files()
    with Memory.open(store, read_only=True) as reader:
        assert "1035" in reader.ask(QUESTION, mode="extract").answer
        assert any(problem.startswith("index") for problem in reader.check().problems)
    assert files() == before
    with Memory.open(store, model=MODEL, settings=SMALL) as writer:
        assert "1035" in writer.ask(QUESTION, mode="extract").answer
        assert writer.check().problems == ()


def test_extract_loads_no_model_whatever_the_index_misses(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **others: object) -> None:
        raise AssertionError("a model was loaded")

    writer = Memory.open(store, model=MODEL, settings=SMALL)
    writer.ingest("more", text=b"The okapi sleeps behind the barn.")  # committed, and not yet durable in the index
    monkeypatch.setattr("livingkv.model_choice.load_model", refuse)
    with Memory.open(store, read_only=True) as reader:
        assert "okapi" in reader.ask("Where is the okapi?", mode="extract").answer
    writer.close()


def test_a_failed_open_leaves_no_lock(store: Path) -> None:
    with pytest.raises(FingerprintMismatch):
        Memory.open(store, model=tiny_model(seed=4))
    with pytest.raises(InputError, match="codec"):
        Memory.open(store, settings=Settings(codec="lossless"))
    with Memory.open(store, model=MODEL) as memory:
        assert memory.text("default") == TEXT


def test_settings_without_a_codec_fit_every_store(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=Settings(codec="lossless")) as memory:
        memory.ingest("a", text=b"One.")
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("b", text=b"Two.")
        assert memory.stats().codec == "lossless"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"mode": "guess"}, "mode"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"max_tokens": 1 << 30}, "max_tokens"),
    ],
)
def test_what_cannot_be_asked_is_named(store: Path, arguments: dict[str, Any], named: str) -> None:
    with Memory.open(store, model=MODEL, read_only=True) as memory, pytest.raises(InputError, match=named):
        memory.ask(QUESTION, **arguments)


def test_text_that_is_no_text_is_refused(store: Path) -> None:
    with Memory.open(store, model=MODEL) as memory:
        for call in (memory.ask, memory.chat):
            with pytest.raises(QuestionError, match="surrogate"):
                call("What is \udcff?")
        assert memory.text("default") == TEXT


def test_a_bad_session_name_makes_no_store(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL) as memory, pytest.raises(InputError, match="session name"):
        memory.ingest("a", text=b"One.", session="a\nb")
    with pytest.raises(StoreNotFound):
        Memory.open(tmp_path / "s", read_only=True)


def test_prefilled_tokens_are_those_before_the_first_answer_token(store: Path) -> None:
    with Memory.open(store, model=MODEL, settings=SMALL, read_only=True) as memory:
        counts = {memory.ask(QUESTION, mode="kv", max_tokens=n).prefilled_tokens for n in (1, 2, 30)}
    assert len(counts) == 1


def test_an_index_of_a_later_moment_is_made_anew(store: Path, tmp_path: Path) -> None:
    """A copy made while a writer was at work: the index of after, the catalog of before."""
    before = tmp_path / "before"
    shutil.copytree(store, before)
    with Memory.open(store, model=MODEL, settings=SMALL) as writer:
        writer.ingest("late", text=b"The pump was sold to Olga. Nobody minds.")
    shutil.rmtree(before / "index")
    shutil.copytree(store / "index", before / "index")
    with Memory.open(before, model=MODEL, settings=SMALL, read_only=True) as reader:
        assert "Olga" not in reader.ask("Who was the pump sold to?", mode="extract").answer
    with Memory.open(before, model=MODEL, settings=SMALL) as writer:
        writer.ingest("zebra", text=b"The zebra password is stripes.")
        assert "stripes" in writer.ask("What is the zebra password?", mode="extract").answer


@pytest.mark.parametrize("harm", ["gone", "short", "flipped"])
def test_damaged_vectors_heal(store: Path, harm: str) -> None:
    (vectors,) = (store / "index").glob("vectors-*")
    data = bytearray(vectors.read_bytes())
    vectors.unlink()
    if harm == "short":
        vectors.write_bytes(data[: len(data) // 2])
    elif harm == "flipped":
        data[len(data) // 2] ^= 4
        vectors.write_bytes(data)
    with Memory.open(store, model=MODEL, settings=SMALL, read_only=True) as reader:
        assert reader.ask(QUESTION, mode="kv", max_tokens=3).evidence
    with Memory.open(store, model=MODEL, settings=SMALL) as writer:
        writer.ingest("more", text=b"One more.")
        assert writer.ask(QUESTION, mode="kv", max_tokens=3).evidence
    with Memory.open(store, read_only=True) as reader:
        assert reader.check().problems == ()


def test_a_cut_off_catalog_is_an_error_and_no_crash(store: Path) -> None:
    catalog = store / "catalog" / "data.mdb"
    os.truncate(catalog, catalog.stat().st_size // 2)
    with pytest.raises(RecordDamaged, match="repair"):
        Memory.open(store, read_only=True)


@pytest.mark.parametrize("token", ["<|im_end|>", "<|endoftext|>"])
def test_template_tokens_in_text_are_ordinary_text(store: Path, token: str) -> None:
    words = Words(MODEL.tokenizer)
    special = MODEL.tokenizer.convert_tokens_to_ids(token)
    assert special not in words.encode(f"a {token} b{token}")
    text = f"First {token}. Second ü {token} one.".encode()
    encoded = words.encode_sentences(text, [SentenceSpan(0, 10), SentenceSpan(10, len(text))])
    assert special not in encoded.token_ids
    assert encoded.sentence_tokens[0][0] == 0 and encoded.sentence_tokens[1][1] == len(encoded.token_ids)
    assert MODEL.tokenizer.decode(encoded.token_ids) == text.decode()
