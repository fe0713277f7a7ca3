"""May a whole session be read again, or attended by mode exact, for a question about all of it? What speaks against it.

Knows the model's context, stored pages and the clock; what it needs to know of this machine's speed it measures: one
pass over one token, and one block of one layer decoded.
"""

from __future__ import annotations

from contextlib import closing
from time import perf_counter

import torch

from livingkv.codec import page_bytes
from livingkv.engine import Engine
from livingkv.hot_window import window_start
from livingkv.settings import PAGE_TOKENS, LookBack, Settings
from livingkv.store import SessionRow
from livingkv.stored_kv import StoredKV
from livingkv.workspace import AttentionState


def against_exact(
    engine: Engine,
    kv: StoredKV,
    session: SessionRow,
    scratch: AttentionState,
    settings: Settings,
    n_asked: int,
    *,
    n_passes: int,
) -> str | None:
    """Why a session should not be attended whole for `n_asked` tokens of question and answer, read in `n_passes`; None
    where it may be.

    `scratch`: a state with room for one token, which is read into it. Raises RecordDamaged where KV is damaged.
    """
    if session.text_only:
        return f"session {session.name!r} keeps no KV"
    context = engine.model.shape.native_context
    if engine.model.dual_chunk is None and session.n_tokens + n_asked > context:
        return f"{session.n_tokens:,} tokens are more than the {context:,} that the model tells apart"
    if settings.exact_limit_s == 0:
        return "settings.exact_limit_s is 0"
    seconds = exact_seconds(engine, kv, session, scratch, settings, n_passes)
    if seconds <= settings.exact_limit_s:
        return None
    return f"it would take up to {seconds:,.0f} s here, settings.exact_limit_s allows {settings.exact_limit_s:g}"


def against_reading(engine: Engine, session: SessionRow, settings: Settings, n_asked: int) -> str | None:
    """Why a session's whole text should not be read again for `n_asked` tokens of question and answer; None where it
    may be. Its time is what reading took so far for so many tokens."""
    context = engine.model.shape.native_context
    if session.n_tokens + n_asked > context:
        return f"{session.n_tokens:,} tokens are more than the {context:,} that the model was trained on"
    speed = engine.runner.tokens_per_s
    if speed is None:
        return "nothing was read yet that tells how long it would take"
    seconds = session.n_tokens / speed
    if seconds <= settings.exact_limit_s:
        return None
    return f"it would take about {seconds:,.0f} s here, settings.exact_limit_s allows {settings.exact_limit_s:g}"


def exact_seconds(
    engine: Engine, kv: StoredKV, session: SessionRow, scratch: AttentionState, settings: Settings, n_passes: int
) -> float:
    """About how long so many passes of mode exact take here at most: each runs the network, and decodes what is older
    than the window in every layer. Reading from disk counts once where RAM holds the pages, else in every layer."""
    started = perf_counter()
    engine.runner.read(torch.tensor([0], device=engine.model.device), scratch)
    _wait(engine.model.device)
    pass_s = perf_counter() - started
    n_cold = window_start(session.n_tokens, LookBack(settings.window_tokens))
    if n_cold == 0:
        return n_passes * pass_s
    n_layers, n_pages = engine.model.shape.n_layers, n_cold // PAGE_TOKENS
    layer_s = _block_s(engine, kv, session, n_cold)
    disk_s = kv.seconds_for(session, range(n_pages)) or 0.0
    in_ram = n_pages * page_bytes(engine.codec.name, engine.shape) <= settings.ram_budget_bytes
    return n_passes * (pass_s + n_layers * layer_s) + disk_s * (1 if in_ram else n_passes * n_layers)


def _block_s(engine: Engine, kv: StoredKV, session: SessionRow, n_cold: int) -> float:
    """Decoding all cold pages of one layer: the first block is timed once its pages are in RAM."""
    seconds, n_tokens = 0.0, PAGE_TOKENS
    for _ in range(2):
        started = perf_counter()
        with closing(kv.cold(session, n_cold).layer(0)) as blocks:
            n_tokens = next(blocks)[1].keys.shape[-2]
        _wait(engine.model.device)
        seconds = perf_counter() - started
    return seconds * n_cold / n_tokens


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
