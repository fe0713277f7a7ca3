"""What tests of several folders share."""

from __future__ import annotations

import atexit
import gc
import os
from pathlib import Path

import psutil
import pytest

_WORKER_BYTES = 5_000_000_000
"""What a process with the real default model takes at most, in fp32 beside bf16."""


def pytest_xdist_auto_num_workers() -> int:
    """For pytest-xdist's `-n auto`: as many processes as cores and memory carry, the cores shared among them."""
    n_cores = len(os.sched_getaffinity(0))
    n_workers = max(1, min(n_cores, int(psutil.virtual_memory().total) // _WORKER_BYTES, 8))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, n_cores // n_workers)))  # what workers start inherits it, too
    return n_workers


def pytest_configure() -> None:
    """Nothing that is imported for the tests is garbage: looking for some takes seconds."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is there now stays to the end, and is not looked through again and again."""
    gc.freeze()
    atexit.register(gc.unfreeze)
    gc.enable()


@pytest.fixture(autouse=True)
def same_random_numbers() -> None:
    """Each test draws the same numbers, whatever ran before it and in whichever process."""
    import torch  # not above: pytest-xdist's first process needs none, and would make the others wait for it

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Qwen2 as a model folder, for tests that go through the command line or another process."""
    from tests.tiny import tiny_network, tiny_tokenizer

    folder = tmp_path_factory.mktemp("models") / "tiny-qwen2"
    tiny_network("qwen2").save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder
