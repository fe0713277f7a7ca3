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
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

ShowBytes = Callable[[int, int], None]
"""Is told the bytes done and the bytes in all."""

ShowCount = Callable[[int, int], None]
"""Is told how many are done and how many there are."""

ShowPhase = Callable[[str, int, int], None]
"""Is told a phase of making a model ready, and how much of it is done and in all (bytes, or 0 and 1)."""

_PHASES = {"wait": "waiting for another process", "fetch": "fetching", "convert": "converting", "load": "loading"}


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
    with _bar(console, DownloadColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done_bytes, total_bytes: bar.update(task, completed=done_bytes, total=total_bytes)


@contextmanager
def count_bar(what: str) -> Iterator[ShowCount | None]:
    """As `byte_bar`, for what is counted one by one."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield None
        return
    with _bar(console, MofNCompleteColumn()) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


@contextmanager
def phase_bar() -> Iterator[ShowPhase | None]:
    """A progress bar for making a model ready, gone afterwards. Gives the function that moves it, None without one."""
    console = Console(stderr=True, markup=False)
    if not console.is_terminal:
        yield None
        return
    with _bar(console) as bar:
        task = bar.add_task("looking for the model", total=None)

        def show(phase: str, done: int, total: int) -> None:
            bar.update(task, description=_PHASES.get(phase, phase), completed=done, total=total if total > 1 else None)

        yield show


def _bar(console: Console, *columns: ProgressColumn) -> Progress:
    """A bar that leaves standard output alone and is gone at the end."""
    first = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
    return Progress(
        *first,
        *columns,
        TimeRemainingColumn(),
        console=console,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
