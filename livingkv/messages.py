"""Messages of a conversation that took place elsewhere: checked, and read into a session as its own turns would be.

Knows roles and the chat frame; generates nothing and knows no store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, get_args

from livingkv.errors import InputError
from livingkv.recall import QUESTION_LEAD
from livingkv.session_reader import Origin, SessionReader
from livingkv.store import Append
from livingkv.text import split_sentences

CHAT = "chat"
"""Source name of what is said in a conversation."""

MessageRole = Literal["user", "assistant"]


class Message(NamedTuple):
    """Who said it, and what."""

    role: MessageRole
    content: str


def check_messages(given: Iterable[Mapping[str, object]]) -> list[Message]:
    """`{"role": "user" or "assistant", "content": text}` each. Raises InputError for anything else, none among them."""
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        raise InputError("messages", repr(given), "a list of messages, each with a role and a content, is needed")
    messages = [_checked(number, message) for number, message in enumerate(given, 1)]
    if not messages:
        raise InputError("messages", "none", "at least one message is needed")
    return messages


def _checked(number: int, message: Mapping[str, object]) -> Message:
    where = f"message {number}"
    if not isinstance(message, Mapping):
        raise InputError(where, repr(message), "a role and a content are needed")
    if unknown := sorted(map(repr, set(message) - {"role", "content"})):
        raise InputError(where, unknown[0], "role and content are allowed")
    role, content = message.get("role"), message.get("content")
    if role not in get_args(MessageRole):
        raise InputError(f"{where}: role", repr(role), f"one of {', '.join(get_args(MessageRole))} is allowed")
    if not isinstance(content, str) or not content.strip():
        raise InputError(f"{where}: content", repr(content), "a text with words in it is needed")
    try:
        content.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{where}: content", f"a lone surrogate at {error.start}", "Unicode text is allowed"
        ) from error
    return Message("user" if role == "user" else "assistant", content)


def read_messages(reader: SessionReader, messages: Iterable[Message], *, at_start: bool) -> list[Append]:
    """The appends that make the messages durable, one each, and one for a frame left open by the last.

    at_start: nothing of the session's open user message has been said yet. A turn ends with the assistant's message; a
    user's that follows a user's belongs to the same turn.
    """
    framing, appends = reader.engine.words.framing, []
    for message in messages:
        if message.role == "user":
            appends.append(read_user_message(reader, message.content, at_start=at_start))
            at_start = False
        else:
            text = message.content.encode()
            reader.frame(framing.answer)
            appends.append(reader.read_text(text, split_sentences(text), Origin(CHAT, "assistant"), ends_turn=True))
            reader.frame(framing.reopen)
            at_start = True
    if reader.has_framing:
        appends.append(reader.flush())
    return appends


def read_user_message(reader: SessionReader, message: str, *, at_start: bool) -> Append:
    """Read what a user says, set off by an empty line from what stands in the open message already."""
    if not at_start:
        reader.frame(reader.engine.words.encode(QUESTION_LEAD))
    text = message.encode()
    return reader.read_text(text, split_sentences(text), Origin(CHAT, "user"))
