"""Where the bytes of an expert come from: the protocol and its counts.

Knows keys and rows of bytes; refuses to know tensors.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from livingkv.experts.keys import ExpertKey


@dataclass(frozen=True, slots=True)
class SourceCounts:
    """Reads so far. n_bytes: with padding. seconds: of all reads, those side by side added up."""

    n_experts: int = 0
    n_reads: int = 0
    n_bytes: int = 0
    seconds: float = 0.0


class Source(Protocol):
    """Reads experts into rows of memory."""

    @property
    def buffer_bytes(self) -> int:
        """Memory that the source itself takes."""

    def read(self, key: ExpertKey, row: memoryview, *, ahead: bool = False) -> Future[None]:
        """Begin to read an expert into its row; reads are served in the order of the calls. Does not wait.

        The row begins at a memory page and belongs to the source until the future is done: with None when every byte
        is there, or with ExpertReadError. Nothing is written after that. Raises ModelError in a process that was forked
        since the source was made.
        ahead: nobody needs it yet, so it is read only while nothing that is needed waits or is being read.
        """

    def need(self, future: Future[None]) -> None:
        """A read ahead has become a needed one. Nothing happens where it is one already, or over."""

    def give_up(self, future: Future[None]) -> bool:
        """A read ahead is not wanted any more. True: nothing of it had begun, its future is done with ExpertReadError.

        False where it began: it goes on as it was, and may be needed later.
        """

    def counts(self) -> SourceCounts:
        """What was read so far."""

    def close(self) -> None:
        """Wait for what is being read, and give everything back. A later `read` fails."""
