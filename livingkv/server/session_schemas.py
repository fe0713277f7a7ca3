"""The bodies of requests about sessions, checked.

Knows fields; knows no store.
"""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from livingkv.server.schemas import Lenient, Text


class UserBody(Lenient):
    """For whom."""

    user: Text | None = None


class CreateBody(UserBody):
    """A new, empty session."""

    name: Text
    kv: bool = True
    encrypt: bool = False


class ForkBody(UserBody):
    """A session that begins as another."""

    name: Text


class PatchBody(UserBody):
    """Another name, or whether a disk budget leaves the session alone."""

    name: Text | None = None
    pinned: bool | None = None

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.name is None and self.pinned is None:
            raise ValueError("name or pinned is needed")
        return self
