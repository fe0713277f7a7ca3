"""Signs of life on standard error while something takes long, only where that is a terminal.

Knows terminals; standard output is left alone, so that a pipe gets results and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

ShowBytes = Callable[[int, int], None]
"""Is told the bytes done and the bytes in all."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """A spinner for the time of the block."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield
        return
    with console.status(what):
        yield


@contextmanager
def byte_bar(what: str) -> Iterator[ShowBytes | None]:
    """A progress bar for the time of the block, gone afterwards. Gives the function that moves it, None without one."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield None
        return
    text = TextColumn("{task.description}", markup=False)
    columns = (SpinnerColumn(), text, BarColumn(), TaskProgressColumn(), DownloadColumn(), TimeRemainingColumn())
    bar = Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False)
    with bar:
        task = bar.add_task(what, total=None)

        def show(done_bytes: int, total_bytes: int) -> None:
            bar.update(task, completed=done_bytes, total=total_bytes)

        yield show
