"""What one turn of a conversation is asked for: messages, wishes, and whose it is.

Knows values only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from livingkv.results import Recall
from livingkv.server.rendering import Message
from livingkv.server.replying import Wish


@dataclass(frozen=True, slots=True)
class TurnRequest:
    """One request for a reply. user: the scope within the tenant, "" for none. session: its name in that scope, None
    to recognise the conversation by what was said. is_kept: the turn is stored. only_new: the messages follow what the
    session holds; else they are the whole conversation. recall: where memory may look for what a turn does not attend;
    no_recall: why it may not."""

    messages: tuple[Message, ...]
    wish: Wish
    tools: tuple[Any, ...] = ()
    user: str = ""
    session: str | None = None
    is_kept: bool = True
    only_new: bool = False
    recall: Recall = "off"
    no_recall: str = ""

    @property
    def name(self) -> str | None:
        """The session's name in the store."""
        return None if self.session is None else f"{self.user}/{self.session}" if self.user else self.session
