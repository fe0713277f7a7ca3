"""The memory settings of a service: those of any memory, on a CPU with blocks small enough to be cancelled between two.

Knows settings only.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from livingkv.settings import Settings

_CPU_BLOCK = 64
"""A block is what a cancelled request still costs: about half a second on a CPU with half a billion weights."""
_CPU_COMMIT = 512
"""Between two commits of an ingest: what one that is given up or killed loses, some seconds on such a CPU."""


def cancellable_settings(settings: Settings, device: torch.device, *, streamed: bool = False) -> Settings:
    """The same for a model on that device: off a GPU, blocks that nobody chose are small. Not where experts are
    streamed: a small block would read as many of them from disk as a large one."""
    if device.type == "cuda" or streamed:
        return settings
    settings = replace(settings, commit_tokens=min(settings.commit_tokens, _CPU_COMMIT))
    return settings if settings.block_tokens is not None else replace(settings, block_tokens=_CPU_BLOCK)
