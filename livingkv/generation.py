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
    ids: list[int] = []
    pieces: list[str] = []
    text, told = "", 0
    for token in tokens:
        ids.append(token)
        pieces.append(stream.push(token))
        text += pieces[-1]
        cut = _first_stop(text, stop)
        certain = cut if cut is not None else len(text) - _held_back(text, stop)
        if on_text is not None and certain > told:
            on_text(text[told:certain])
        told = max(told, certain)
        if cut is not None:
            return Generated(tuple(ids), tuple(pieces), text[:cut], "stop")
    if on_text is not None and len(text) > told:
        on_text(text[told:])
    return Generated(tuple(ids), tuple(pieces), text, "length" if len(ids) == max_tokens else "stop")


def _first_stop(text: str, stop: Sequence[str]) -> int | None:
    found = [place for word in stop if word and (place := text.find(word)) >= 0]
    return min(found, default=None)


def _held_back(text: str, stop: Sequence[str]) -> int:
    """Length of the longest end of `text` that a stop string begins with."""
    return max(
        (n for word in stop for n in range(1, min(len(word), len(text) + 1)) if text.endswith(word[:n])), default=0
    )
