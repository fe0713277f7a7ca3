"""The self-test gate: is the page codec fit for this model?

Reads a short text against cold KV that went through the codec and against the same KV untouched, and compares the
next-token distributions. Some models lose everything to quantized keys without an error (Qwen2.5 with naive
8 or 4 bits), so a new store is not made before its codec has passed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from livingkv.codec import KV
from livingkv.engine import Engine
from livingkv.errors import CodecRefused
from livingkv.settings import PAGE_TOKENS
from livingkv.workspace import Workspace

MAX_KL = 0.02
MIN_AGREEMENT = 0.9
_COLD_PAGES = 4
_SCORED = 64

_TEXT = """The lock keeper's house stood on the left bank, and from its kitchen window one could see both gates.
On the third of May 1961 the keeper wrote into his book: level 4.82 m, wind from the west, two barges down, none up.
He had written such a line on every morning for nineteen years, and nobody had ever asked to see them.
def level(cm): return round(cm / 100, 2)  # the formula that his daughter wrote down for him
When the engineers came to build the power station they asked for the height of the flood of 1954, and the office
had lost
its papers. The keeper put on his glasses, took the seventh book from the shelf, and read: 8.17 m, at half past four
in the
morning, water in the cellar, the cat on the roof. "That is twelve centimetres more than we thought," said the
engineer.
Das Tor war zu. La porte était fermée. 門は閉まっていた。
They moved the turbine hall up the slope and named the road to it after him. He never walked on it, because his way
led along
the water, but he went on writing. The last line, on the thirtieth of November 1983, says: level 4.79 m, no wind,
fog, no
barges. Behind it, in another hand, stands the word: kept. The books are in the town archive now, shelf 12, and
whoever wants
to know how high the river stood on a certain morning asks for them, reads one line, and goes home.
"""


@dataclass(frozen=True, slots=True)
class GateResult:
    """kl: mean KL divergence in nats from the lossless to the coded distribution. agreement: share of equal greedy
    tokens."""

    kl: float
    agreement: float

    @property
    def passed(self) -> bool:
        """True when the codec is fit for the model."""
        return self.kl <= MAX_KL and self.agreement >= MIN_AGREEMENT


def measure_codec(engine: Engine) -> GateResult:
    """Compare the engine's codec with lossless KV: 256 cold tokens, 64 scored. Takes a second on two cores."""
    ids = engine.words.encode(_TEXT)
    cold = _COLD_PAGES * PAGE_TOKENS
    while len(ids) < cold + _SCORED:
        ids = ids + ids
    tokens = torch.tensor(ids[: cold + _SCORED], device=engine.model.device)
    plain = engine.workspace(cold + _SCORED)
    engine.runner.read(tokens[:cold], plain)
    coded = engine.workspace(cold + _SCORED)
    pages = engine.codec.encode(plain.view(0, cold), 0)
    kv: KV = engine.codec.decode(pages, list(range(0, cold, PAGE_TOKENS)), engine.model.device)
    coded.push(kv, 0)
    coded.next_position = cold
    before, after = (_distribution(engine, tokens[cold:], space) for space in (plain, coded))
    kl = (before.exp() * (before - after)).sum(-1).mean()
    agreement = (before.argmax(-1) == after.argmax(-1)).float().mean()
    return GateResult(float(kl), float(agreement))


def _distribution(engine: Engine, tokens: Tensor, space: Workspace) -> Tensor:
    """Log-probabilities [tokens, vocabulary] of what follows each token."""
    return engine.runner.logits(tokens, space, "all")[0].log_softmax(-1)


def require_codec(engine: Engine) -> None:
    """Raise CodecRefused when the engine's codec fails the gate; a lossless codec needs none."""
    if engine.codec.name == "lossless":
        return
    result = measure_codec(engine)
    if not result.passed:
        raise CodecRefused(
            f"8-bit pages are unfit for {engine.model.name} (KL {result.kl:.4f} nats, greedy agreement "
            f"{result.agreement:.3f}; at most {MAX_KL} and at least {MIN_AGREEMENT} are needed): use --codec lossless"
        )
