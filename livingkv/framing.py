"""Words to token ids and back: the tokenizer, and the chat framing around a session's text.

Knows the tokenizer and its chat template; knows no KV. The invariant of every session: its token stream always stands
inside an open user message. The prologue (system message and the opening of a user message) makes it so, an asked
question closes the message and opens the assistant's, and a finished turn opens a user message again. So recalled
passages, a hot window and a question form one well-formed conversation in any combination.

Text is encoded with special tokens split up: "<|im_end|>" in a document is seven harmless tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
from jinja2 import TemplateError
from tokenizers.decoders import DecodeStream

from livingkv.errors import UnsupportedModel
from livingkv.settings import PAGE_TOKENS
from livingkv.text import SentenceSpan

_MARKS = ("MARKONE", "MARKTWO", "MARKTHREE")


class Encoding(NamedTuple):
    """Token ids, and for each the characters [lo, hi) that it stands for."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class EncodedText(NamedTuple):
    """Token ids of a text, and for each of its sentences the half-open span of its tokens."""

    token_ids: list[int]
    sentence_tokens: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Framing:
    """Token ids of the chat template's pieces.

    prologue: opens a session, 1..64 tokens, always attended (the sinks). answer: from the end of a user message to
    the first token of the assistant's. reopen: from the end of the assistant's message to the first token of the
    next user's.
    """

    prologue: tuple[int, ...]
    answer: tuple[int, ...]
    reopen: tuple[int, ...]


class Words:
    """A model's tokenizer, with text and template kept apart. Not thread-safe."""

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        added = sorted(tokenizer.get_added_vocab(), key=len, reverse=True)
        self._added = re.compile("|".join(re.escape(token) for token in added) or r"(?!)")
        self.framing = _read_framing(tokenizer, self)

    @property
    def added(self) -> re.Pattern[str]:
        """Finds the strings that are tokens added to the vocabulary."""
        return self._added

    def encode_template(self, text: str) -> list[int]:
        """Token ids with special tokens recognised: only for text that comes from the template."""
        self._backend.encode_special_tokens = False
        return list(self._backend.encode(text, add_special_tokens=False).ids)

    def encode_rendered(self, text: str, guard: str) -> Encoding:
        """Token ids of a rendered template, special tokens recognised except those in which `guard` stands; offsets
        are those in the text without it."""
        self._backend.encode_special_tokens = False
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        start = 0
        for part in text.split(guard):
            encoding = self._backend.encode(part, add_special_tokens=False)
            ids.extend(encoding.ids)
            offsets.extend((lo + start, hi + start) for lo, hi in encoding.offsets)
            start += len(part)
        return Encoding(ids, offsets)

    def guarded(self, text: str, guard: str) -> str:
        """The text with `guard` in every string that would be a token added to the vocabulary."""
        return self._added.sub(lambda found: found[0][0] + guard + found[0][1:], text)

    def encode(self, text: str) -> list[int]:
        """Token ids of anybody's text; special tokens in it are split into ordinary ones."""
        return list(self.encode_with_offsets(text).ids)

    def encode_sentences(self, text: bytes, spans: Sequence[SentenceSpan]) -> EncodedText:
        """Token ids of UTF-8 `text` as a whole, and the tokens of its sentences; a token belongs where it begins."""
        words = text.decode("utf-8")
        return sentence_tokens(words, self.encode_with_offsets(words), spans)

    def stream(self) -> TextStream:
        """A fresh decoder of generated tokens."""
        return TextStream(self._backend)

    def encode_with_offsets(self, text: str) -> Encoding:
        """As `encode`, with character offsets. Tokens added to the vocabulary, such as <tool_call>, are cut in two
        before the tokenizer sees them, the special ones among them as well."""
        cuts = [0, *sorted({match.start() + 1 for match in self._added.finditer(text)}), len(text)]
        ids: list[int] = []
        offsets: list[tuple[int, int]] = []
        self._backend.encode_special_tokens = True
        try:
            for start, end in pairwise(cuts):
                part = self._backend.encode(text[start:end], add_special_tokens=False)
                ids.extend(part.ids)
                offsets.extend((lo + start, hi + start) for lo, hi in part.offsets)
        finally:
            self._backend.encode_special_tokens = False
        return Encoding(ids, offsets)


def sentence_tokens(text: str, encoding: Encoding, spans: Sequence[SentenceSpan]) -> EncodedText:
    """An encoded text with the tokens of its sentences; a token belongs where it begins."""
    n_bytes = np.fromiter(accumulate((len(char.encode()) for char in text), initial=0), np.int64)
    starts = n_bytes[[lo for lo, _ in encoding.offsets]] if encoding.ids else np.zeros(0, np.int64)
    borders = np.searchsorted(starts, [*(span.byte_lo for span in spans), n_bytes[-1]]).tolist()
    return EncodedText(list(encoding.ids), list(pairwise(borders)))


class TextStream:
    """Token ids to text piece by piece; a character whose bytes are spread over tokens comes out when it is whole.

    One that never gets whole does not come out, nor does a U+FFFD that is the last of all: the two look alike.
    """

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._stream = DecodeStream(skip_special_tokens=True)

    def push(self, token_id: int) -> str:
        """The text that became certain with this token; may be empty."""
        return self._stream.step(self._backend, token_id) or ""


def _read_framing(tokenizer: Any, words: Words) -> Framing:
    if not tokenizer.chat_template:
        first = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
        opening = first + words.encode("Text:\n")
        return Framing(tuple(opening), tuple(words.encode("\nAnswer:")), tuple(words.encode("\n\n")))
    one, two, three = _MARKS
    try:
        whole = _rendered(tokenizer)
        prologue, rest = whole.split(one)
        answer, rest = rest.split(two)
        reopen, closing = rest.split(three)
    except (ValueError, TemplateError) as error:
        reason = "its chat template does not put a user's and an assistant's words where they can be told apart"
        raise UnsupportedModel(f"the model cannot be used: {reason} ({error})") from error
    opening = words.encode_template(prologue)
    if len(opening) > PAGE_TOKENS:  # a long built-in system message: keep its beginning and the user opening
        keep = len(words.encode_template(reopen))
        opening = opening[: PAGE_TOKENS - keep] + opening[-keep:]
    return Framing(
        tuple(opening), tuple(words.encode_template(closing or answer)), tuple(words.encode_template(reopen))
    )


def _rendered(tokenizer: Any) -> str:
    one, two, three = _MARKS
    turns = [("user", one), ("assistant", two), ("user", three)]
    messages = [{"role": role, "content": content} for role, content in turns]
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
