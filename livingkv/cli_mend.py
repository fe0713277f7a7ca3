"""The verbs that read kept text again: repair, reembed and migrate.

Knows what each of them prints; knows nothing of how KV is made anew.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from livingkv.cli_options import (
    EMBEDDERS,
    BackendName,
    Codec,
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
from livingkv.cli_process import ExitCode

mend_app = typer.Typer()


@mend_app.command()
def repair(
    store: StorePath,
    session: OneSession = None,
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Make anew what is damaged, dropped or missing: catalog, KV and index. Whole pages are not touched.

    A lost catalog is rebuilt from the segments. KV is made from the kept
    token ids by the model. A text-only session gets KV when it is named.
    What is encrypted needs its key.

    Exit codes: 0 whole again (of one session: it is), 1 an error, or
    something could not be rebuilt: it is named.

    \b
    Examples:
      livingkv repair notes.lkv
      livingkv repair notes.lkv --session letters
    """
    from livingkv.cli_progress import count_bar
    from livingkv.cli_receipts import print_repaired
    from livingkv.rebuilding import mend_files, problems_of, rebuild_if_lost

    rebuilt = rebuild_if_lost(store, key_folder=key_folder)
    segments = mend_files(store, key_folder=key_folder)
    chosen = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack)
    settings = chosen_settings(key_folder=key_folder)
    opened = open_memory(store, model=chosen, settings=settings, create=False)
    with opened as memory, count_bar("rebuilding pages") as show:
        repaired = memory.repair(session=session, progress=show)
        left = problems_of(memory.check(), None if session is None else memory.session(session).session_id)
    print_repaired(rebuilt, segments, repaired, left, as_json=as_json)
    is_left = bool(left) or any(one.problem for one in repaired) or (rebuilt is not None and bool(rebuilt.problems))
    return ExitCode.FAILED if is_left else ExitCode.OK


@mend_app.command()
def reembed(
    store: StorePath,
    embedder: Annotated[str, typer.Option("--embedder", metavar="E", help=EMBEDDERS, show_default=False)],
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Make the vectors that find sentences by meaning anew, with another embedder.

    They are made from the kept text and swapped in at once. Broken off, the
    old ones stand. Texts and KV are not touched.

    \b
    Examples:
      livingkv reembed notes.lkv --embedder states
      livingkv reembed notes.lkv --embedder minilm
      livingkv reembed notes.lkv --embedder intfloat/multilingual-e5-small
    """
    from livingkv.cli_progress import count_bar
    from livingkv.cli_receipts import print_reembedded

    chosen, settings = chosen_model(model, weights, None, backend, ram_gb, pack), chosen_settings(key_folder=key_folder)
    opened = open_memory(store, model=chosen, settings=settings, create=False)
    with opened as memory, count_bar("embedding sentences") as show:
        done = memory.reembed(embedder, progress=show)
    print_reembedded(done, as_json=as_json)


@mend_app.command()
def migrate(
    store: StorePath,
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    codec: Annotated[
        Codec | None, typer.Option(help="How the new store keeps KV; left out: as the old one.", show_default=False)
    ] = None,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read a store's kept text again with another model or codec, then swap it in.

    The old store is kept beside the new one until you remove it. Broken off,
    the old store stands and the next call begins anew.

    \b
    Examples:
      livingkv migrate notes.lkv --model qwen2.5-7b-1m
      livingkv migrate notes.lkv --codec lossless
      livingkv migrate notes.lkv --weights fp32
    """
    from livingkv.cli_progress import count_bar
    from livingkv.cli_receipts import print_migrated

    chosen = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack)
    if (model, weights, dual_chunk, codec) == (None, None, None, None):
        raise typer.BadParameter("name what to migrate to: --model, --codec, --weights or --dual-chunk")
    from livingkv.migrating import finish_swap
    from livingkv.migrating import migrate as migrate_store
    from livingkv.settings import Settings
    from livingkv.store import Store

    finish_swap(Path(store))
    with Store.open(store, mode="read") as opened:
        settings = Settings.from_dict({"codec": codec or opened.fingerprint.codec, "key_folder": key_folder})
    with count_bar("sessions read") as show:
        done = migrate_store(
            Path(store),
            model=chosen,
            settings=settings,
            progress=None if show is None else lambda _, done, total: show(done, total),
        )
    print_migrated(done, as_json=as_json)
