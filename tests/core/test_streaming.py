"""Characters spread over tokens: cut anywhere, text comes out whole, byte for byte, and never as U+FFFD."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv import Memory, Settings
from livingkv.errors import SourceError
from livingkv.framing import Words
from livingkv.generation import collect
from livingkv.sampling import Sampler
from tests.tiny import tiny_model, tiny_tokenizer

TEXT = "Ü 日本語。👩‍👩‍👧‍👦 🏳️‍🌈! 🇩🇪 e\u0301 𝔘 한국 ok."
"""Characters of 1 to 4 bytes, and graphemes of many code points. To the tiny tokenizer nearly every byte is a token."""

WORDS = Words(tiny_tokenizer())
MODEL = tiny_model()
SMALL = Settings(window_tokens=256, block_tokens=64, commit_tokens=64)


def begun(text: str, n_bytes: int) -> str:
    """The whole characters within the first bytes of a text."""
    return text.encode()[:n_bytes].decode(errors="ignore")


def test_a_reply_cut_after_any_token_ends_with_a_whole_character() -> None:
    ids = WORDS.encode(TEXT)
    assert len(ids) > 80
    for n in range(len(ids) + 1):
        told: list[str] = []
        done = collect(iter(ids[:n]), WORDS.stream(), n + 1, on_text=told.append)
        n_bytes = sum(len(WORDS._backend.id_to_token(token)) for token in ids[:n])  # one character for each byte
        assert done.text == "".join(told) == "".join(done.pieces) == begun(TEXT, n_bytes)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"), max_size=40))
@settings(max_examples=200, deadline=None)
def test_any_text_streams_byte_for_byte(text: str) -> None:
    stream = WORDS.stream()
    assert "".join(stream.push(token) for token in WORDS.encode(text)).encode() == text.encode()


@pytest.mark.model
def test_the_default_models_tokens_stream_byte_for_byte() -> None:
    from transformers import AutoTokenizer

    from livingkv.model_sources import find_model

    words = Words(AutoTokenizer.from_pretrained(find_model(None).folder))
    composed = unicodedata.normalize("NFC", TEXT)  # its tokens do not tell the two forms apart
    ids = words.encode(TEXT)
    for n in range(len(ids) + 1):
        text = collect(iter(ids[:n]), words.stream(), n + 1).text
        assert composed.startswith(text)
    assert text == composed


@pytest.mark.slow
def test_a_text_cut_at_any_byte_is_ingested_whole_or_refused(tmp_path: Path) -> None:
    data = TEXT.encode()
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        for cut in range(1, len(data)):
            name = f"cut {cut}"
            whole = begun(TEXT, cut).encode() == data[:cut]
            for part in (data[:cut], data[cut:]):
                if whole:
                    memory.ingest(name, text=part, session=name, kv=False)
                    continue
                with pytest.raises(SourceError, match="UTF-8"):
                    memory.ingest(name, text=part, session=name, kv=False)
            if whole:
                assert memory.text(name) == data
        sentences = memory._home.store().sentences_after(None, 10_000)
        assert sentences and not any("\ufffd" in sentence.text for sentence in sentences)


@pytest.mark.slow
def test_a_turn_cut_after_any_token_is_told_and_stored_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = WORDS.encode(TEXT)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SMALL) as memory:
        for n in range(1, len(ids), 3):
            told: list[str] = []
            coming = iter(ids)
            monkeypatch.setattr(Sampler, "pick", lambda sampler, logits, coming=coming: next(coming))
            turn = memory.chat("Say it.", session=f"talk {n}", max_tokens=n, on_text=told.append)
            said = "".join(told)
            assert TEXT.startswith(said) and turn.answer == said.strip()
            assert memory.text(f"talk {n}") == b"Say it." + said.encode()
