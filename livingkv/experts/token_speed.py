"""How fast a streamed model generates, and what share of the drive's limit that is.

Knows a streamed model as a whole; refuses to know how it works inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import NamedTuple

import torch
from torch import Tensor

from livingkv.experts.checkpoint import Checkpoint
from livingkv.experts.drive_speed import DEPTHS, SIZES, DriveSpeed, measure_drive
from livingkv.experts.layout import BLOCK_BYTES
from livingkv.experts.loading import StreamedModel
from livingkv.model_loading import quiet

_PROMPT_TOKENS = 16
_WARM_TOKENS = 4


def drive_speeds(
    checkpoint: Checkpoint,
    *,
    sizes: Sequence[int] = SIZES,
    depths: Sequence[int] = DEPTHS,
    seconds_each: float = 0.25,
) -> list[DriveSpeed]:
    """A checkpoint's drive, by sizes that its files are long enough for. Blocks. Raises ExpertReadError where files are
    not read past the page cache."""
    longest = max(file.mark.size_bytes for file in checkpoint.files)
    fitting = [size for size in sizes if size <= longest] or [max(BLOCK_BYTES, longest - longest % BLOCK_BYTES)]
    paths = [file.path for file in checkpoint.files]
    return measure_drive(paths, sizes=fitting, depths=depths, seconds_each=seconds_each)


def eta(n_bytes: float, bytes_per_s: float | None, seconds: float) -> float | None:
    """The share of `seconds` that a drive of this speed needs for so many bytes: 1 is the limit, and where RAM holds
    what is needed it is near 0. None where it cannot be told."""
    return n_bytes / bytes_per_s / seconds if bytes_per_s and seconds > 0 else None


@dataclass(frozen=True, slots=True)
class TokenSpeed:
    """Generated tokens and what they took. n_bytes: read for them, padding included;
    needed_bytes: without what was read ahead in vain. prompt_s: until the first token.

    waited_s: the model's thread had nothing to do but wait for reads.
    """

    n_tokens: int
    seconds: float
    n_bytes: int
    needed_bytes: int
    n_hits: int
    n_misses: int
    waited_s: float
    prompt_tokens: int
    prompt_s: float

    @property
    def tokens_per_s(self) -> float:
        """Generated in a second."""
        return self.n_tokens / self.seconds

    @property
    def hit_rate(self) -> float:
        """Of all uses of experts, those that RAM held."""
        return self.n_hits / max(1, self.n_hits + self.n_misses)


class _Moment(NamedTuple):
    time: float
    n_bytes: int
    needed_bytes: int
    n_hits: int
    n_misses: int
    waited_s: float


@dataclass(slots=True)
class _Watcher:
    """What transformers calls a streamer: told of the prompt, then of every token."""

    model: StreamedModel
    moments: list[_Moment] = field(default_factory=list)

    def put(self, value: Tensor) -> None:
        """The prompt or a token."""
        counts = self.model.counts()
        now, n_bytes = perf_counter(), counts.source.n_bytes
        self.moments.append(_Moment(now, n_bytes, counts.needed_bytes, counts.n_hits, counts.n_misses, counts.waited_s))

    def end(self) -> None:
        """There is no more."""


def token_speed(model: StreamedModel, n_tokens: int, prompt_ids: Sequence[int] = ()) -> TokenSpeed:
    """Generate so many tokens after a prompt, and a few that are not counted. Blocks. prompt_ids: else random ones.

    Tokens are drawn at temperature 1, always the same ones: the likeliest ones may go round in a circle, of which RAM
    would hold all experts. Raises ExpertReadError.
    """
    network, watcher = model.network, _Watcher(model)
    n_all = n_tokens + _WARM_TOKENS
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(0)
        given = torch.tensor([list(prompt_ids)]) if prompt_ids else None
        drawn = torch.randint(0, network.config.vocab_size, (1, _PROMPT_TOKENS))
        prompt = (drawn if given is None else given).to(network.device)
        network.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=n_all + 1,
            min_new_tokens=n_all + 1,
            streamer=watcher,
        )
    asked, answered, started, ended = (watcher.moments[place] for place in (0, 1, 1 + _WARM_TOKENS, 1 + n_all))
    return TokenSpeed(
        n_tokens,
        ended.time - started.time,
        ended.n_bytes - started.n_bytes,
        ended.needed_bytes - started.needed_bytes,
        ended.n_hits - started.n_hits,
        ended.n_misses - started.n_misses,
        ended.waited_s - started.waited_s,
        prompt.shape[1],
        answered.time - asked.time,
    )
