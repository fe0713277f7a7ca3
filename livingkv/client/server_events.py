"""Server-sent events from bytes as they come, and the events of a streamed ask.

Knows the wire format. Lines end where the format says, never at other characters that Unicode calls line ends: an
answer may hold those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from livingkv.client.answers import AskResult
from livingkv.client.call import refusal
from livingkv.client.errors import UnexpectedAnswer
from livingkv.client.parsing import decoded, item, parsed


class ServerEvent(NamedTuple):
    """One event; its kind is "message" where it has no name."""

    kind: str
    data: bytes


@dataclass(slots=True)
class EventReader:
    """Feed it bytes; it gives the events that are whole."""

    _rest: bytearray = field(default_factory=bytearray)
    _kind: bytes = b""
    _data: list[bytes] = field(default_factory=list)

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that end in this chunk."""
        self._rest += chunk
        *lines, rest = bytes(self._rest).split(b"\n")
        self._rest = bytearray(rest)
        return [event for line in lines if (event := self._line(line.removesuffix(b"\r"))) is not None]

    def _line(self, line: bytes) -> ServerEvent | None:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"event":
            self._kind = value
        elif name == b"data":
            self._data.append(value)
        elif not line:
            event = ServerEvent(self._kind.decode() or "message", b"\n".join(self._data)) if self._data else None
            self._kind, self._data = b"", []
            return event
        return None


def ask_event(event: ServerEvent) -> str | AskResult | None:
    """What an event of a streamed ask says: more text, or the whole answer; None for a kind that is not known.
    Raises ApiError for an error."""
    if event.kind == "text":
        return str(item(decoded(event.data), "text"))
    if event.kind == "answer":
        return parsed(AskResult, decoded(event.data))
    if event.kind == "error":
        raise refusal(500, decoded(event.data))
    return None


def stream_broke() -> UnexpectedAnswer:
    """The stream ended before the answer."""
    return UnexpectedAnswer("the stream ended before its answer: nothing can be said of what was not sent")
