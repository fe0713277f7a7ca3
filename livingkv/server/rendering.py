"""Messages to the token stream that the model's own chat template makes of them, in segments.

Knows the template and the tokenizer; knows no store and no KV. What people wrote is marked before it is rendered, with
characters that Unicode leaves unused: so it is found again, and a special token in it stays text. Only what the
template itself writes becomes special tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from livingkv.errors import InputError
from livingkv.framing import Words, sentence_tokens
from livingkv.server import text_pieces
from livingkv.server.segments import Segment, joined, whole_of
from livingkv.server.stepwise import pause
from livingkv.server.text_pieces import pieces_of
from livingkv.store import Role, SentenceRecord
from livingkv.text import SentenceSpan, split_sentences

Message = Mapping[str, Any]
Count = Callable[[int], None]
_NONCHARACTERS = [chr(code) for code in range(0xFDD0, 0xFDF0)]


class Vocabulary(Protocol):
    """What is asked of a model here: a LoadedModel or a StateModel."""

    @property
    def tokenizer(self) -> Any:
        """transformers' fast tokenizer."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """Token ids that end an answer."""


class Speaker(Protocol):
    """A model and its words: an Engine, or what chats without one."""

    @property
    def model(self) -> Vocabulary:
        """The model."""

    @property
    def words(self) -> Words:
        """Its tokenizer, with text and template kept apart."""


@dataclass(frozen=True, slots=True)
class _Marks:
    """Characters that stand in no message: before a user's text and a tool's, behind both, behind a reply, and inside
    of what would be a special token."""

    user: str
    tool: str
    close: str
    reply: str
    guard: str


