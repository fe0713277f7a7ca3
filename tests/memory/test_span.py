"""How far documents look back is a property of the store: stored once, in force ever after, repaired as it was read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.errors import InputError, RecordDamaged
from livingkv.settings import DEFAULT_SPAN, LookBack
from livingkv.store.manifest import MANIFEST
from tests.memory.test_damaged_pages import damage_all_pages
from tests.memory.test_keeping import decoded
from tests.tiny import tiny_model

MODEL = tiny_model("qwen2")
WINDOW = 512
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(60)).encode()


def settings(span_tokens: int | None = None, block_tokens: int = 64) -> Settings:
    return Settings(
        window_tokens=WINDOW,
        block_tokens=block_tokens,
        commit_tokens=192,
        codec="lossless",
        span_tokens=span_tokens,
    )


def look(path: Path, wish: Settings) -> LookBack:
    with Memory.open(path, model=MODEL, settings=wish, read_only=True) as memory:
        return memory._home.settings.document


def without_span(path: Path) -> None:
    """Make it a store of an earlier livingkv."""
    file = path / MANIFEST
    document = json.loads(file.read_text("utf-8"))
    del document["labels"]["span_tokens"]
    file.write_text(json.dumps(document), "utf-8")


def test_the_span_stays_with_the_store(tmp_path: Path) -> None:
    for span in (None, 64, WINDOW):
        path = tmp_path / str(span)
        with Memory.open(path, model=MODEL, settings=settings(span)) as memory:
            memory.ingest("doors", text=TEXT)
        expected = {None: LookBack(DEFAULT_SPAN, 2 * DEFAULT_SPAN), 64: LookBack(64, 128), WINDOW: LookBack(WINDOW)}
        assert look(path, settings()) == expected[span]
        with pytest.raises(InputError, match="migrate"):
            Memory.open(path, model=MODEL, settings=settings(192))


def test_documents_of_an_earlier_store_look_back_over_the_whole_window(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings()) as memory:
        memory.ingest("doors", text=TEXT)
    without_span(tmp_path / "s")
    assert look(tmp_path / "s", settings()) == LookBack(WINDOW)


def test_a_label_that_is_no_number_is_damage(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings()) as memory:
        memory.ingest("doors", text=TEXT)
    file = tmp_path / "s" / MANIFEST
    file.write_text(file.read_text("utf-8").replace('"span_tokens": "128"', '"span_tokens": "far"'), "utf-8")
    with pytest.raises(RecordDamaged, match="span_tokens"):
        Memory.open(tmp_path / "s", model=MODEL, settings=settings()).session("default")


def repaired(path: Path, wish: Settings) -> float:
    """How far KV is from what it was, at most, after the loss and the repair of every page."""
    with Memory.open(path, model=MODEL, settings=wish) as memory:
        memory.ingest("doors", text=TEXT)
        before = decoded(memory, "default")
    damage_all_pages(path)
    with Memory.open(path, model=MODEL, settings=replace(wish, span_tokens=None)) as memory:
        memory.repair()
        after = decoded(memory, "default")
    return max(float((one - two).abs().max()) for one, two in zip(before, after, strict=True))


@pytest.mark.parametrize("span", [64, pytest.param(128, marks=pytest.mark.slow)])
@pytest.mark.parametrize("block", [64, 4096])
def test_a_document_longer_than_its_span_is_repaired_as_it_was_read(tmp_path: Path, span: int, block: int) -> None:
    assert repaired(tmp_path / "s", settings(span, block)) < 2e-3


def test_what_is_stored_of_a_document_does_not_depend_on_the_block(tmp_path: Path) -> None:
    stored = []
    for block in (64, 128, 4096):
        with Memory.open(tmp_path / str(block), model=MODEL, settings=settings(64, block)) as memory:
            memory.ingest("doors", text=TEXT)
            stored.append(decoded(memory, "default"))
    for kv in stored[1:]:
        assert max(float((one - two).abs().max()) for one, two in zip(kv, stored[0], strict=True)) < 2e-3


@pytest.mark.parametrize("wrong", [0, 65, -64, True, "128", 1.5])
def test_a_wrong_span_is_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="span_tokens"):
        Settings.from_dict({"span_tokens": wrong})
