"""Does reading ahead pay? Found out by the times of tokens with it and without it, in alternating stretches.

Knows times; refuses to know experts. One object judges one model; nothing is kept when the model is closed.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from enum import Enum
from statistics import fmean, stdev

LOG = logging.getLogger("livingkv.experts")


class Verdict(Enum):
    """What is known about reading ahead."""

    COMPARING = "comparing"
    PAYS = "pays"
    DOES_NOT_PAY = "does not pay"
    ALWAYS = "always on"
    NEVER = "always off"


@dataclass(frozen=True, slots=True)
class Stretches:
    """How long a comparison takes, in tokens.

    n_pairs: stretches with reading ahead, each followed or preceded by one without. n_settling: tokens at the beginning
    of a stretch that do not count. n_kept: tokens that a verdict is good for; then times are compared again.
    """

    n_pairs: int = 4
    n_tokens: int = 10
    n_settling: int = 2
    n_kept: int = 2048

    def __post_init__(self) -> None:
        assert self.n_pairs >= 2 and 0 <= self.n_settling < self.n_tokens and self.n_kept >= 1


class Alternation:
    """Switches reading ahead on and off, and judges. `is_on` says what the next token does.

    Pays: tokens are faster by more than the standard error of the difference between neighbouring stretches. Whatever
    is not clearly faster is switched off, since it costs reads. Every change of the verdict is one line in the log.
    """

    def __init__(self, stretches: Stretches | None = None) -> None:
        self._stretches = stretches or Stretches()
        self.verdict = Verdict.COMPARING
        self.on_s: float | None = None
        self.off_s: float | None = None
        self._last: Verdict | None = None
        self._times: list[float] = []
        self._means: list[float] = []
        self._n_left = 0

    @property
    def is_on(self) -> bool:
        """Whether experts are read ahead in the next token."""
        if self.verdict is Verdict.COMPARING:
            pair, second = divmod(len(self._means), 2)
            return (pair + second) % 2 == 0  # on off, off on, on off: so that a drift favours neither
        return self.verdict is Verdict.PAYS

    def took(self, seconds: float) -> None:
        """A token took so long, with reading ahead as `is_on` said before it."""
        if self.verdict is not Verdict.COMPARING:
            self._n_left -= 1
            if not self._n_left:
                self.verdict = Verdict.COMPARING
                self._means = []
            return
        self._times.append(seconds)
        if len(self._times) == self._stretches.n_tokens:
            self._means.append(fmean(self._times[self._stretches.n_settling :]))
            self._times = []
            if len(self._means) == 2 * self._stretches.n_pairs:
                self._judge()

    def _judge(self) -> None:
        on = [mean for number, mean in enumerate(self._means) if (number // 2 + number) % 2 == 0]
        off = [mean for number, mean in enumerate(self._means) if (number // 2 + number) % 2]
        gains = [without - with_it for with_it, without in zip(on, off, strict=True)]
        error = stdev(gains) / len(gains) ** 0.5
        self.on_s, self.off_s, self._n_left = fmean(on), fmean(off), self._stretches.n_kept
        self.verdict = Verdict.PAYS if fmean(gains) > error else Verdict.DOES_NOT_PAY
        if self.verdict is not self._last:
            LOG.info(
                "reading ahead %s: a token takes %.1f ms with it and %.1f ms without; it is %s for the next %d tokens",
                *(self.verdict.value, self.on_s * 1e3, self.off_s * 1e3, "on" if self.is_on else "off"),
                self._stretches.n_kept,
            )
        self._last = self.verdict


@dataclass(frozen=True, slots=True)
class Fixed:
    """In place of an Alternation: what was decided by whoever loaded the model."""

    verdict: Verdict
    on_s: None = None
    off_s: None = None

    @property
    def is_on(self) -> bool:
        """Whether experts are read ahead."""
        return self.verdict is Verdict.ALWAYS

    def took(self, seconds: float) -> None:
        """See Alternation; nothing follows from it."""
