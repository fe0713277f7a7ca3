"""Events of a request in the shapes of OpenAI's answers, whole or chunk by chunk.

Knows the shapes; knows no HTTP and no model.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

from livingkv.server.events import Began, Done, TokenLogprob, Wrote
from livingkv.server.memory_shapes import shown_recollection
from livingkv.server.token_texts import TokenText


def usage_of(done: Done) -> dict[str, Any]:
    """What was read and written. cached_tokens: tokens of the prompt whose stored state was reused."""
    return {
        "prompt_tokens": done.n_prompt,
        "completion_tokens": done.n_generated,
        "total_tokens": done.n_prompt + done.n_generated,
        "prompt_tokens_details": {"cached_tokens": done.n_cached, "audio_tokens": 0},
    }


@dataclass(slots=True)
class _Answer:
    """What all of one answer's parts have in common."""

    model: str
    prefix: str
    kind: str
    created: int = field(default_factory=lambda: int(time.time()))
    answer_id: str = field(default_factory=lambda: token_hex(12))

    def head(self, kind: str) -> dict[str, Any]:
        return {
            "id": f"{self.prefix}-{self.answer_id}",
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
        }


class ChatAnswer(_Answer):
    """One answer of /v1/chat/completions."""

    def __init__(self, model: str, *, with_logprobs: bool) -> None:
        super().__init__(model, "chatcmpl", "chat.completion")
        self._with_logprobs = with_logprobs

    def whole(self, began: Began, wrote: Sequence[Wrote], done: Done) -> dict[str, Any]:
        """The answer at once."""
        text = "".join(each.text for each in wrote)
        message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
        if done.calls:
            message["tool_calls"] = list(_calls(done))
            message["content"] = text or None
        tokens = [token for each in wrote for token in each.tokens]
        choice = {
            "index": 0,
            "message": message,
            "logprobs": self._logprobs(tokens),
            "finish_reason": done.finish,
        }
        answer = {**self.head(self.kind), "choices": [choice], "usage": usage_of(done), "livingkv": told(began, done)}
        return answer | _memory(done)

    def first(self) -> dict[str, Any]:
        """The first chunk: who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def more(self, wrote: Wrote) -> dict[str, Any]:
        """A chunk of text."""
        return self._chunk({"content": wrote.text}, wrote.tokens)

    def last(self, done: Done) -> Iterator[dict[str, Any]]:
        """The tool calls, then the chunk that says why it ended."""
        for index, call in enumerate(_calls(done)):
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, finish=done.finish) | _memory(done)

    def usage(self, began: Began, done: Done) -> dict[str, Any]:
        """The chunk after the last, for who asked for it."""
        head = self.head("chat.completion.chunk")
        return {**head, "choices": [], "usage": usage_of(done), "livingkv": told(began, done)}

    def _chunk(
        self, delta: dict[str, Any], tokens: Sequence[TokenLogprob] = (), finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "logprobs": self._logprobs(tokens), "finish_reason": finish}
        return {**self.head("chat.completion.chunk"), "choices": [choice]}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        return {"content": [_logprob(token) for token in tokens], "refusal": None}


class CompletionAnswer(_Answer):
    """One answer of /v1/completions. `echo` is what comes before the generated text."""

    def __init__(self, model: str, *, with_logprobs: bool, echo: str = "") -> None:
        super().__init__(model, "cmpl", "text_completion")
        self._with_logprobs = with_logprobs
        self._echo = echo
        self._n_chars = 0

    def whole(self, began: Began, wrote: Sequence[Wrote], done: Done) -> dict[str, Any]:
        """The answer at once."""
        text = self._echo + "".join(each.text for each in wrote)
        tokens = [token for each in wrote for token in each.tokens]
        return {**self.head(self.kind), "choices": [self._choice(text, tokens, done.finish)], "usage": usage_of(done)}

    def first(self) -> dict[str, Any]:
        """The first chunk: the prompt, for who wants it back."""
        return {**self.head(self.kind), "choices": [self._choice(self._echo, (), None)]}

    def more(self, wrote: Wrote) -> dict[str, Any]:
        """A chunk of text."""
        return {**self.head(self.kind), "choices": [self._choice(wrote.text, wrote.tokens, None)]}

    def last(self, done: Done) -> Iterator[dict[str, Any]]:
        """The chunk that says why it ended."""
        yield {**self.head(self.kind), "choices": [self._choice("", (), done.finish)]}

    def usage(self, began: Began, done: Done) -> dict[str, Any]:
        """The chunk after the last, for who asked for it."""
        return {**self.head(self.kind), "choices": [], "usage": usage_of(done)}

    def _choice(self, text: str, tokens: Sequence[TokenLogprob], finish: str | None) -> dict[str, Any]:
        return {"index": 0, "text": text, "logprobs": self._logprobs(tokens), "finish_reason": finish}

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
        if not self._with_logprobs:
            return None
        offsets = []
        for token in tokens:
            offsets.append(len(self._echo) + self._n_chars)
            self._n_chars += len(token.token.text)
        return {
            "tokens": [token.token.text for token in tokens],
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": [{text.text: value for text, value in token.likeliest} for token in tokens],
            "text_offset": offsets,
        }


def told(began: Began, done: Done) -> dict[str, Any]:
    """What OpenAI's answers have no place for: the session, the tokens that the model really read, and how many stored
    ones they attended."""
    return {
        "session": shown_session(done.session),
        "prefilled_tokens": done.n_prefilled,
        "attended_tokens": began.n_attended,
    }


def _memory(done: Done) -> dict[str, Any]:
    """What memory said to the message."""
    return {} if done.recollection is None else {"memory": shown_recollection(done.recollection)}


def shown_session(name: str | None) -> str | None:
    """A session's name as its user knows it."""
    return None if name is None else name.rpartition("/")[2]


def _calls(done: Done) -> Iterator[dict[str, Any]]:
    for call in done.calls:
        function = {"name": call.name, "arguments": call.arguments}
        yield {"id": f"call_{token_hex(12)}", "type": "function", "function": function}


def _logprob(token: TokenLogprob) -> dict[str, Any]:
    return {
        **_shown(token.token, token.logprob),
        "top_logprobs": [_shown(text, value) for text, value in token.likeliest],
    }


def _shown(token: TokenText, logprob: float) -> dict[str, Any]:
    return {"token": token.text, "logprob": logprob, "bytes": list(token.raw)}
