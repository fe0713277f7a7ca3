"""/v1/embeddings: texts to the vectors that the index finds by meaning with.

Knows the embedder made of the model's token embeddings; knows no store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from livingkv.engine import Engine
from livingkv.index import TokenEmbedder
from livingkv.server.api_errors import ApiError

_AT_ONCE = 16


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """Vectors [texts, dimension], float32 of length 1, and tokens read."""

    vectors: npt.NDArray[np.float32]
    n_tokens: int


class Embedding:
    """The embedder of one model, made when first used. Not thread-safe."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._embedder: TokenEmbedder | None = None

    def steps(self, inputs: tuple[str | tuple[int, ...], ...]) -> Iterator[Embedded | None]:
        """Some texts at a time; None until all are done."""
        embedder = self._embedder or self._engine.embedder()
        self._embedder = embedder
        parts: list[npt.NDArray[np.float32]] = []
        n_tokens = 0
        for lo in range(0, len(inputs), _AT_ONCE):
            texts = [self._text(each) for each in inputs[lo : lo + _AT_ONCE]]
            n_tokens += sum(len(self._engine.words.encode(text)) for text in texts)
            parts.append(embedder.embed(texts))
            yield None
        yield Embedded(np.concatenate(parts), n_tokens)

    def _text(self, given: str | tuple[int, ...]) -> str:
        if isinstance(given, str):
            return given
        if not given or not 0 <= min(given) <= max(given) < self._engine.model.shape.vocab_size:
            raise ApiError(400, "input: token ids of the model are allowed", param="input")
        return str(self._engine.model.tokenizer.decode(list(given)))
