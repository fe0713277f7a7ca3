"""The verbs of a session's life that lose nothing: fork, rename, pin, export, import and defrag.

Knows which of them need a model; those that do not go to the store itself.
"""

from __future__ import annotations

import os
from typing import Annotated

import typer

from livingkv.cli_options import (
    BackendName,
    Debug,
    DiskBudget,
    Dual,
    Encrypt,
    Json,
    KeyFolder,
    Model,
    NewName,
    PackFolder,
    RamGb,
    SessionName,
    StorePath,
    Weights,
    chosen_model,
    chosen_settings,
    open_memory,
)

keep_app = typer.Typer()

File = Annotated[str, typer.Argument(metavar="FILE", help="The portable file.", show_default=False)]


@keep_app.command()
def fork(
    store: StorePath,
    session: SessionName,
    new: NewName,
    model: Model = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a session that begins as another one. Stored KV is shared; neither changes the other.

    \b
    Examples:
      livingkv fork notes.lkv anna anna-and-bob
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import print_session

    settings = chosen_settings(key_folder=key_folder)
    with waiting("forking"), open_memory(store, model=model, settings=settings, create=False) as memory:
        made = memory.fork(session, new)
    print_session("forked", made, as_json=as_json)


@keep_app.command()
def rename(
    store: StorePath,
    session: SessionName,
    new: NewName,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Give a session another name. Needs no model.

    The old name leads nowhere, but is in the files until defrag or forget.

    \b
    Examples:
      livingkv rename notes.lkv default letters
    """
    from livingkv.cli_receipts import print_session
    from livingkv.describing import session_info
    from livingkv.store import Store

    with Store.open(store, mode="write", key_folder=key_folder) as opened:
        row = opened.rename(opened.session(session).session_id, new)
    print_session("renamed", session_info(row), as_json=as_json)


@keep_app.command()
def pin(
    store: StorePath,
    session: SessionName,
    off: Annotated[bool, typer.Option("--off", help="Let the disk budget take it again.")] = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Keep the disk budget and prune from taking anything of a session. Needs no model.

    \b
    Examples:
      livingkv pin notes.lkv anna
      livingkv pin notes.lkv anna --off
    """
    from livingkv.cli_render import print_facts, print_json
    from livingkv.store import Store

    with Store.open(store, mode="write") as opened:
        opened.pin(opened.session(session).session_id, pinned=not off)
    if as_json:
        print_json({"session": session, "pinned": not off})
    else:
        print_facts({"unpinned" if off else "pinned": session})


@keep_app.command()
def export(
    store: StorePath,
    session: SessionName,
    file: File,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Leave the KV out: a small file that any model can read again.")
    ] = False,
    decrypt: Annotated[
        bool, typer.Option("--decrypt", help="Export an encrypted session, too: the file is in the clear.")
    ] = False,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Write a session to one portable file, with a checksum over all of it. Needs no model.

    A file that exists is never overwritten.

    \b
    Examples:
      livingkv export notes.lkv anna anna.lkvx
      livingkv export notes.lkv anna anna-text.lkvx --text-only
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_facts, print_json, size
    from livingkv.errors import InputError
    from livingkv.store import Store

    if os.path.lexists(file):
        raise InputError("export", file, "it exists already: name a new file")
    with waiting("exporting"), Store.open(store, mode="read", key_folder=key_folder) as opened:
        session_id = opened.session(session).session_id
        n_bytes = opened.export_session(session_id, file, kv=not text_only, decrypt=decrypt)
    if as_json:
        print_json({"session": session, "file": file, "n_bytes": n_bytes, "kv": not text_only})
    else:
        print_facts({"exported": session, "file": file, "size": size(n_bytes)})


@keep_app.command(name="import")
def import_file(
    store: StorePath,
    file: File,
    name: Annotated[
        str | None, typer.Option(metavar="N", help="The session's name; left out: its own.", show_default=False)
    ] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Leave the KV behind; repair makes it from the token ids.")
    ] = False,
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    disk_budget: DiskBudget = None,
    encrypt: Encrypt = False,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make a session from an exported file. The store is made where there is none.

    A file of another model or codec is refused, one that was changed or cut
    short too; with --text-only the same tokenizer is enough.

    \b
    Examples:
      livingkv import notes.lkv anna.lkvx
      livingkv import other.lkv anna.lkvx --name anna-2 --text-only
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import print_session
    from livingkv.store import require_portable

    require_portable(file)
    settings = chosen_settings(disk_budget=disk_budget, key_folder=key_folder)
    chosen = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack)
    with waiting("importing"), open_memory(store, model=chosen, settings=settings, create=True) as memory:
        made = memory.import_file(file, name=name, kv=not text_only, encrypt=encrypt)
    print_session("imported", made, as_json=as_json)


@keep_app.command()
def defrag(store: StorePath, as_json: Json = False, debug: Debug = False) -> int:
    """Give the disk space of what was forgotten or replaced back. Needs no model.

    Names that sessions bore before are taken out of the files as well.
    Readers go on meanwhile; broken off, nothing is lost.
    Exit codes: 0 done, 1 a damaged record kept a segment where it is.

    \b
    Examples:
      livingkv defrag notes.lkv
    """
    from livingkv.cli_process import ExitCode
    from livingkv.cli_progress import waiting
    from livingkv.cli_receipts import print_defragmented
    from livingkv.store import Store

    with waiting("moving what lives"), Store.open(store, mode="write") as opened:
        report = opened.defrag()
    print_defragmented(report, as_json=as_json)
    return ExitCode.FAILED if report.problems else ExitCode.OK
