"""The verbs that only look: sessions, stats and check. None of them needs a model.

Knows the store's door; rendering is in cli_render.
"""

from __future__ import annotations

from typing import Annotated

import typer

from livingkv.cli_options import Debug, Json, KeyFolder, StorePath
from livingkv.cli_process import ExitCode, say

look_app = typer.Typer()


@look_app.command()
def sessions(store: StorePath, key_folder: KeyFolder = None, as_json: Json = False, debug: Debug = False) -> None:
    """List the sessions of a store. Needs no model.

    \b
    Examples:
      livingkv sessions notes.lkv
      livingkv sessions notes.lkv --json
    """
    from livingkv.cli_render import print_json, print_sessions
    from livingkv.describing import session_info
    from livingkv.results import to_json
    from livingkv.store import Store

    with Store.open(store, mode="read", key_folder=key_folder) as opened:
        found = [session_info(row) for row in opened.sessions()]
    if as_json:
        print_json(to_json(found))
    else:
        print_sessions(found)


@look_app.command()
def stats(
    store: StorePath,
    n_hottest: Annotated[
        int, typer.Option("--hottest", min=0, metavar="N", help="Show this many of the most recalled sentences.")
    ] = 5,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Show the size and shape of a store, and what was recalled most and latest. Needs no model.

    \b
    Examples:
      livingkv stats notes.lkv
      livingkv stats notes.lkv --hottest 20
      livingkv stats notes.lkv --json
    """
    from livingkv.cli_render import print_hottest, print_json, print_stats
    from livingkv.describing import hottest_sentences, store_stats
    from livingkv.results import to_json
    from livingkv.store import Store

    with Store.open(store, mode="read", key_folder=key_folder) as opened:
        found, hottest = store_stats(opened), hottest_sentences(opened, n_hottest)
    if as_json:
        print_json({**to_json(found), "hottest": to_json(hottest)})
    else:
        print_stats(found)
        print_hottest(hottest)


@look_app.command()
def check(store: StorePath, key_folder: KeyFolder = None, as_json: Json = False, debug: Debug = False) -> int:
    """Read everything that is stored and verify every checksum. Needs no model.

    Encrypted sessions whose key is not there are checked as far as that goes.

    Exit codes: 0 whole, 1 something is wrong.

    \b
    Examples:
      livingkv check notes.lkv
      livingkv check notes.lkv --json
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_check, print_json
    from livingkv.rebuilding import check_at
    from livingkv.results import to_json

    with waiting("checking"):
        report = check_at(store, key_folder=key_folder)
    if as_json:
        print_json({**to_json(report), "ok": report.ok})
    else:
        print_check(report)
    if not report.ok:
        n = len(report.problems)
        say(
            f"livingkv: {n} problem{'' if n == 1 else 's'} in {store}: livingkv repair {store} mends what can be mended"
        )
    return ExitCode.OK if report.ok else ExitCode.FAILED
