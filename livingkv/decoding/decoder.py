"""Decode steps by recordings: one replay reads a token into each of several workspaces and leaves logits and choices.

Knows the ways in which a step may be computed, which of them agree with the network's own pass, and which is the
quickest; knows no sessions, and of sampling only who does it. Nothing here is needed for a right answer: what cannot be
recorded, or differs from the network's own pass, is left to that one, with a line in the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, cast, runtime_checkable

import torch
from torch import Tensor

from livingkv.batched_decode import DecodeStep, Outcome
from livingkv.codec import PageShape
from livingkv.decoding.choices import Choices
from livingkv.decoding.network import Step
from livingkv.decoding.recording import Recorder
from livingkv.decoding.table import MAX_RUNS, Table
from livingkv.models import LoadedModel
from livingkv.positions import period
from livingkv.sampling import Sampler, pick_all
from livingkv.workspace import AttentionState, OneToken, Workspace

LOG = logging.getLogger("livingkv.decoding")

SIZES = (1, 2, 4, 8)
"""Rows of a recording. Fewer are filled up, more go in turns."""

TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.05, torch.float16: 0.02}
"""How far logits, keys and values may be from the network's own: the length of the difference by the length. Rounding
alone makes some hundredths in bf16."""

Eager = Callable[[Tensor, Workspace], Tensor]
"""Read token ids [tokens] into a workspace by the network's own pass: the last one's logits, fp32 [vocabulary]."""

Way = tuple[str, Callable[[Table], Step]]
"""How a step is computed: a name for the log, and what makes it."""


@runtime_checkable
class OneTokenState(Protocol):
    """An attention state whose pass over one token can be told in numbers."""

    def one_token(self) -> OneToken:
        """See Workspace.one_token."""
        ...


@dataclass(frozen=True, eq=False)
class Recording:
    """A step of `n_rows` rows that was recorded. seconds: what one replay took."""

    way: str
    n_rows: int
    replay: Callable[[], None]
    seconds: float


class Decoder:
    """Recordings of one model's decode steps, made when they are first needed. Not thread-safe.

    `ways` are tried in turn; of those that agree with `eager` the quickest is kept, for each number of rows. A second
    group of ways is tried only where none of the first agreed.
    """

    def __init__(self, model: LoadedModel, eager: Eager, recorder: Recorder, ways: Sequence[Sequence[Way]]) -> None:
        self._model = model
        self._eager = eager
        self._recorder = recorder
        self._ways = tuple(ways)
        self._table = Table(self._space(1), SIZES[-1], model.rope.inverse_frequencies)
        self._logits = torch.zeros((SIZES[-1], model.shape.vocab_size), device=model.device)  # fp32
        self._choices = Choices(SIZES[-1], model.device)
        self._made: dict[int, Recording | None] = {}
        self._tellable: dict[type, bool] = {}

    def recording(self, n_rows: int) -> Recording | None:
        """The recording that takes `n_rows` rows, made now if need be; None where none agrees. Blocks."""
        size = next(size for size in SIZES if size >= n_rows)
        if size not in self._made:
            self._made[size] = self._record(size)
        return self._made[size]

    @torch.inference_mode()
    def prepare(self, n_rows: int) -> None:
        """Make all recordings that steps of up to `n_rows` states need. Blocks."""
        for size in SIZES:
            self.recording(size)
            if size >= n_rows:
                return

    @torch.inference_mode()
    def run(self, steps: Sequence[DecodeStep]) -> list[Outcome] | None:
        """A token is read into each state, and samplers pick. None, and nothing was read, where one of the states or
        this number of them cannot be taken. Waits where there are samplers; is queued and not waited for otherwise."""
        rows = self._rows(steps)
        if rows is None:
            return None
        groups = [slice(lo, lo + SIZES[-1]) for lo in range(0, len(steps), SIZES[-1])]
        recordings = [self.recording(len(steps[group])) for group in groups]
        if None in recordings:
            return None
        out: list[Outcome] = []
        for group, recording in zip(groups, recordings, strict=True):
            assert recording is not None
            out += self._run(recording, steps[group], rows[group])
        return out

    def _rows(self, steps: Sequence[DecodeStep]) -> list[OneToken] | None:
        rows = []
        for step in steps:
            kind = type(step.state)
            if kind not in self._tellable:
                self._tellable[kind] = isinstance(step.state, OneTokenState)  # slow, for a question of each token
            if not self._tellable[kind]:
                return None
            row: OneToken = cast(OneTokenState, step.state).one_token()
            if len(row.runs) > MAX_RUNS:
                return None
            rows.append(row)
        return rows

    def _run(self, recording: Recording, steps: Sequence[DecodeStep], rows: Sequence[OneToken]) -> list[Outcome]:
        self._replay(recording, [step.token for step in steps], rows)
        wants_choices = any(step.sampler is not None and step.sampler.is_greedy for step in steps)
        if wants_choices:
            self._choices.fetch()
        outcomes: dict[int, Outcome] = {}
        for row, step in enumerate(steps):  # while the device computes
            if (error := _finished(step.state)) is not None:
                outcomes[row] = error
        picking: dict[int, Sampler] = {}
        choices = self._choices.fetched(len(steps)) if wants_choices else []
        for row, step in enumerate(steps):
            if row in outcomes:
                continue
            if step.sampler is None:
                outcomes[row] = self._logits[row].clone()[None, None]
            elif step.sampler.is_greedy:
                outcomes[row] = step.sampler.take(*choices[row])
            else:
                picking[row] = step.sampler
        outcomes |= self._picked(picking)
        return [outcomes[row] for row in range(len(steps))]

    def _picked(self, samplers: dict[int, Sampler]) -> dict[int, int]:
        """Of each row the token that its sampler picks, all at once."""
        if not samplers:
            return {}
        rows = list(samplers)
        logits = self._logits[: len(rows)] if rows == list(range(len(rows))) else self._logits[rows]
        return dict(zip(rows, pick_all(list(samplers.values()), logits), strict=True))

    def _replay(self, recording: Recording, tokens: Sequence[int], rows: Sequence[OneToken]) -> None:
        self._table.write(tokens, rows, recording.n_rows)
        recording.replay()
        self._table.forget()

    def _record(self, size: int) -> Recording | None:
        probe = _Probe(self._model, self._eager, [self._space(_PROBE_TOKENS + 2) for _ in range(size)])
        for ways in self._ways:
            found = [made for way in ways if (made := self._agreeing(way, size, probe)) is not None]
            if found:
                best = min(found, key=lambda made: made.seconds)
                LOG.info("decode steps of %d rows are recorded (%s, %.2f ms)", size, best.way, best.seconds * 1000)
                return best
        LOG.warning("decode steps of %d rows are not recorded: no way of computing them will do", size)
        return None

    def _agreeing(self, way: Way, size: int, probe: _Probe) -> Recording | None:
        """The step recorded this way, None where it fails or differs."""
        name, make = way
        try:
            step = make(self._table)

            def into_place() -> None:
                self._logits[:size].copy_(step(size))
                self._choices.choose(self._logits[:size])

            self._table.write(probe.tokens, probe.rows(), size)
            recording = Recording(name, size, self._recorder.record(into_place), 0.0)
            probe.blank()
            self._logits.fill_(float("nan"))
            self._replay(recording, probe.tokens, probe.rows())
            error = probe.error(self._logits[:size])
            if not error <= TOLERANCE[self._model.dtype]:
                LOG.info("decode steps by %s differ from the network's own by %.3g: not used", name, error)
                return None
            seconds = self._recorder.seconds(recording.replay)
            LOG.info("%d rows by %s: %.3f ms, differing by %.3g", size, name, seconds * 1000, error)
            return Recording(name, size, recording.replay, seconds)
        except Exception as error:  # the edge of a shortcut: whatever it is, the network's own pass is right
            LOG.info("decode steps by %s cannot be recorded: %s", name, (str(error) or repr(error)).splitlines()[0])
            return None

    def _space(self, capacity: int) -> Workspace:
        model = self._model
        shape = PageShape(model.shape.n_layers, model.shape.n_kv_heads, model.shape.head_dim, model.dtype)
        return Workspace(shape, model.rope, capacity, model.device, model.dual_chunk)


_PROBE_TOKENS = 150


class _Probe:
    """Workspaces that hold some tokens, and what the network itself makes of the next one. With dual-chunk positions
    they lie across a border."""

    def __init__(self, model: LoadedModel, eager: Eager, spaces: Sequence[Workspace]) -> None:
        generator = torch.Generator().manual_seed(0)
        self._spaces = spaces
        self.tokens = [int(token) for token in self._random(model, len(spaces), generator)]
        logits = []
        for index, space in enumerate(spaces):
            if model.dual_chunk is not None:
                space.next_position = period(model.dual_chunk) * (1 + index) - _PROBE_TOKENS // 3
            n_tokens = _PROBE_TOKENS - 13 * index
            eager(self._random(model, n_tokens, generator).to(model.device), space)
            logits.append(eager(torch.tensor([self.tokens[index]], device=model.device), space))
            space.end -= 1
            space.next_position -= 1
        self._logits = torch.stack(logits)
        self._written = self._slots()

    def rows(self) -> list[OneToken]:
        """The next token of each workspace."""
        return [space.one_token() for space in self._spaces]

    def blank(self) -> None:
        """Nothing was written."""
        for space in self._spaces:
            space.blank(space.end, space.end + 1)

    def error(self, logits: Tensor) -> float:
        """The largest relative difference of a row's logits, keys or values; not a number where one is none."""
        errors = [_distance(got, want) for got, want in zip(logits, self._logits, strict=True)]
        errors += [_distance(got, want) for got, want in zip(self._slots(), self._written, strict=True)]
        return float(torch.stack(errors).max())

    def _slots(self) -> list[Tensor]:
        return [part.clone() for space in self._spaces for part in space.view(space.end, space.end + 1)]

    @staticmethod
    def _random(model: LoadedModel, n_tokens: int, generator: torch.Generator) -> Tensor:
        return torch.randint(0, model.shape.vocab_size, (n_tokens,), generator=generator)


def _distance(got: Tensor, want: Tensor) -> Tensor:
    far: Tensor = torch.linalg.vector_norm(got.float() - want.float()) / torch.linalg.vector_norm(want.float())
    return far


def _finished(state: AttentionState) -> Exception | None:
    try:
        state.finish(1)
    except Exception as error:  # the edge of a row: told to whoever asked for it
        return error
    return None
