"""Requests that wait: turns of tenants, of users within one, limits for each tenant, and a place that is kept."""

from __future__ import annotations

import random
from collections.abc import Sequence

from livingkv.server import fair_queue
from livingkv.server.fair_queue import FairQueue
from livingkv.server.model_job import Job, Whose


def job(tenant: str, user: str = "") -> Job:
    return Job(lambda: iter(()), lambda error: None, Whose(tenant, user))


def filled(*jobs: Job, n_most: int = 64) -> FairQueue:
    queue = FairQueue(n_most)
    assert all(queue.put(each) for each in jobs)
    return queue


def order_of(queue: FairQueue, n_places: int = 1) -> list[Whose]:
    """Taken up one at a time, each ended before the next."""
    found = []
    while (taken := queue.take([], n_places)) is not None:
        found.append(taken.whose)
    return found


def test_one_users_requests_are_taken_up_in_their_order() -> None:
    jobs = [job("t", "anna") for _ in range(5)]
    queue = filled(*jobs)
    assert [queue.take([], 1) for _ in range(6)] == [*jobs, None] and len(queue) == 0


def test_tenants_take_turns_whatever_crowd_one_has() -> None:
    queue = filled(*(job("crowd", str(n)) for n in range(6)), job("small"), job("small"))
    assert [each.tenant for each in order_of(queue)] == ["crowd", "small", "crowd", "small", *["crowd"] * 4]


def test_users_of_one_tenant_take_turns() -> None:
    queue = filled(*(job("t", "anna") for _ in range(3)), job("t", "ben"), job("t", "ben"), job("t"))
    assert [each.user for each in order_of(queue)] == ["anna", "ben", "", "anna", "ben", "anna"]


def test_who_has_fewest_running_is_next() -> None:
    queue = filled(job("a"), job("b"))
    taken = queue.take([job("a"), job("a"), job("c")], 8)
    assert taken is not None and taken.whose.tenant == "b"


def test_a_tenant_fills_its_own_queue_only() -> None:
    queue = filled(job("a", "x"), job("a", "y"), n_most=2)
    assert not queue.put(job("a", "z")) and queue.put(job("b")) and len(queue) == 3


def test_the_last_place_is_kept_for_somebody_else_once_there_was_one() -> None:
    crowd = [job("t", "anna") for _ in range(4)]
    assert filled(*crowd).take(crowd[:1], 2) is crowd[0], "nobody else was ever there"
    queue = filled(job("t", "ben"), *crowd)
    running: list[Job] = []
    while (taken := queue.take(running, 4)) is not None:
        running.append(taken)
    assert [each.whose.user for each in running] == ["ben", "anna", "anna"]
    queue.put(job("t", "carl"))
    last = queue.take(running, 4)
    assert last is not None and last.whose.user == "carl"
    assert queue.take([*running, last], 4) is None
    assert len(queue.clear()) == 2 and len(queue) == 0


def test_nobody_waits_for_ever() -> None:
    """Crowds that never end beside single requests: each of those is taken up within two turns."""
    draw = random.Random(7)
    queue = filled(*(job("crowd", f"u{n}") for n in range(5)))
    for n in range(200):
        queue.put(job("crowd", f"u{draw.randrange(5)}"))
        if n % 20 == 10:
            queue.put(job("quiet"))
            assert "quiet" in taken_next(queue, 2)
        taken_next(queue, 1)


def taken_next(queue: FairQueue, n: int) -> Sequence[str]:
    return [taken.whose.tenant for _ in range(n) if (taken := queue.take([], 1)) is not None]


def test_who_was_served_long_ago_is_forgotten() -> None:
    queue = FairQueue(8)
    for n in range(3 * fair_queue._REMEMBERED):
        queue.put(job(f"t{n}"))
        assert queue.take([], 1) is not None
    assert len(queue._taken) <= fair_queue._REMEMBERED
