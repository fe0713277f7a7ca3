"""Who gets the model's time: replies, prompts and background jobs, by a clock that only steps move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from livingkv.server import taking_turns
from livingkv.server.api_errors import ApiError, not_ready
from livingkv.server.counters import Counters
from livingkv.server.joining import Joining
from livingkv.server.model_job import NOBODY, Job
from livingkv.server.taking_turns import TakingTurns

BLOCK_S, TOKEN_S = 0.5, 0.1


class Clock:
    """Stands still but for what is done."""

    def __init__(self) -> None:
        self.now = 0.0
        self.spent: Counter[str] = Counter()
        self.steps: list[str] = []

    def spend(self, name: str, seconds: float) -> None:
        self.now += seconds
        self.spent[name] += seconds  # type: ignore[assignment]
        self.steps.append(name)


class Shared(Joining):
    """Passes of one length, whatever they hold."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(8, lambda n_rows: None)
        self._clock = clock
        self.n_asked = self.n_settled = 0
        self.rows: list[int] = []

    @property
    def n_waiting(self) -> int:
        return self.n_asked

    def settle(self) -> None:
        self.n_settled += 1

    def run(self) -> None:
        self.rows.append(self.n_asked)
        self.n_asked = 0
        self._clock.spend("pass", TOKEN_S)


