"""Asking before something is lost for good, and counting what is.

Knows terminals; knows nothing of what is lost.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def counted(n_sentences: int, n_bytes: int) -> str:
    """Sentences and bytes of text in words."""
    from livingkv.cli_render import size

    return f"{n_sentences:,} sentence{'' if n_sentences == 1 else 's'}, {size(n_bytes)} of text"


def agreed(going: str, verb: str = "forget") -> bool:
    """Asks at a terminal whether to go on. Raises InputError where there is none."""
    from livingkv.cli_render import visible
    from livingkv.errors import InputError

    going = visible(going)
    if not sys.stdin.isatty():
        raise InputError(verb, "no terminal to ask at", f"--yes is needed to {verb} {going}")
    sys.stderr.write(f"{verb.capitalize()} {going}? It cannot be undone. [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")
