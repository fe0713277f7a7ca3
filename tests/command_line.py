"""The verbs of livingkv in this process, made once: that takes longer than most of them do."""

from __future__ import annotations

from functools import cache

import typer
from typer.core import TyperGroup

from livingkv.cli import app


@cache
def command_line() -> TyperGroup:
    """What the command line is made of."""
    return typer.main.get_group(app)