class Machine:
    """Turns among made-up jobs."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.shared = Shared(self.clock)
        self.counters = Counters()
        self.is_on = True
        self.told: list[Exception] = []
        self.turns = TakingTurns(self.shared, self.counters, lambda: self.is_on, clock=lambda: self.clock.now)

    def replies(self, n_tokens: int = 10_000) -> Job:
        def steps() -> Iterator[None]:
            for _ in range(n_tokens):
                self.shared.n_asked += 1
                try:
                    yield
                except GeneratorExit:
                    self.shared.n_asked -= 1
                    raise
            yield

        return self._running(Job(steps, self.told.append, NOBODY))

    def reads(self, name: str, n_blocks: int = 10_000, seconds: float = BLOCK_S) -> Job:
        return self._running(self._blocks(name, n_blocks, seconds))

    def works(self, name: str, n_blocks: int = 10_000) -> Job:
        job = self._blocks(name, n_blocks, BLOCK_S)
        self.turns.background.append(job)
        return job

    def _blocks(self, name: str, n_blocks: int, seconds: float) -> Job:
        def steps() -> Iterator[None]:
            for _ in range(n_blocks):
                self.clock.spend(name, seconds)
                yield

        return Job(steps, self.told.append, NOBODY)

    def _running(self, job: Job) -> Job:
        self.turns.running.append(job)
        return job

    def rounds(self, n: int) -> None:
        for _ in range(n):
            self.turns.round()

    def shares(self) -> dict[str, float]:
        total = sum(self.clock.spent.values())
        return {name: spent / total for name, spent in self.clock.spent.items()}

    def longest_without(self, name: str) -> float:
        """Seconds between two steps of this name, at most, the last waiting included."""
        longest = now = 0.0
        lengths = {"pass": TOKEN_S}
        for step in self.clock.steps:
            now = 0.0 if step == name else now + lengths.get(step, BLOCK_S)
            longest = max(longest, now)
        return longest


@pytest.mark.parametrize("n_readers", [1, 3, 7])
def test_prompts_take_at_most_half_of_the_time_from_replies(n_readers: int) -> None:
    machine = Machine()
    for _ in range(4):
        machine.replies()
    machine.rounds(1)
    for number in range(n_readers):
        machine.reads(f"reader {number}")
    machine.rounds(800)
    shares = machine.shares()
    assert shares["pass"] == pytest.approx(0.52, abs=0.03) and set(machine.shared.rows) == {4}
    assert [shares[f"reader {n}"] for n in range(n_readers)] == pytest.approx([0.48 / n_readers] * n_readers, rel=0.1)
    assert machine.longest_without("pass") <= BLOCK_S + TOKEN_S, "one block between two tokens"


def test_a_short_request_goes_before_a_long_prompt_that_had_its_share() -> None:
    machine = Machine()
    machine.replies()
    machine.reads("prompt")
    machine.rounds(4)
    machine.reads("search", 1, 0.01)
    machine.rounds(1)
    assert machine.clock.spent["search"] > 0


def test_without_replies_everything_has_a_step_in_each_round() -> None:
    machine = Machine()
    for name in "abc":
        machine.reads(name)
    machine.rounds(5)
    assert machine.clock.steps == list("abc") * 5


def test_a_gpu_is_waited_for_where_shares_depend_on_it() -> None:
    machine = Machine()
    machine.works("ingest")
    machine.rounds(3)
    assert machine.shared.n_settled == 0, "it may go on launching"
    machine.reads("prompt")
    machine.rounds(1)
    assert machine.shared.n_settled == 1


def test_background_work_has_an_eighth_beside_requests_and_all_of_the_rest() -> None:
    machine = Machine()
    machine.works("ingest")
    machine.rounds(3)
    assert machine.clock.steps == ["ingest"] * 3
    machine.replies()
    machine.reads("prompt")
    machine.rounds(1)
    assert machine.clock.steps[3:] == ["prompt"], "it has just had its step"
    machine.rounds(1000)
    assert machine.shares()["ingest"] == pytest.approx(1 / 8, abs=0.01)


def test_background_jobs_take_turns() -> None:
    machine = Machine()
    machine.works("one")
    machine.works("two")
    machine.replies()
    machine.rounds(1000)
    assert machine.clock.spent["one"] == pytest.approx(machine.clock.spent["two"], abs=BLOCK_S) and machine.clock.now


def test_requests_that_only_wait_keep_no_background_work_back() -> None:
    machine = Machine()
    machine.works("ingest")
    machine.rounds(1)
    machine.reads("at the gate", seconds=0.0)
    machine.rounds(taking_turns._QUIET_ROUNDS + 9)
    assert machine.clock.steps.count("ingest") == 11


def test_quick_steps_before_a_prompt_let_no_background_step_in() -> None:
    machine = Machine()
    machine.works("ingest")
    machine.rounds(1)
    machine.reads("finding the session", 10, seconds=0.0)
    machine.rounds(10)
    assert machine.clock.steps.count("ingest") == 1


def test_one_that_is_given_up_leaves_before_the_pass_and_ended_ones_leave_after_it() -> None:
    machine = Machine()
    machine.replies(3)
    machine.replies()
    gone = machine.replies()
    machine.rounds(2)
    gone.cancel()
    machine.rounds(4)
    assert machine.shared.rows == [3, 2, 2, 1, 1] and gone not in machine.turns.running
    assert machine.counters.registry.get_sample_value("livingkv_cancelled_total") == 1


def test_an_error_is_told_to_its_request_alone() -> None:
    machine = Machine()

    def broken() -> Iterator[None]:
        raise OSError("no such page")
        yield

    machine.turns.running.append(Job(broken, machine.told.append, NOBODY))
    machine.reads("other")
    machine.rounds(2)
    assert [str(error) for error in machine.told] == ["no such page"] and machine.clock.steps == ["other"] * 2


def test_time_is_counted_by_kind() -> None:
    machine = Machine()
    machine.replies()
    machine.reads("prompt")
    machine.works("ingest")
    machine.rounds(200)
    for kind, name in (("decode", "pass"), ("read", "prompt"), ("background", "ingest")):
        counted = machine.counters.registry.get_sample_value("livingkv_step_seconds_sum", {"kind": kind})
        assert counted == pytest.approx(machine.clock.spent[name])


def test_once_it_stops_nobody_has_a_step_and_all_are_told() -> None:
    machine = Machine()
    machine.replies()
    machine.reads("prompt")
    machine.works("ingest")
    machine.is_on = False
    machine.rounds(2)
    assert not machine.clock.steps
    machine.turns.drop([machine.reads("waiting")], lambda: not_ready("the service is stopping"))
    assert len(machine.told) >= 4 and all(isinstance(error, ApiError) for error in machine.told)
