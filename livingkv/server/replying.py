"""One reply on its way: tokens to certain text, tool calls held back, logprobs beside.

Knows generated tokens; knows no session and no HTTP.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from livingkv.generation import Collecting, Generated
from livingkv.sampling import Sampler, Sampling
from livingkv.server.events import Emit, Finish, TokenLogprob, Wrote
from livingkv.server.rendering import Speaker
from livingkv.server.token_texts import TokenTexts
from livingkv.server.tool_calls import TOOL_CALL, ToolCall, parse_reply


@dataclass(frozen=True, slots=True)
class Wish:
    """How a reply is to be generated. n_likeliest: None for no logprobs. tools: names of those that may be
    called; None, and nothing in the reply is taken for a call."""

    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    n_likeliest: int | None = None
    tools: frozenset[str] | None = None


class Replying:
    """Collects one reply and tells what of it is certain."""

    def __init__(self, engine: Speaker, texts: TokenTexts, wish: Wish, emit: Emit) -> None:
        self.sampler = Sampler(wish.sampling, n_likeliest=wish.n_likeliest or 0)
        self._wish = wish
        self._texts = texts
        self._emit = emit
        self._collecting = Collecting(engine.words.stream(), wish.stop)
        self._held = ""  # text that may be, or become, a tool call
        self._has_told = False
        self._tokens: list[TokenLogprob] = []

    def follow(self, tokens: Iterable[int]) -> None:
        """Take tokens one by one, to the end or to a stop string."""
        for token in tokens:
            certain = self._collecting.push(token)
            if self._wish.n_likeliest is not None:
                self._tokens.append(self._logprob(token))
            self._tell(certain)
            if self._collecting.ended:
                return

    def end(self) -> tuple[Generated, Finish, tuple[ToolCall, ...]]:
        """The whole reply; tells what was held back unless it is tool calls."""
        self._tell(self._collecting.rest())
        generated = self._collecting.generated(self._wish.max_tokens)
        finish: Finish = generated.finish
        spoken = parse_reply(self._held, () if self._has_told else self._wish.tools or ())
        calls = spoken.calls if self._wish.tools is not None and generated.finish == "stop" else ()
        rest = spoken.content if calls else self._held
        if calls:
            finish = "tool_calls"
        self._send(rest)
        return generated, finish, calls

    def _tell(self, certain: str) -> None:
        self._held += certain
        if self._wish.tools is None:
            told = len(self._held)
        elif not self._has_told and self._held.lstrip()[:1] in ("", "{"):
            told = 0  # all of it may be a call without tags
        elif (call := self._held.find(TOOL_CALL)) >= 0:
            told = len(self._held[:call].rstrip())
        else:
            told = len(self._held) - _begun(self._held)
        if told:
            text, self._held = self._held[:told], self._held[told:]
            self._send(text)

    def _send(self, text: str) -> None:
        tokens, self._tokens = tuple(self._tokens), []
        if text or tokens:
            self._has_told = self._has_told or bool(text)
            self._emit(Wrote(text, tokens))

    def _logprob(self, token: int) -> TokenLogprob:
        likeliest: Sequence[tuple[int, float]] = self.sampler.likeliest[-1]
        return TokenLogprob(
            self._texts.of(token),
            self.sampler.log_probabilities[-1],
            tuple((self._texts.of(other), value) for other, value in likeliest),
        )


def _begun(text: str) -> int:
    """Length of the longest end of `text`, white space before it included, that may become a tool call."""
    begun = next((n for n in range(len(TOOL_CALL) - 1, 0, -1) if text.endswith(TOOL_CALL[:n])), 0)
    before = text[: len(text) - begun]
    return len(text) - len(before.rstrip())
