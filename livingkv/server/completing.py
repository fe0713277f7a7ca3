"""/v1/completions: text that goes on from a prompt. Nothing is stored and nothing is reused.

Knows a prompt as tokens; knows no session.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from livingkv.engine import Engine
from livingkv.server.api_errors import ApiError
from livingkv.server.counters import Counters
from livingkv.server.events import Began, Done, Emit
from livingkv.server.limits import TurnLimits
from livingkv.server.reading import Reading
from livingkv.server.replying import Replying, Wish
from livingkv.server.stepwise import in_steps, pause
from livingkv.server.text_pieces import pieces_of
from livingkv.server.token_texts import TokenTexts
from livingkv.settings import Settings
from livingkv.store import TokenIds


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A prompt, as text whose special tokens count as such, or as token ids."""

    prompt: str | tuple[int, ...]
    wish: Wish


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion. `steps` runs it once."""

    engine: Engine
    texts: TokenTexts
    asked: CompletionRequest
    limits: TurnLimits
    settings: Settings
    counters: Counters
    emit: Emit

    def steps(self) -> Iterator[None]:
        """Read the prompt and generate, pausing often."""
        ids = yield from in_steps(self._ids)
        max_tokens = self.limits.room_for_reply(len(ids), self.asked.wish.max_tokens)
        hot = self.engine.hot_window(self.settings, len(self.engine.words.framing.prologue))
        self.emit(Began(len(ids), 0, 0, None))
        reading = Reading(self.engine, self.settings, self.counters)
        logits = yield from reading.read(ids, hot)
        replying = Replying(self.engine, self.texts, replace(self.asked.wish, max_tokens=max_tokens), self.emit)
        yield from reading.reply(logits, hot, replying, max_tokens)
        generated, finish, _ = replying.end()
        self.emit(Done(finish, len(ids), 0, len(generated.token_ids), reading.n_prefilled, None))

    def _ids(self) -> TokenIds:
        prompt, words = self.asked.prompt, self.engine.words
        ids = self._encoded(prompt) if isinstance(prompt, str) else list(prompt)
        if not ids:
            ids = list(words.framing.prologue[:1])
        if not 0 <= min(ids) <= max(ids) < self.engine.model.shape.vocab_size:
            raise ApiError(400, "prompt: token ids of the model are allowed", param="prompt")
        return np.array(ids, np.int32)

    def _encoded(self, prompt: str) -> list[int]:
        """A prompt in pieces, with a pause before each. Raises ApiError as soon as it is known to be too long."""
        ids: list[int] = []
        for piece in pieces_of(prompt, self.engine.words.added):
            pause()
            self.limits.check_prompt(len(ids))
            ids += self.engine.words.encode_template(piece)
        return ids
