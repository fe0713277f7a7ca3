"""Tool calls in what a model wrote: `<tool_call>` with JSON in it, as Hermes and Qwen templates ask for.

Small models leave the tags away: a reply that is nothing but the JSON of a call is one, too, if it names a known tool.
Knows text; knows no tokens and no requests. What is no whole, well-formed call stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from dataclasses import dataclass

TOOL_CALL = "<tool_call>"
_CALL = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call. arguments: JSON text, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a reply says, and what it calls."""

    content: str
    calls: tuple[ToolCall, ...]


def parse_reply(text: str, tools: Collection[str] = ()) -> Spoken:
    """The text with its well-formed calls taken out; where one is not well-formed, all of it is text. `tools` may be
    called without tags."""
    if TOOL_CALL not in text:
        bare = bare_call(text)
        return Spoken("", (bare,)) if bare is not None and bare.name in tools else Spoken(text, ())
    calls = []
    for found in _CALL.finditer(text):
        call = _call_of(found[1])
        if call is None:
            return Spoken(text, ())
        calls.append(call)
    content = _CALL.sub("", text)
    if not calls or TOOL_CALL in content:
        return Spoken(text, ())
    return Spoken(content.strip(), tuple(calls))


def canonical(text: str) -> str:
    """A reply in one form, however its JSON was spaced: what a client sends back is compared in this form."""
    bare = bare_call(text)
    spoken = parse_reply(text, (bare.name,) if bare is not None else ())
    return json.dumps(
        [spoken.content.strip(), [[call.name, _sorted(call.arguments)] for call in spoken.calls]], sort_keys=True
    )


def bare_call(text: str) -> ToolCall | None:
    """The call that a text is, without tags; None where it is anything else."""
    return _call_of(text) if text.lstrip().startswith("{") else None


def _call_of(text: str) -> ToolCall | None:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(call, dict):
        return None
    name, arguments = call.get("name"), call.get("arguments", call.get("parameters", {}))
    if not isinstance(name, str) or not name:
        return None
    return ToolCall(name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))


def _sorted(arguments: str) -> object:
    try:
        return json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
