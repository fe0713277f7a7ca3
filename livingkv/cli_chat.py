"""The chat verb: one message a line, one durable turn a message.

Knows terminals and pipes; knows nothing of how a turn is answered or kept.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from livingkv.cli_process import say
from livingkv.cli_render import print_json_line, recalled_lines, stream_text, turn_line
from livingkv.errors import QuestionError
from livingkv.results import Recall, to_json

if TYPE_CHECKING:
    from livingkv.memory import Memory
    from livingkv.sampling import Sampling

QUIT = "/quit"
PROMPT = "> "


@dataclass(frozen=True, slots=True)
class Talk:
    """What every message of a chat has in common: its session, and how replies are generated."""

    session: str
    max_tokens: int
    sampling: Sampling | None
    stop: tuple[str, ...]
    encrypt: bool = False
    recall: Recall = "all"


def chat_until_end(memory: Memory, talk: Talk, *, as_json: bool) -> None:
    """Answers every message until /quit or the end of input. A turn is durable before the next message is read."""
    n_turns = 0
    for message in messages(prompt_on_stderr=as_json):
        n_turns += 1
        turn = memory.chat(
            message,
            session=talk.session,
            max_tokens=talk.max_tokens,
            recall=talk.recall,
            encrypt=talk.encrypt,
            sampling=talk.sampling,
            stop=talk.stop,
            on_text=None if as_json else stream_text,
        )
        if as_json:
            print_json_line(to_json(turn))
        else:
            print(flush=True)
            if sys.stderr is not None and sys.stderr.isatty():
                for line in (*recalled_lines(turn), turn_line(turn)):
                    say(line)
    if n_turns == 0 and not sys.stdin.isatty():
        say("standard input held no message: nothing was said; a message a line is read")


def messages(*, prompt_on_stderr: bool) -> Iterator[str]:
    """The messages that standard input holds, blank ones left out, up to /quit or its end."""
    for line in typed_lines(prompt_on_stderr=prompt_on_stderr) if sys.stdin.isatty() else piped_lines():
        message = line.strip()
        if message == QUIT:
            return
        if message:
            yield message


def typed_lines(*, prompt_on_stderr: bool) -> Iterator[str]:
    """Lines typed at a terminal, with line editing where Python has it."""
    if prompt_on_stderr or not sys.stdout.isatty():
        sys.stderr.write(PROMPT)
        sys.stderr.flush()
        for line in sys.stdin:
            yield line
            sys.stderr.write(PROMPT)
            sys.stderr.flush()
        say("")
        return
    import_line_editing()
    while True:
        try:
            yield input(PROMPT)
        except EOFError:
            print()
            return


def import_line_editing() -> None:
    """Gives `input` history and arrow keys, on systems that have readline."""
    try:
        import readline  # noqa: F401
    except ImportError:
        return


def piped_lines() -> Iterator[str]:
    """Lines of a pipe or file, each decoded when it is its turn. Raises QuestionError for bytes that are not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode()
        except UnicodeDecodeError as error:
            raise QuestionError(f"message on line {number}", "bytes that are not UTF-8", "UTF-8 is allowed") from error
