"""Pinning through a runtime that is not there: what is asked of it, and what is said when it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Event
from types import SimpleNamespace

import pytest
import torch

from livingkv.tiers import pinning
from livingkv.tiers.arena import Arena


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    """What was asked of a runtime that pins at most 1 MiB."""
    asked: list[tuple[object, ...]] = []

    def register(address: int, n_bytes: int, flags: int) -> int:
        asked.append(("register", address, n_bytes, flags))
        return 0 if n_bytes <= 1 << 20 else 2

    def unregister(address: int) -> int:
        asked.append(("unregister", address))
        return 0

    runtime = SimpleNamespace(
        cudaHostRegister=register,
        cudaHostUnregister=unregister,
        cudaGetErrorString=lambda error: f"error {error}",
    )
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: asked.append(("synchronize",)))
    monkeypatch.setattr(pinning, "_forget_error", lambda: asked.append(("forget",)))
    return asked


def test_an_arena_is_pinned_from_its_first_page_until_it_is_closed(calls: list[tuple[object, ...]]) -> None:
    arena = Arena(4, 8192, pinning.pin_for_cuda)
    ((_, address, n_bytes, flags),) = calls
    assert isinstance(address, int) and address % 4096 == 0 and (n_bytes, flags) == (4 * 8192, 1)
    arena.view(3)[:4] = b"kept"
    arena.close()
    assert calls[1:] == [("synchronize",), ("unregister", address)]


def test_an_arena_that_is_pinned_in_the_background_is_used_meanwhile_and_closed_after() -> None:
    may_go_on, told = Event(), list[str]()

    def register(address: int, n_bytes: int) -> Callable[[], None]:
        assert may_go_on.wait(30)
        told.append("pinned")
        return lambda: told.append("unpinned")

    arena = Arena(4, 8192, register, in_background=True)
    arena.view(3)[:4] = b"kept"
    assert told == []
    may_go_on.set()
    arena.close()
    assert told == ["pinned", "unpinned"]


def test_memory_that_cannot_be_pinned_is_told_and_used(
    calls: list[tuple[object, ...]], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "livingkv.tiers"):
        arena = Arena(1025, 1024, pinning.pin_for_cuda)
    (record,) = caplog.records
    assert "cannot be pinned (error 2)" in record.message and "\n" not in record.message
    arena.view(0)[:4] = b"used"
    arena.close()
    assert [name for name, *_ in calls] == ["register", "forget"]
