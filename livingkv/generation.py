"""Generated tokens as text: stop strings, streaming, characters spread over tokens.

Knows a stream of token ids; knows no model state beyond the runner's generate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from livingkv.framing import TextStream


@dataclass(frozen=True, slots=True)
class Generated:
    """token_ids: what was generated. pieces: the text that each of them made certain. text: all of it, cut before
    a stop string. finish: "stop" for a stop token or string, "length" when the limit was reached."""

    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]
    text: str
    finish: Literal["stop", "length"]


class Collecting:
    """Generated tokens on their way to text, one after the other. `ended`: a stop string is whole."""

    def __init__(self, stream: TextStream, stop: Sequence[str] = ()) -> None:
        self.ids: list[int] = []
        self.ended = False
        self._pieces: list[str] = []
        self._stream = stream
        self._stop = tuple(stop)
        self._text = ""
        self._told = 0

    def push(self, token: int) -> str:
        """The text that became certain with a token; never part of the stop string that ends it."""
        self.ids.append(token)
        self._pieces.append(self._stream.push(token))
        self._text += self._pieces[-1]
        cut = _first_stop(self._text, self._stop)
        if cut is not None:
            self._text, self.ended = self._text[:cut], True
        return self._tell(len(self._text) if self.ended else len(self._text) - _held_back(self._text, self._stop))

    def rest(self) -> str:
        """What was held back because a stop string might have begun."""
        return self._tell(len(self._text))

    def generated(self, max_tokens: int) -> Generated:
        """All of it."""
        finish: Literal["stop", "length"] = "length" if not self.ended and len(self.ids) == max_tokens else "stop"
        return Generated(tuple(self.ids), tuple(self._pieces), self._text, finish)

    def _tell(self, certain: int) -> str:
        told, self._told = self._told, max(self._told, certain)
        return self._text[told : self._told]


def collect(
    tokens: Iterator[int],
    stream: TextStream,
    max_tokens: int,
    *,
    stop: Sequence[str] = (),
    on_text: Callable[[str], None] | None = None,
) -> Generated:
    """Run `tokens` to its end or to the stop string that is whole first, even where a longer one began before it.

    `on_text` gets text as it becomes certain, never part of the stop string that ends it.
    """
    collecting = Collecting(stream, stop)
    for token in tokens:
        text = collecting.push(token)
        if text and on_text is not None:
            on_text(text)
        if collecting.ended:
            break
    rest = collecting.rest()
    if rest and on_text is not None:
        on_text(rest)
    return collecting.generated(max_tokens)


def _first_stop(text: str, stop: Sequence[str]) -> int | None:
    found = [place for word in stop if word and (place := text.find(word)) >= 0]
    return min(found, default=None)


def _held_back(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    return max(
        (n for word in stop for n in range(1, min(len(word), len(text) + 1)) if text.endswith(word[:n])), default=0
    )
