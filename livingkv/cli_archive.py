"""The archive verbs: list, restore and erase what prune took.

Knows what of the archive a person names; only restore needs a model.
"""

from __future__ import annotations

from typing import Annotated

import typer

from livingkv.cli_asked import Yes, agreed, counted
from livingkv.cli_options import (
    BackendName,
    Debug,
    Dual,
    Json,
    KeyFolder,
    Model,
    OneSession,
    PackFolder,
    RamGb,
    StorePath,
    Weights,
    chosen_model,
    chosen_settings,
    open_memory,
)
from livingkv.cli_process import ExitCode, say

archive_app = typer.Typer(invoke_without_command=True)

Sentences = Annotated[
    list[int] | None,
    typer.Option("--sentence", metavar="ID", help="This sentence; may be repeated.", show_default=False),
]
Of = Annotated[
    str | None, typer.Option("--of", metavar="NAME", help="What was pruned of this session.", show_default=False)
]


@archive_app.callback()
def archive(context: typer.Context) -> None:
    """List, restore or erase what prune put into a store's archive."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@archive_app.command(name="list")
def list_archive(
    store: StorePath,
    session: OneSession = None,
    sentences: Sentences = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show what was pruned: ids, sessions, sources and text. Needs no model.

    \b
    Examples:
      livingkv archive list notes.lkv
      livingkv archive list notes.lkv --session log --json
    """
    from livingkv.cli_render import print_archived, print_json
    from livingkv.restoring import archived_in, described
    from livingkv.results import to_json
    from livingkv.store import Store

    with Store.open(store, mode="read", key_folder=key_folder) as opened:
        found = [described(each) for each in archived_in(opened, session, sentences)]
    if as_json:
        print_json(to_json(found))
    else:
        print_archived(found)


@archive_app.command()
def restore(
    store: StorePath,
    sentences: Sentences = None,
    of: Of = None,
    everything: Annotated[bool, typer.Option("--everything", help="All of the archive.")] = False,
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", metavar="NAME", help="Into this session; left out: where it was."),
    ] = None,
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read pruned sentences again, at the end of a session; then they leave the archive.

    They are stored as new sentences of their source. Broken off, the same
    command goes on.

    \b
    Examples:
      livingkv archive restore notes.lkv --sentence 17 --sentence 18
      livingkv archive restore notes.lkv --of log
      livingkv archive restore notes.lkv --everything --session found
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import print_restored

    require_one(sentences, of, everything)
    chosen = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack)
    settings = chosen_settings(key_folder=key_folder)
    with waiting("restoring"), open_memory(store, model=chosen, settings=settings, create=False) as memory:
        done = memory.restore(sentences, of=of, session=session)
    print_restored(done, as_json=as_json)


@archive_app.command()
def erase(
    store: StorePath,
    sentences: Sentences = None,
    of: Of = None,
    everything: Annotated[bool, typer.Option("--everything", help="All of the archive, also what is damaged.")] = False,
    yes: Yes = False,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Erase what was pruned for good: overwritten, with a receipt. Needs no model.

    \b
    Examples:
      livingkv archive erase notes.lkv --of log
      livingkv archive erase notes.lkv --everything --yes
    """
    from livingkv.cli_receipts import print_archive_erased
    from livingkv.errors import RecordDamaged
    from livingkv.restoring import archived_in, erase_archived
    from livingkv.store import Store

    require_one(sentences, of, everything)
    with Store.open(store, mode="write") as opened:
        try:
            found = archived_in(opened, of, sentences)
            going = counted(len(found), sum(len(each.text.encode("utf-8", "surrogateescape")) for each in found))
        except RecordDamaged:
            if not everything:
                raise
            going = "all that is damaged"
        if not yes and not agreed(f"{going} in the archive", "erase"):
            say("livingkv: nothing was erased")
            return ExitCode.FAILED
        receipt = erase_archived(opened, of, sentences)
    print_archive_erased(receipt, as_json=as_json)
    return ExitCode.OK


def require_one(sentences: list[int] | None, of: str | None, everything: bool) -> None:
    """Raise BadParameter unless exactly one choice was made."""
    if sum((bool(sentences), of is not None, everything)) != 1:
        raise typer.BadParameter("name what of the archive: --sentence, --of or --everything")
