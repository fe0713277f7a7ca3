"""The edge between the command line and the operating system: streams, exit codes, errors as one line.

Knows what a shell expects of a process; knows nothing of what the verbs do.
"""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from enum import IntEnum

import typer
from typer.core import TyperGroup

from livingkv.errors import LivingKVError


class ExitCode(IntEnum):
    """What the process tells its caller."""

    OK = 0
    FAILED = 1
    LOW_CONFIDENCE = 2
    INTERRUPTED = 130  # 128 + SIGINT, as shells report it
    PIPE_CLOSED = 141  # 128 + SIGPIPE


def run(command: TyperGroup, argv: Sequence[str], *, program: str = "livingkv") -> int:
    """Runs one command line and returns its exit code. Never raises for what the world did wrong.

    The verb's return value is the exit code (None is 0). Everything that fails becomes one line on standard error;
    with `--debug` among the arguments the traceback comes before it.
    """
    use_utf8()
    debug = "--debug" in argv
    try:
        code = call(command, argv, program)
        flush()
        return code
    except KeyboardInterrupt:
        say("")  # leaves the ^C alone on its line
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        close_stdout()
        return ExitCode.PIPE_CLOSED
    except typer.TyperException as error:
        return fail(usage_line(error, program), error, debug)
    except LivingKVError as error:
        return fail(f"{program}: {one_line(str(error))}", error, debug)
    except Exception as error:  # the process edge: whatever is left is told in one line and recorded by --debug
        hint = "" if debug else " (a traceback: the same command with --debug)"
        return fail(f"{program}: {type(error).__name__}: {one_line(str(error))}{hint}", error, debug)


def call(command: TyperGroup, argv: Sequence[str], program: str) -> int:
    """Parses the arguments and calls the verb. Typer's own error handling, which exits with 2, is left out."""
    try:
        with command.make_context(program, list(argv)) as context:
            result = command.invoke(context)
    except typer.Exit as request:
        return request.exit_code
    return ExitCode.OK if result is None else int(result)


def fail(line: str, error: BaseException, debug: bool) -> int:
    """Tells the error on standard error; standard output keeps what it has."""
    if debug:
        say("".join(traceback.format_exception(error)).rstrip())
    say(line)
    try:
        flush()
    except OSError:
        close_stdout()
    return ExitCode.FAILED


def usage_line(error: typer.TyperException, program: str) -> str:
    """A usage error in one line that says where the help is."""
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else program
    message = one_line(error.format_message()).replace("Value error, ", "").rstrip(".")
    return f"{path}: {message}; see {path} --help"


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def say(text: str) -> None:
    """Writes a line on standard error, if there is one that takes it."""
    if sys.stderr is not None:
        try:
            print(text, file=sys.stderr, flush=True)
        except OSError:
            close(sys.stderr.fileno())


def use_utf8() -> None:
    """Makes the standard streams UTF-8 whatever the locale. A file name's stray bytes are written as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")


def flush() -> None:
    """Flushes standard output now, so that a closed pipe or a full disk is seen here and not at shutdown."""
    if sys.stdout is not None:
        sys.stdout.flush()


def close_stdout() -> None:
    """Points standard output at nothing, so that what cannot be delivered is not complained about at shutdown."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        close(sys.stdout.fileno())


def close(descriptor: int) -> None:
    """Points a file descriptor at nothing."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, descriptor)
    os.close(nothing)
