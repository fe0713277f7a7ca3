"""The verbs that lose something on purpose: forget, erase and prune.

Knows how to say what is about to go; what goes, and how, is the memory's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from livingkv.cli_asked import Yes, agreed, counted
from livingkv.cli_options import Debug, Json, KeyFolder, Model, OneSession, StorePath, chosen_settings, open_memory
from livingkv.cli_process import ExitCode, say

if TYPE_CHECKING:
    from livingkv.store import Store

forget_app = typer.Typer()

OneSource = Annotated[
    str | None, typer.Option(metavar="NAME", help="Only this source of the session.", show_default=False)
]
SentenceIds = Annotated[
    list[int] | None,
    typer.Option("--sentence", metavar="ID", help="This sentence; may be repeated.", show_default=False),
]


@forget_app.command()
def forget(
    store: StorePath,
    session: OneSession = None,
    source: OneSource = None,
    sentences: SentenceIds = None,
    everything: Annotated[bool, typer.Option("--everything", help="All sessions; the empty store stays.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Drop the KV of all that the session read later, too.")] = False,
    yes: Yes = False,
    model: Model = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Forget for good: text, token ids, KV and index entries are overwritten. Prints a receipt.

    What is about to go is counted first. At a terminal you are asked; without
    one, --yes is needed. Sentence ids are shown by stats. Forks keep their copy.
    The key of an encrypted session goes with the last fork of it.
    The verb erase takes the store itself, too.

    \b
    Examples:
      livingkv forget notes.lkv --session anna
      livingkv forget notes.lkv --session default --source diary.md --deep --yes
      livingkv forget notes.lkv --sentence 17 --sentence 18
      livingkv forget notes.lkv --everything
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import print_forgotten
    from livingkv.store import Store

    check_choice(session, source, sentences or [], everything=everything, deep=deep)
    with Store.open(store, mode="read", key_folder=key_folder) as opened:
        going = what_goes(opened, session, source, sentences or [])
    if not yes and not agreed(going):
        say("livingkv: nothing was forgotten")
        return ExitCode.FAILED
    ids, settings = tuple(sentences or ()), chosen_settings(key_folder=key_folder)
    with waiting("forgetting"), open_memory(store, model=model, settings=settings, create=False) as memory:
        receipt = memory.forget(session=session, source=source, sentence_ids=ids, everything=everything, deep=deep)
    print_forgotten(receipt, as_json=as_json)
    return ExitCode.OK


def check_choice(
    session: str | None, source: str | None, sentence_ids: list[int], *, everything: bool, deep: bool
) -> None:
    """Raise BadParameter unless exactly one thing is named, and what goes with it."""
    if sum((session is not None, bool(sentence_ids), everything)) != 1:
        raise typer.BadParameter("name one thing to forget: --session, --sentence or --everything")
    if source is not None and session is None:
        raise typer.BadParameter("--source needs the --session that it is in")
    if deep and (everything or (session is not None and source is None)):
        raise typer.BadParameter("--deep goes with --source or --sentence: a whole session is forgotten with its KV")


def what_goes(store: Store, session: str | None, source: str | None, sentence_ids: list[int]) -> str:
    """What is about to be forgotten, counted, in one line. Raises SessionNotFound or InputError."""
    if sentence_ids:
        return _what_sentences_go(store, sorted(set(sentence_ids)))
    rows = [store.session(session)] if session is not None else store.sessions()
    if source is None:
        named = f" in session {session}" if session is not None else f" in all {len(rows)} sessions"
        return counted(sum(row.n_sentences for row in rows), sum(row.n_bytes for row in rows)) + named
    parts = [part for part in store.sources(rows[0].session_id) if part.name == source]
    named = f" of source {source} in session {session}"
    return counted(sum(part.n_sentences for part in parts), sum(part.n_bytes for part in parts)) + named


def _what_sentences_go(store: Store, sentence_ids: list[int]) -> str:
    from livingkv.errors import RecordDamaged

    n_bytes = n_damaged = 0
    for sentence_id in sentence_ids:
        try:
            n_bytes += len(store.sentence(sentence_id).raw)
        except RecordDamaged:
            n_damaged += 1
    damaged = f" ({n_damaged} damaged, with all that was stored in one piece with them)" if n_damaged else ""
    return counted(len(sentence_ids), n_bytes) + damaged


@forget_app.command()
def erase(store: StorePath, yes: Yes = False, as_json: Json = False, debug: Debug = False) -> int:
    """Erase a whole store: every file of it is overwritten and removed, then its folder. Needs no model.

    Sessions, index, archive and catalog go, and copies that migrate left
    beside the store. Exported files and others that are no store's stay.
    Broken off, the store does not open any more, and the same command finishes.

    \b
    Examples:
      livingkv erase notes.lkv
      livingkv erase notes.lkv --yes --json
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import erasure_counts, print_erased
    from livingkv.store import erase_store, what_erasing_takes

    going = what_erasing_takes(store)
    if not yes and not agreed(f"{', '.join(going.paths)}: {erasure_counts(going)}", "erase"):
        say("livingkv: nothing was erased")
        return ExitCode.FAILED
    with waiting("erasing"):
        receipt = erase_store(store)
    print_erased(receipt, as_json=as_json)
    return ExitCode.OK


@forget_app.command()
def prune(
    store: StorePath,
    session: OneSession = None,
    keep: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Keep the N most recalled sentences.", show_default=False),
    ] = None,
    below: Annotated[
        float | None,
        typer.Option(min=0.0, metavar="W", help="Prune what has less weight than W.", show_default=False),
    ] = None,
    model: Model = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Forget the coldest sentences; their text goes to the store's archive first.

    Every recall adds 1 to a sentence's weight, and weights fade; stats shows
    the hottest. Pinned sessions are pruned only when they are named. What
    forget takes leaves the archive, too.

    \b
    Examples:
      livingkv prune notes.lkv --keep 10000
      livingkv prune notes.lkv --session log --below 0.01
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import print_forgotten

    if (keep is None) == (below is None):
        raise typer.BadParameter("give one of --keep and --below")
    settings = chosen_settings(key_folder=key_folder)
    with waiting("pruning"), open_memory(store, model=model, settings=settings, create=False) as memory:
        receipt = memory.prune(session=session, keep=keep, below=below)
    print_forgotten(receipt, as_json=as_json, verb="pruned")
