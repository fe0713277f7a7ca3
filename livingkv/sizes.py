"""Sizes as people write them: 500M, 2G. Knows units; knows nothing of what is measured."""

from __future__ import annotations

import re

_SIZE = re.compile(r"(\d{1,18}(?:\.\d{1,9})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_UNITS = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}
SIZE_RULE = "give bytes, or a number with K, M, G or T, such as 2G"


def size_of(text: str) -> int:
    """Bytes from a count such as 500M, 2G or 1.5T, in binary units. Raises ValueError, whose text is `SIZE_RULE`."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(SIZE_RULE)
    return int(float(found[1]) * (1 << _UNITS[found[2].lower()]))