class ChatTemplate:
    """A model's chat template. Not thread-safe, as the tokenizer is not."""

    def __init__(self, engine: Speaker) -> None:
        self._tokenizer = engine.model.tokenizer
        self._words = engine.words
        self._stops = tuple(self._tokenizer.convert_ids_to_tokens(sorted(engine.model.stop_ids)))
        self._strips = self._header = None
        if self._tokenizer.chat_template:
            plain: list[Message] = [{"role": "user", "content": "  x  "}]
            closed, opened = self._render(plain, None, reply=False), self._render(plain, None, reply=True)
            self._strips = "  x  " not in closed
            self._header = opened.removeprefix(closed)

    def segments(
        self, messages: Sequence[Message], tools: Sequence[Any] | None = None, *, count: Count | None = None
    ) -> list[Segment]:
        """The whole conversation, up to where the reply begins. Long texts are tokenised in pieces, with a pause before
        each; while more than a piece is left, `count` gets the tokens so far, and may raise.

        Raises InputError for what the template refuses.
        """
        return self._cut(self._marked(messages, tools), count)

    def next_segments(self, messages: Sequence[Message], *, count: Count | None = None) -> list[Segment]:
        """What follows a reply that was just generated, up to where the next one begins; as `segments`."""
        before: list[Message] = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "x"}]
        whole = self._cut(self._marked([*before, *messages], None), count)
        reply = next((n for n, segment in enumerate(whole) if segment.role == "assistant"), None)
        if reply is None:
            raise InputError("history", "stored", "this model's chat template needs the whole conversation")
        return whole[reply + 1 :]

    def _marked(self, messages: Sequence[Message], tools: Sequence[Any] | None) -> tuple[str, _Marks]:
        if self._header is None:
            raise InputError("model", "no chat template", "use /v1/completions with this model")
        written = json.dumps([list(messages), tools], ensure_ascii=False)
        free = [mark for mark in _NONCHARACTERS if mark not in written]
        if len(free) < 5:
            raise InputError("messages", "noncharacters of Unicode", "text is allowed")
        marks = _Marks(*free[:5])
        rendered = self._render([self._prepared(message, marks) for message in messages], self._guarded(tools, marks))
        if tools and rendered == self._render([self._prepared(message, marks) for message in messages], None):
            raise InputError("tools", f"{len(tools)}", "this model's chat template knows no tools: leave them out")
        return rendered, marks

    def _render(self, messages: Sequence[Message], tools: Any, *, reply: bool = True) -> str:
        try:
            return str(
                self._tokenizer.apply_chat_template(
                    list(messages), tools=tools, tokenize=False, add_generation_prompt=reply
                )
            )
        except (TemplateError, TypeError, KeyError, AttributeError, IndexError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError("messages", "what the model's chat template refuses", reason or "see its roles") from error

    def _prepared(self, message: Message, marks: _Marks) -> dict[str, Any]:
        """One message as the template gets it, its text marked."""
        role, content = message["role"], self._words.guarded(message.get("content") or "", marks.guard)
        if self._strips:
            content = content.strip()
        others = {
            name: self._guarded(value, marks) for name, value in message.items() if name not in ("role", "content")
        }
        if role in ("user", "tool"):
            return {**others, "role": role, "content": getattr(marks, role) + content + marks.close}
        if role != "assistant":
            return {**others, "role": role, "content": content}
        calls = others.get("tool_calls")
        if content or not calls:
            return {**others, "role": role, "content": content + marks.reply}
        first = calls[0]["function"]
        first["name"] = f"{first['name']}{marks.reply}"
        return {**others, "role": role, "content": ""}

    def _guarded(self, value: Any, marks: _Marks) -> Any:
        """A copy of JSON in which no string holds a special token."""
        if isinstance(value, str):
            return self._words.guarded(value, marks.guard)
        if isinstance(value, Mapping):
            return {self._guarded(name, marks): self._guarded(item, marks) for name, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._guarded(item, marks) for item in value]
        return value

    def _cut(self, marked: tuple[str, _Marks], count: Count | None) -> list[Segment]:
        """The rendered text in segments."""
        rendered, marks = marked
        found: list[Segment] = []
        meter = _Meter(len(rendered), count)
        done = 0
        for mark in re.finditer(f"[{marks.user}{marks.tool}{marks.reply}]", rendered):
            at = mark.start()
            if at < done:
                continue
            role: Role = "assistant" if mark[0] == marks.reply else "user" if mark[0] == marks.user else "document"
            if role == "assistant":
                lo, hi = self._reply_start(rendered, done, at), self._reply_end(rendered, at)
            else:
                lo, hi = at, rendered.find(marks.close, at) + 1
            if lo is not None and hi > lo:
                found.append(self._segment("template", rendered[done:lo], marks, meter))
                found.append(self._segment(role, rendered[lo:hi], marks, meter))
                done = hi
        return joined([*found, self._segment("template", rendered[done:], marks, meter)])

    def _reply_start(self, rendered: str, lo: int, mark: int) -> int | None:
        assert self._header is not None
        found = rendered.rfind(self._header, lo, mark)
        return None if found < 0 else found + len(self._header)

    def _reply_end(self, rendered: str, mark: int) -> int:
        ends = [end for stop in self._stops if (end := rendered.find(stop, mark)) >= 0]
        return min(ends, default=len(rendered))

    def _segment(self, role: Role, text: str, marks: _Marks, meter: _Meter) -> Segment:
        """A part of the rendered text without marks, tokenised piece by piece; where the guard stands, no special token
        is recognised."""
        unmarked = re.sub(f"[{marks.user}{marks.tool}{marks.close}{marks.reply}]", "", text)
        if role in ("user", "document"):
            unmarked = unmarked.replace(marks.guard, "")
        parts: list[Segment] = []
        for piece in pieces_of(unmarked, self._words.added):
            pause()
            parts.append(self._piece(role, piece, marks.guard))
            meter.took(len(piece), len(parts[-1].ids))
        return whole_of(parts)

    def _piece(self, role: Role, text: str, guard: str) -> Segment:
        if role == "template":
            return Segment(role, np.array(self._words.encode_rendered(text, guard).ids, np.int32))
        words = text.replace(guard, "")
        spans = split_sentences(words.encode()) if words else []
        if role == "assistant":
            encoded = sentence_tokens(words, self._words.encode_rendered(text, guard), spans)
        else:
            encoded = self._words.encode_sentences(words.encode(), spans)
        return Segment(role, np.array(encoded.token_ids, np.int32), words, records(spans, encoded.sentence_tokens))


@dataclass(slots=True)
class _Meter:
    """How much of a rendered text is tokenised."""

    n_chars_left: int
    count: Count | None
    n_tokens: int = 0

    def took(self, n_chars: int, n_tokens: int) -> None:
        self.n_chars_left -= n_chars
        self.n_tokens += n_tokens
        if self.count is not None and self.n_chars_left > text_pieces.PIECE_CHARS:
            self.count(self.n_tokens)


def records(spans: Sequence[SentenceSpan], tokens: Sequence[tuple[int, int]]) -> tuple[SentenceRecord, ...]:
    """Sentences of a piece, in its bytes and its tokens."""
    return tuple(SentenceRecord(*span, *place) for span, place in zip(spans, tokens, strict=True))
