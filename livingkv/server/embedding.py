"""/v1/embeddings: texts to the vectors that the index finds by meaning with.

Knows the embedder made of the model's token embeddings; knows no store.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from livingkv.engine import Engine
from livingkv.index import TokenEmbedder
from livingkv.server.api_errors import ApiError
from livingkv.server.limits import TurnLimits
from livingkv.server.stepwise import in_steps, pause
from livingkv.server.text_pieces import pieces_of

_CHARS = 1 << 14
"""Of short texts, embedded between two pauses."""


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Vectors [texts, dimension], float32 of length 1, and tokens read."""

    vectors: npt.NDArray[np.float32]
    n_tokens: int


class Embedding:
    """The embedder of one model, made when first used. Not thread-safe."""

    def __init__(self, engine: Engine, limits: TurnLimits) -> None:
        self._engine = engine
        self._limits = limits
        self._embedder: TokenEmbedder | None = None

    def steps(self, inputs: tuple[str | tuple[int, ...], ...]) -> Generator[Embedded | None, None, None]:
        """One text after the other, with pauses; None until all are done. Raises ApiError for one that is longer than
        a prompt may be."""
        embedder = self._embedder or self._engine.embedder()
        self._embedder = embedder
        parts: list[npt.NDArray[np.float32]] = []
        n_tokens = n_chars = 0
        for each in inputs:
            text = self._text(each)
            n_tokens += yield from in_steps(partial(self._counted, text))
            parts.append(embedder.embed([text]))
            n_chars += len(text)
            if n_chars > _CHARS:
                n_chars = 0
                yield None
        yield Embedded(np.concatenate(parts), n_tokens)

    def _counted(self, text: str) -> int:
        """Tokens of a text, counted in pieces with a pause before each but the first."""
        n_tokens = 0
        for number, piece in enumerate(pieces_of(text, self._engine.words.added)):
            if number:
                pause()
            n_tokens += len(self._engine.words.encode(piece))
            self._limits.check_input(n_tokens)
        return n_tokens

    def _text(self, given: str | tuple[int, ...]) -> str:
        if isinstance(given, str):
            return given
        if not given or not 0 <= min(given) <= max(given) < self._engine.model.shape.vocab_size:
            raise ApiError(400, "input: token ids of the model are allowed", param="input")
        return str(self._engine.model.tokenizer.decode(list(given)))
