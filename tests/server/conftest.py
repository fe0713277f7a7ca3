"""A service that runs, shared by the tests that need no other; each asks for a user of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from tests.in_memory import folder_in_memory
from tests.in_memory import tmp_path as tmp_path
from tests.server.serving import Served, serving, tiny_model

_USERS = count()


@pytest.fixture(scope="session", name="running")
def start_once() -> Iterator[Served]:
    """A service on loopback, without keys."""
    with folder_in_memory() as folder, serving(folder / "stores", tiny_model()) as served:
        yield served


@pytest.fixture
def served(running: Served) -> Served:
    """The service, for a user that nobody else is."""
    return replace(running, user=f"user-{next(_USERS)}")
