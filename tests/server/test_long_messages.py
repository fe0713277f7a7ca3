"""Texts of megabytes are tokenised in pieces: others have steps in between, and what cannot fit is refused soon."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from statistics import median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from livingkv.engine import Engine
from livingkv.framing import Words
from livingkv.server import text_pieces
from livingkv.server.rendering import ChatTemplate
from livingkv.server.stepwise import in_steps
from livingkv.server.text_pieces import pieces_of
from tests.server.serving import CHAT, Served, cached, said, serving, talk, tiny_model, wait_until

WORDS = "The shed is blue, and its code is 4471. \n"


@pytest.fixture(scope="module", name="engine")
def make_engine() -> Engine:
    """A tiny model's engine."""
    return Engine.of(tiny_model(), "int8")


@settings(max_examples=300, deadline=None)
@given(
    text=st.text(alphabet="ab \n<|im_end|>é", max_size=200),
    size=st.integers(min_value=12, max_value=40),
)
def test_pieces_are_the_text_and_cut_no_special_token(engine: Engine, text: str, size: int) -> None:
    found = list(pieces_of(text, engine.words.added, size))
    assert "".join(found) == text and all(len(piece) <= size for piece in found)
    cuts = [sum(map(len, found[:n])) for n in range(1, len(found))]
    assert not any(match.start() < cut < match.end() for match in engine.words.added.finditer(text) for cut in cuts)


def test_pieces_end_where_lines_or_words_do(engine: Engine) -> None:
    assert list(pieces_of("one two\nthree four\nfive", engine.words.added, 12)) == ["one two\n", "three four\n", "five"]
    assert list(pieces_of("one two three four", engine.words.added, 8)) == ["one two", " three", " four"]
    assert list(pieces_of("", engine.words.added, 8)) == [""]


@pytest.mark.parametrize("role", ["system", "user", "assistant"])
def test_a_text_in_pieces_says_the_same(engine: Engine, monkeypatch: pytest.MonkeyPatch, role: str) -> None:
    text = WORDS * 20 + "<|im_end|>" + WORDS * 20 + "end"
    messages: list[Any] = [{"role": role, "content": text}, {"role": "user", "content": "And now?"}]
    template = ChatTemplate(engine)
    whole = template.segments(messages)
    monkeypatch.setattr(text_pieces, "PIECE_CHARS", 100)
    parts = template.segments(messages)
    assert [(part.role, part.text) for part in parts] == [(part.role, part.text) for part in whole]
    decode = engine.model.tokenizer.decode
    assert [decode(part.ids.tolist()) for part in parts] == [decode(part.ids.tolist()) for part in whole]
    for part in parts:
        raw = part.text.encode()
        spans = [(one.byte_lo, one.byte_hi) for one in part.sentences]
        tokens = [(one.token_lo, one.token_hi) for one in part.sentences]
        assert not raw or (b"".join(raw[lo:hi] for lo, hi in spans) == raw and tokens[-1][1] == len(part.ids))
        assert all(before[1] == after[0] for before, after in pairwise(tokens))
        for (lo, hi), (first, last) in zip(spans, tokens, strict=True):
            assert decode(part.ids[first:last].tolist()).strip() == raw[lo:hi].decode().strip()


def test_it_pauses_between_pieces_and_stops_counting_where_nothing_fits(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text_pieces, "PIECE_CHARS", 400)
    template, seen = ChatTemplate(engine), list[int]()
    messages: list[Any] = [{"role": "user", "content": WORDS * 100}]
    assert len(list(in_steps(lambda: template.segments(messages, count=seen.append)))) >= 10
    assert seen == sorted(seen) and len(seen) >= 10

    def refuse(n_tokens: int) -> None:
        raise ValueError(n_tokens)

    with pytest.raises(ValueError, match=str(seen[0])):
        list(in_steps(lambda: template.segments(messages, count=refuse)))


@pytest.fixture(scope="module", name="roomy")
def start_roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service with a service context of 4,096 tokens, two requests side by side."""
    with serving(tmp_path_factory.mktemp("roomy") / "stores", context_tokens=4096) as served:
        yield served


BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "one message": (CHAT, {"messages": talk(WORDS * 75_000)}),
    "a system message": (CHAT, {"messages": [{"role": "system", "content": WORDS * 75_000}, *talk("Hi.")]}),
    "a reply": (CHAT, {"messages": talk("Hi.", WORDS * 75_000, "And?")}),
    "many messages": (CHAT, {"messages": talk(*[WORDS * 75] * 999)}),
    "a prompt": ("/v1/completions", {"prompt": WORDS * 75_000}),
    "an input": ("/v1/embeddings", {"input": WORDS * 75_000}),
}


@pytest.mark.slow
@pytest.mark.parametrize("body", BODIES)
def test_a_message_of_megabytes_is_refused_soon_and_holds_nobody_up(
    roomy: Served, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    path, fields = BODIES[body]
    encoded: list[int] = []
    for name in ("encode_rendered", "encode_with_offsets", "encode_template"):
        monkeypatch.setattr(Words, name, noting(getattr(Words, name), encoded))
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(roomy.post, fields, path)
        gaps: list[float] = []
        while not sent.done():
            started = time.monotonic()
            assert roomy.post({"messages": talk("Hi."), "max_tokens": 1, "store": False}).status_code == 200
            gaps.append(time.monotonic() - started)
    answer = sent.result()
    assert median(gaps) < 1.0
    assert answer.status_code == 400 and answer.json()["error"]["code"] == "context_length_exceeded", answer.text
    assert "4096" in answer.json()["error"]["message"]
    assert max(encoded) <= 1 << 16 and sum(encoded) < 500_000


def noting(encode: Any, sizes: list[int]) -> Any:
    """The same method, the size of what it gets noted."""

    def noted(self: Words, text: str, *args: Any) -> Any:
        sizes.append(len(text))
        return encode(self, text, *args)

    return noted


@pytest.mark.slow
def test_a_long_message_that_fits_is_stored_whole_and_goes_on(roomy: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_pieces, "PIECE_CHARS", 1000)
    text = WORDS * 60
    first = roomy.chat(text, session="long")
    wait_until(lambda: roomy.stored("long").decode().startswith(text))
    second = roomy.chat(text, said(first), "And now?", session="long")
    assert cached(second) == first["usage"]["total_tokens"]
