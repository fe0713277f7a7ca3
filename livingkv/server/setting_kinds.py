"""What kinds of settings there are: how each is read from a word of a shell, and from a value of TOML.

Knows types and their texts; knows no setting. Ranges are checked by what the settings become.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from livingkv.sizes import SIZE_RULE, size_of

_WHOLE = re.compile(r"-?\d{1,18}")
_SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of setting. Both functions raise ValueError for what is none; `allowed` then says what is.

    from_text: of a flag or a variable. from_toml: of a value in a settings file. metavar: what help shows.
    """

    name: str
    metavar: str
    allowed: str
    from_text: Callable[[str], Any]
    from_toml: Callable[[Any], Any]


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip() or "\0" in value:
        raise ValueError
    return value.strip()


def _whole_text(text: str) -> int:
    if not _WHOLE.fullmatch(text.strip()):
        raise ValueError
    return int(text)


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError
    return value


def _finite(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError
    return float(value)


def _size(value: object) -> int:
    return size_of(value) if isinstance(value, str) else _whole(value)


def _limit(value: object) -> int | str:
    return "unlimited" if isinstance(value, str) and value.strip().lower() == "unlimited" else _size(value)


def _switch_text(text: str) -> bool:
    if text.strip().lower() not in _SWITCHES:
        raise ValueError
    return _SWITCHES[text.strip().lower()]


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _texts_text(text: str) -> tuple[str, ...]:
    return tuple(_text(part) for part in text.split(","))


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(_text(part) for part in value)


TEXT = Kind("text", "TEXT", "a text is allowed", _text, _text)
PATH = Kind("path", "PATH", "a path is allowed", _text, _text)
WHOLE = Kind("whole number", "N", "a whole number is allowed", _whole_text, _whole)
SECONDS = Kind("seconds", "S", "a number of seconds is allowed", lambda text: _finite(float(text)), _finite)
NUMBER = Kind("number", "N", "a number is allowed", lambda text: _finite(float(text)), _finite)
SIZE = Kind("size", "SIZE", SIZE_RULE, _size, _size)
LIMIT = Kind("size", "SIZE", f"{SIZE_RULE}, or unlimited", _limit, _limit)
SWITCH = Kind("switch", "", "true or false is allowed", _switch_text, _switch)
TEXTS = Kind("texts", "TEXT", "texts are allowed: a list in a file, with commas in a variable", _texts_text, _texts)


def one_of(*words: str) -> Kind:
    """A setting that is one of some words."""

    def chosen(value: object) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    told = " or ".join([", ".join(words[:-1]), words[-1]])
    return Kind("word", f"[{'|'.join(words)}]", f"{told} is allowed", chosen, chosen)
