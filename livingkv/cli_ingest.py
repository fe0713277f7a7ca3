"""The ingest verb: finds the sources, reads them one after the other, shows how far it is.

Knows files and standard input; knows nothing of how a text is read by the model.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from livingkv.cli_process import say
from livingkv.cli_progress import byte_bar, phase_bar
from livingkv.cli_render import ingested_document, print_ingested, print_json, visible
from livingkv.errors import SourceError
from livingkv.sources import STANDARD_INPUT, read_source, walk_sources

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.results import Ingested

STANDARD_INPUT_NAME = "standard input"
LeftOut = tuple[str, str]
"""A file that a walk left out, and why."""


def ingest_sources(
    open_store: Callable[[], Memory],
    store: str,
    paths: Sequence[str],
    session: str,
    *,
    kv: bool,
    encrypt: bool,
    as_json: bool,
) -> None:
    """Ingests every source in order and tells each result; what is told is durable.

    kv: False makes a new session text-only. encrypt: makes a new session encrypted.
    Every path is looked at before the store is opened, so a missing file changes nothing; standard input is read when
    store, session and model are known to be fit. A file that was found in a folder and turns out to be no text is left
    out and told at the end; one that was named ends the ingest. Raises SourceError.
    """
    left_out: list[LeftOut] = []
    sources = walk_sources(paths, lambda path, reason: left_out.append((str(path), reason)))
    named = {Path(path) for path in paths}
    results: list[Ingested] = []
    with open_store() as memory:
        with phase_bar() as show:
            memory.ready(session, kv=kv, progress=show)
        for number, source in enumerate(sources, 1):
            try:
                label = f"{number}/{len(sources)} {source.name}"
                result = _ingest(memory, source, session, kv=kv, encrypt=encrypt, label=label)
            except SourceError as error:
                if source in named:
                    raise
                left_out.append((str(source), str(error)))
                continue
            results.append(result)
            tell(result, store, as_json=as_json)
    if as_json:
        print_json(ingested_document(results, session=session, left_out=left_out))
    tell_left_out(left_out)


def _ingest(memory: Memory, source: Path, session: str, *, kv: bool, encrypt: bool, label: str) -> Ingested:
    from livingkv.settings import Settings

    name, text = str(source), None
    if name == STANDARD_INPUT:
        name, text = STANDARD_INPUT_NAME, read_source(name, max_line_bytes=Settings().max_line_bytes)
    with byte_bar(label) as show:
        return memory.ingest(name, session=session, text=text, kv=kv, encrypt=encrypt, progress=show)


def tell(result: Ingested, store: str, *, as_json: bool) -> None:
    """One line for a result, and one on standard error where an earlier ingest left a part of another text."""
    if not as_json:
        print_ingested(result)
    if result.n_stale_sentences and result.source != STANDARD_INPUT_NAME:
        words = ["livingkv", "forget", store, "--session", result.session, "--source", result.source]
        say(
            f"livingkv: {visible(result.source)} changed after an ingest of it broke off:"
            f" {result.n_stale_sentences:,} sentences of before are kept beside the new text; to keep only the new one:"
            f" {visible(shlex.join(words))}, then ingest it again"
        )


def tell_left_out(left_out: Sequence[LeftOut]) -> None:
    """What was found in folders and not ingested, on standard error: a line each, after one that counts them."""
    if left_out:
        say(f"livingkv: left out {len(left_out)} file{'' if len(left_out) == 1 else 's'} that cannot be read as text:")
    for path, reason in left_out:
        say(f"  {visible(path)}: {visible(reason)}")
