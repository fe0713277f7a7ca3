"""livingkv: a persistent, long-context KV-cache memory for language models.

Importing this package loads no torch; `Memory`, `Answer` and `Settings` are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.results import Answer
    from livingkv.settings import Settings

__version__ = "0.1.0"
__all__ = ["Answer", "Memory", "Settings", "__version__"]

_HOMES = {"Memory": "livingkv.memory", "Answer": "livingkv.results", "Settings": "livingkv.settings"}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'livingkv' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(home), name)
