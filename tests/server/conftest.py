"""A service that runs, shared by the tests that need no other; each asks for a user of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from tests.server.serving import Served, serving

_USERS = count()


@pytest.fixture(scope="session", name="running")
def start_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service on loopback, without keys."""
    with serving(tmp_path_factory.mktemp("served") / "stores") as served:
        yield served


@pytest.fixture
def served(running: Served) -> Served:
    """The service, for a user that nobody else is."""
    return replace(running, user=f"user-{next(_USERS)}")
