"""What a memory tells of its inner steps to whoever counts them. Knows seconds; knows no step."""

from __future__ import annotations


class Watch:
    """Told on the memory's own thread. This one lets it pass; who wants to know it overrides a method."""

    def probed(self, seconds: float) -> None:
        """The index was asked for what a question may mean."""

    def ingested(self, n_tokens: int) -> None:
        """A text was read to its end."""

    def restored(self, seconds: float) -> None:
        """A session's hot window was brought back from the store."""

    def reused(self) -> None:
        """A session's hot window was still held in device memory."""
