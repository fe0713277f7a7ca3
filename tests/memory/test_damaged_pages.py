"""Damaged KV never becomes an answer unseen: recall reads the kept text again and says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from livingkv import Memory, Settings
from livingkv.errors import InputError, PageDamaged
from livingkv.models import DualChunk
from tests.tiny import tiny_model

SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(40)).encode()
MODEL = tiny_model()


def damage_all_pages(store: Path) -> None:
    """Flip one bit in the middle of every page."""
    with Memory.open(store, read_only=True) as memory:
        n_pages = memory.stats().n_pages
        payload = memory._home.store().read_pages(1, [0])[0]
    damaged = 0
    for segment in sorted((store / "segments").iterdir()):
        data = bytearray(segment.read_bytes())
        at = data.find(payload[:16])
        while at >= 0:
            data[at + len(payload) // 2] ^= 16
            damaged += 1
            at = data.find(payload[:16], at + 1)
        segment.write_bytes(data)
    assert damaged == n_pages > 3


@pytest.fixture
def damaged_store(tmp_path: Path) -> Path:
    """A store in which no page is whole."""
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
    damage_all_pages(tmp_path / "s")
    return tmp_path / "s"


def test_check_names_every_damaged_page(damaged_store: Path) -> None:
    with Memory.open(damaged_store, read_only=True) as memory:
        report = memory.check()
    assert len([problem for problem in report.problems if "page" in problem]) == report.n_pages


def test_kv_falls_back_to_the_text_and_says_so(damaged_store: Path) -> None:
    with Memory.open(damaged_store, model=MODEL, read_only=True) as memory:
        answer = memory.ask("What is the code of door 17?", mode="kv", max_tokens=8)
    assert answer.mode == "ground" and "read again" in answer.reason
    assert answer.evidence and answer.prefilled_tokens > 50


def test_hits_are_judged_although_their_pages_are_damaged(damaged_store: Path) -> None:
    with Memory.open(damaged_store, model=MODEL, read_only=True) as memory:
        answer = memory.ask("What is the code of door 17?", max_tokens=8)
    assert "nothing stored" not in answer.reason
    assert answer.evidence


def test_exact_and_resume_refuse_damaged_pages(damaged_store: Path) -> None:
    with Memory.open(damaged_store, model=MODEL, read_only=True) as memory:
        for mode in ("exact", "resume"):
            with pytest.raises(PageDamaged, match="page"):
                memory.ask("What?", mode=mode, session="default")


def test_placements_answer_from_the_same_pages(tmp_path: Path) -> None:
    model = tiny_model("qwen2", dual_chunk=DualChunk(512, 128, 2048))
    with Memory.open(tmp_path / "s", model=model, settings=SMALL) as memory:
        memory.ingest("doors", text=TEXT)
    for placement in ("compact", "absolute", "dual_chunk"):
        settings = Settings.from_dict({"placement": placement})
        with Memory.open(tmp_path / "s", model=model, settings=settings, read_only=True) as memory:
            answer = memory.ask("What is the code of door 17?", mode="kv", max_tokens=8)
            assert answer.mode == "kv" and answer.reused_tokens > 20


def test_dual_chunk_placement_needs_a_model_with_it(tmp_path: Path) -> None:
    settings = Settings.from_dict({"placement": "dual_chunk"})
    with Memory.open(tmp_path / "s", model=MODEL, settings=settings) as memory, pytest.raises(InputError, match="dual"):
        memory.ingest("doors", text=TEXT)
