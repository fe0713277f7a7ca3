"""How a session that the service made of messages is told from others: by the source of what is in it.

Such a session is what the chat template makes of a conversation (docs/decisions/0019): it begins with its own system
message, and it does not stand inside an open user message. Knows the mark alone.
"""

from __future__ import annotations

from livingkv.store import Store

SOURCE, DIGEST = "conversation", "openai"
"""Source and digest of everything in a conversation of the service. No document's digest looks like this one."""


def is_conversation(store: Store, session_id: int) -> bool:
    """True for a conversation of the service that holds something. Raises SessionNotFound."""
    return store.source(session_id, SOURCE, DIGEST) is not None
