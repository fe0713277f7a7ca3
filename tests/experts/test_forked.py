"""A forked process is told at once that it cannot use a model, and leaves the other's alone."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

import pytest
import torch

from livingkv.errors import ModelError
from livingkv.experts import EmulatedSource, StreamedModel, load_streamed
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.index import ExpertIndex
from livingkv.experts.pread_source import PreadSource
from tests.experts.conftest import MadeOf

IDS = torch.tensor([[5, 17, 80, 3, 44, 9]])
OTHERS = torch.tensor([[50, 7, 8, 33, 64, 90, 2, 11]])


def forked(work: Callable[[], object]) -> int:
    """What a forked process that does this ends with: 0 where it does it; 9 where it hangs."""
    pid = os.fork()
    if not pid:
        signal.alarm(5)
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return 9 if os.WIFSIGNALED(status) else os.waitstatus_to_exitcode(status)


def refused(work: Callable[[], object], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        work()


def emulated(index: ExpertIndex) -> EmulatedSource:
    files = CheckpointFiles(index.checkpoint, direct=True)
    return EmulatedSource(PreadSource(index, files, 2, 4096), index, 1e9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("family", ["qwen3_moe", "qwen4_exp_text"])
@pytest.mark.parametrize("is_emulated", [False, True])
def test_a_forked_process_is_told_at_once(checkpoint_of: MadeOf, family: str, is_emulated: bool) -> None:
    folder = checkpoint_of(family)

    def load() -> StreamedModel:
        return load_streamed(folder, ram_bytes=150_000, source=emulated if is_emulated else "direct", piece_bytes=4096)

    with load() as streamed, torch.no_grad():
        before = streamed.network(IDS).logits
        row = memoryview(bytearray(streamed.index.row_bytes))
        key = next(streamed.index.experts())
        for work, words in (
            (lambda: streamed.network(OTHERS), "loaded before this process was forked: start it as a new process"),
            (lambda: streamed.stream.source.read(key, row), "loaded before this process was forked"),
            (load, "forked from one with livingkv in it"),
        ):
            assert forked(lambda work=work, words=words: refused(work, words)) == 0  # type: ignore[misc]
        assert forked(streamed.close) == 0
        assert torch.equal(streamed.network(IDS).logits, before) and streamed.check() == []
