"""Server-sent events, from bytes that come in pieces."""

from __future__ import annotations

import pytest

from livingkv.client.server_events import EventReader, ServerEvent

STREAM = b": keepalive\n\nevent: gone\n\ndata: 1\r\n\r\nevent: text\ndata: \xe2\x80\xa8a\ndata: b\n\ndata: cut"
EVENTS = [ServerEvent("message", b"1"), ServerEvent("text", b"\xe2\x80\xa8a\nb")]


@pytest.mark.parametrize("size", [1, 2, 7, len(STREAM)])
def test_events_are_the_same_however_they_come(size: int) -> None:
    reader, parts = EventReader(), [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    assert [event for part in parts for event in reader.feed(part)] == EVENTS
