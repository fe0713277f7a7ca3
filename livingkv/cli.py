"""The command line: every verb, its options and its help.

Knows the verbs and the library's surface; rendering is in cli_render, streams and exit codes are in cli_process.
Nothing heavy is imported before a verb needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from livingkv import __version__
from livingkv.cli_model import model_app
from livingkv.cli_process import ExitCode, run, say

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.settings import Settings

app = typer.Typer(
    name="livingkv",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.add_typer(model_app, name="model")

StorePath = Annotated[str, typer.Argument(metavar="STORE", help="The store: a folder.", show_default=False)]
Session = Annotated[str, typer.Option("--session", "-s", metavar="NAME", help="The session.")]
OneSession = Annotated[
    str | None, typer.Option("--session", "-s", metavar="NAME", help="Search this session only.", show_default=False)
]
Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="M", help="A folder, GGUF file, hub id or short name.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Debug = Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")]
AskMode = Literal["auto", "kv", "ground", "extract", "exact"]


def main() -> None:
    """Runs the command line of this process and exits."""
    sys.exit(run(typer.main.get_group(app), sys.argv[1:]))


def open_memory(
    store: str, *, model: str | None = None, settings: Settings | None = None, read_only: bool = False
) -> Memory:
    """Opens the store; makes it where it is missing and may be written."""
    from livingkv.memory import Memory

    return Memory.open(store, model=model, settings=settings, read_only=read_only, create=not read_only)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", "-V", help="Print the version.")] = False,
    debug: Debug = False,
) -> None:
    """A memory for language models: read a text once, ask about it from another process, days later.

    \b
    Examples:
      livingkv ingest notes.lkv meeting.md letters/
      livingkv ask notes.lkv "What did we decide about the roof?"
      livingkv chat notes.lkv
    """
    if version:
        print(f"livingkv {__version__}")
        raise typer.Exit()
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command()
def ingest(
    store: StorePath,
    sources: Annotated[
        list[str],
        typer.Argument(metavar="FILE...", help="Files, folders, or - for standard input.", show_default=False),
    ],
    session: Session = "default",
    model: Model = None,
    codec: Annotated[
        Literal["int8", "lossless"] | None,
        typer.Option(help="How a new store keeps KV; left out: int8.", show_default=False),
    ] = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read texts once and keep what the model made of them.

    Text is appended to the session. A source that the session holds already,
    byte for byte, is skipped, so an ingest that was broken off is simply run
    again. Folders are walked; hidden and binary files in them are left out.

    \b
    Examples:
      livingkv ingest notes.lkv meeting.md
      livingkv ingest notes.lkv letters/ --session letters
      cat log.txt | livingkv ingest notes.lkv -
    """
    from livingkv.cli_ingest import ingest_sources
    from livingkv.settings import Settings

    settings = Settings(codec=codec) if codec is not None else None
    ingest_sources(lambda: open_memory(store, model=model, settings=settings), sources, session, as_json=as_json)


@app.command()
def ask(
    store: StorePath,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, in quotes.", show_default=False)],
    session: OneSession = None,
    mode: Annotated[AskMode, typer.Option(help="How to answer: see below.")] = "auto",
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The longest answer, in tokens.")] = 64,
    model: Model = None,
    as_json: Json = False,
    debug: Debug = False,
) -> int:
    """Answer a question from the store, with evidence and confidence. Changes nothing.

    \b
    Modes:
      kv       attend the stored KV of the recalled passages
      ground   read the recalled passages again
      extract  return the stored text; needs no model
      exact    attend everything that is stored
      auto     choose, and say which and why
    \b
    Exit codes: 0 answered, 2 low confidence, 1 an error.
    \b
    Examples:
      livingkv ask notes.lkv "What is the code of the tool shed?"
      livingkv ask notes.lkv "Who called on Friday?" --mode extract
      livingkv ask notes.lkv "What did the oak cost?" --json
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_answer, print_json
    from livingkv.results import to_json

    with waiting("asking"), open_memory(store, model=model, read_only=True) as memory:
        answer = memory.ask(question, session=session, mode=mode, max_tokens=max_tokens)
    if as_json:
        print_json(to_json(answer))
    else:
        print_answer(answer)
    return ExitCode.OK if answer.confident else ExitCode.LOW_CONFIDENCE


@app.command()
def chat(
    store: StorePath,
    session: Session = "default",
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The longest reply, in tokens.")] = 256,
    model: Model = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a turn, each on one line.")] = False,
    debug: Debug = False,
) -> None:
    """Talk; every turn is kept before the prompt returns, and a later process resumes.

    Standard input is read line by line, also from a pipe: one line is one
    message. /quit or Ctrl-D ends.

    \b
    Examples:
      livingkv chat notes.lkv
      livingkv chat notes.lkv --session anna
      echo "My sister lives in Graz." | livingkv chat notes.lkv
    """
    from livingkv.cli_chat import chat_until_end

    with open_memory(store, model=model) as memory:
        chat_until_end(memory, session, max_tokens=max_tokens, as_json=as_json)


@app.command()
def sessions(store: StorePath, as_json: Json = False, debug: Debug = False) -> None:
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

    with Store.open(store, mode="read") as opened:
        found = [session_info(row) for row in opened.sessions()]
    if as_json:
        print_json(to_json(found))
    else:
        print_sessions(found)


@app.command()
def stats(store: StorePath, as_json: Json = False, debug: Debug = False) -> None:
    """Show the size and shape of a store. Needs no model.

    \b
    Examples:
      livingkv stats notes.lkv
      livingkv stats notes.lkv --json
    """
    from livingkv.cli_render import print_json, print_stats
    from livingkv.describing import store_stats
    from livingkv.results import to_json
    from livingkv.store import Store

    with Store.open(store, mode="read") as opened:
        found = store_stats(opened)
    if as_json:
        print_json(to_json(found))
    else:
        print_stats(found)


@app.command()
def check(store: StorePath, as_json: Json = False, debug: Debug = False) -> int:
    """Read everything that is stored and verify every checksum. Needs no model.

    Exit codes: 0 whole, 1 something is wrong.

    \b
    Examples:
      livingkv check notes.lkv
      livingkv check notes.lkv --json
    """
    from livingkv.cli_progress import waiting
    from livingkv.cli_render import print_check, print_json
    from livingkv.results import to_json
    from livingkv.store import Store

    with waiting("checking"), Store.open(store, mode="read") as opened:
        report = opened.check()
    if as_json:
        print_json({**to_json(report), "ok": report.ok})
    else:
        print_check(report)
    if not report.ok:
        n = len(report.problems)
        say(f"livingkv: {n} problem{'' if n == 1 else 's'} in {store}; damaged pages are rebuilt from the stored text")
    return ExitCode.OK if report.ok else ExitCode.FAILED
