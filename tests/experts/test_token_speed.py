"""The share of the drive's limit that tokens reach."""

from __future__ import annotations

import pytest

from livingkv.experts.checkpoint import read_checkpoint
from livingkv.experts.loading import load_streamed
from livingkv.experts.token_speed import drive_speeds, eta, token_speed
from tests.experts.conftest import MadeOf


def test_reads_are_no_longer_than_files(checkpoint_of: MadeOf) -> None:
    checkpoint = read_checkpoint(checkpoint_of("qwen3_moe"))
    longest = max(file.mark.size_bytes for file in checkpoint.files)
    small, whole = (
        drive_speeds(checkpoint, sizes=sizes, depths=(2,), seconds_each=0.02) for sizes in ((8192, 1 << 30), (1 << 30,))
    )
    assert [speed.read_bytes for speed in small] == [8192] and small[0].bytes_per_s > 0
    assert [speed.read_bytes for speed in whole] == [longest - longest % 4096]


def test_eta_is_the_share_of_the_limit() -> None:
    assert eta(50, 100.0, 1.0) == 0.5
    assert eta(0, 100.0, 1.0) == 0.0
    assert eta(50, None, 1.0) is None and eta(50, 100.0, 0.0) is None


def test_tokens_are_counted_behind_the_prompt(checkpoint_of: MadeOf) -> None:
    with load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=150_000) as model:
        speed = token_speed(model, 6)
        counts = model.counts()
    assert speed.n_tokens == 6 and speed.n_hits + speed.n_misses == 6 * 3 * 2  # tokens, layers, experts of each
    assert 0 < speed.n_bytes < counts.source.n_bytes and speed.n_misses < counts.n_misses
    assert speed.tokens_per_s == pytest.approx(6 / speed.seconds) and 0 <= speed.hit_rate < 1
    assert counts.n_tokens == 3 * (speed.prompt_tokens + 4 + 6)  # 4 are not counted; the last one is not read
