"""The ingest verb: finds the sources, reads them one after the other, shows how far it is.

Knows files and standard input; knows nothing of how a text is read by the model.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from livingkv.cli_progress import byte_bar
from livingkv.cli_render import ingested_document, print_ingested, print_json

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.results import Ingested

STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Source:
    """One thing to ingest: a file, or the bytes that standard input held."""

    name: str
    text: bytes | None = None


def ingest_sources(
    open_store: Callable[[], Memory], paths: Sequence[str], session: str, *, kv: bool, encrypt: bool, as_json: bool
) -> None:
    """Ingests every source in order and tells each result; what is told is durable.

    kv: False makes a new session text-only. encrypt: makes a new session encrypted.
    Every path is looked at before the store is opened, so a missing file changes nothing. Raises SourceError.
    """
    sources = find_sources(paths)
    results: list[Ingested] = []
    with open_store() as memory:
        for number, source in enumerate(sources, 1):
            with byte_bar(f"{number}/{len(sources)} {Path(source.name).name}") as show:
                result = memory.ingest(
                    source.name, session=session, text=source.text, kv=kv, encrypt=encrypt, progress=show
                )
            results.append(result)
            if not as_json:
                print_ingested(result)
    if as_json:
        print_json(ingested_document(results, session=session))


def find_sources(paths: Sequence[str]) -> list[Source]:
    """The sources that the paths name, folders walked, each once, in the order given. Reads standard input for "-"."""
    from livingkv.text import walk_sources

    return [
        Source("standard input", sys.stdin.buffer.read()) if str(path) == STANDARD_INPUT else Source(str(path))
        for path in walk_sources(paths)
    ]
