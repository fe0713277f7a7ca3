"""The command line: ingest, ask and chat, and where the other verbs come in.

Knows the library's surface; rendering is in cli_render, streams and exit codes are in cli_process. Nothing heavy is
imported before a verb needs it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from livingkv import __version__
from livingkv.cli_archive import archive_app
from livingkv.cli_forget import forget_app
from livingkv.cli_keep import keep_app
from livingkv.cli_look import look_app
from livingkv.cli_mend import mend_app
from livingkv.cli_model import model_app
from livingkv.cli_options import (
    BackendName,
    Codec,
    Debug,
    DiskBudget,
    Dual,
    Embedder,
    Encrypt,
    Json,
    KeyFolder,
    Model,
    OneSession,
    PackFolder,
    RamBudget,
    RamGb,
    Seed,
    Session,
    Stop,
    StorePath,
    Temperature,
    TopP,
    Weights,
    chosen_model,
    chosen_sampling,
    chosen_settings,
    chosen_stops,
    open_memory,
)
from livingkv.cli_plan import plan_app
from livingkv.cli_process import ExitCode, run
from livingkv.cli_routes import experts_app
from livingkv.cli_serve import keys_app, serve_app

if TYPE_CHECKING:
    from livingkv.memory import Memory

app = typer.Typer(
    name="livingkv",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
AskMode = Literal["auto", "kv", "ground", "extract", "exact"]
RecallFrom = Literal["all", "session", "off"]


def main() -> None:
    """Runs the command line of this process and exits."""
    sys.exit(run(typer.main.get_group(app), sys.argv[1:]))


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
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    codec: Annotated[
        Codec | None,
        typer.Option(help="How a new store keeps KV; left out: int8.", show_default=False),
    ] = None,
    text_only: Annotated[
        bool, typer.Option("--text-only", help="Keep no KV in a new session: it is fast, and recall reads again.")
    ] = False,
    embedder: Embedder = None,
    disk_budget: DiskBudget = None,
    encrypt: Encrypt = False,
    key_folder: KeyFolder = None,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Read texts once and keep what the model made of them.

    Text is appended to the session. A source that the session holds already,
    byte for byte, is skipped, so an ingest that was broken off is simply run
    again. Folders are walked; hidden files in them are left out, and what is
    no text is left out and told.

    \b
    Examples:
      livingkv ingest notes.lkv meeting.md
      livingkv ingest notes.lkv letters/ --session letters
      cat log.txt | livingkv ingest notes.lkv - --session log --text-only
      livingkv ingest notes.lkv mail/ --disk-budget 2G
      livingkv ingest notes.lkv diary.md --session diary --encrypt
    """
    from livingkv.cli_ingest import ingest_sources

    def opened() -> Memory:
        settings = chosen_settings(codec=codec, disk_budget=disk_budget, key_folder=key_folder, embedder=embedder)
        return open_memory(store, model=chosen, settings=settings, create=True)

    chosen = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack)
    ingest_sources(opened, store, sources, session, kv=not text_only, encrypt=encrypt, as_json=as_json)


@app.command()
def ask(
    store: StorePath,
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="The question, in quotes.", show_default=False)],
    session: OneSession = None,
    mode: Annotated[AskMode, typer.Option(help="How to answer: see below.")] = "auto",
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The longest answer, in tokens.")] = 64,
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    ram_budget: RamBudget = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    key_folder: KeyFolder = None,
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
    from livingkv.cli_render import print_answer

    settings = chosen_settings(ram_budget=ram_budget, key_folder=key_folder)
    sampling = chosen_sampling(temperature, top_p, seed)
    chosen, stops = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack), chosen_stops(stop)
    with (
        waiting("asking"),
        open_memory(store, model=chosen, settings=settings, read_only=True, create=False) as memory,
    ):
        answer = memory.ask(question, session=session, mode=mode, max_tokens=max_tokens, sampling=sampling, stop=stops)
    print_answer(answer, as_json=as_json)
    return ExitCode.OK if answer.confident else ExitCode.LOW_CONFIDENCE


@app.command()
def chat(
    store: StorePath,
    session: Session = "default",
    max_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="The longest reply, in tokens.")] = 256,
    model: Model = None,
    weights: Weights = None,
    backend: BackendName = None,
    ram_gb: RamGb = None,
    pack: PackFolder = None,
    dual_chunk: Dual = None,
    disk_budget: DiskBudget = None,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    recall: Annotated[
        RecallFrom, typer.Option(help="Where a question's answer is looked for besides the newest of the conversation.")
    ] = "all",
    encrypt: Encrypt = False,
    key_folder: KeyFolder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document a turn, each on one line.")] = False,
    debug: Debug = False,
) -> None:
    """Talk; every turn is kept before the prompt returns, and a later process resumes.

    Standard input is read line by line, also from a pipe: one line is one
    message. /quit or Ctrl-D ends. A question is asked of memory first: of all
    sessions, with --recall session of this one alone, with --recall off not.

    \b
    Examples:
      livingkv chat notes.lkv
      livingkv chat notes.lkv --session anna
      echo "My sister lives in Graz." | livingkv chat notes.lkv
    """
    from livingkv.cli_chat import Talk, chat_until_end
    from livingkv.cli_progress import phase_bar

    settings = chosen_settings(disk_budget=disk_budget, key_folder=key_folder)
    talk = Talk(session, max_tokens, chosen_sampling(temperature, top_p, seed), chosen_stops(stop), encrypt, recall)
    chosen = chosen_model(model, weights, dual_chunk, backend, ram_gb, pack)
    with open_memory(store, model=chosen, settings=settings, create=True) as memory:
        with phase_bar() as show:
            memory.ready(session, progress=show)
        chat_until_end(memory, talk, as_json=as_json)


for verbs in (look_app, keep_app, mend_app, forget_app, serve_app, plan_app):
    app.add_typer(verbs)
app.add_typer(archive_app, name="archive")
app.add_typer(model_app, name="model")
app.add_typer(keys_app, name="keys")
app.add_typer(experts_app, name="experts")

if __name__ == "__main__":
    main()
