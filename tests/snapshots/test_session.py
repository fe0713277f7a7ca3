"""A follow-up turn computes only what is new, and is bit for bit the turn of a process that never stopped."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv.errors import InputError
from livingkv.experts import RowSettings, load_streamed
from livingkv.snapshots import (
    Snapshots,
    SnapshotSession,
    assistant_header,
    cache_argument,
    fresh_cache,
    header_start,
    snapshot_key,
)
from tests.docs.modules import ROOT
from tests.snapshots.conftest import NetworkOf
from tests.tiny import tiny_tokenizer

RECURRENT = ("qwen3_next", "qwen4_exp_text", "deepseek_v4")
PROMPT = [5, 17, 80, 3, 44, 9, 61, 22, 5, 17, 80, 3, 31, 90]
NEXT = [8, 41, 77, 30, 2, 9, 12]
HEADER = [31, 90]
MARK = len(PROMPT) - len(HEADER)
N_REPLY = 6


def session_of(
    network: Any, folder: Path | None, *, ram_bytes: int = 1 << 24, piece_tokens: int | None = None
) -> SnapshotSession:
    fresh = fresh_cache(network)
    key = snapshot_key(network, "tiny", fresh)
    snapshots = Snapshots(folder, key, fresh, ram_bytes=ram_bytes, disk_bytes=1 << 24, device=network.device)
    return SnapshotSession(network, snapshots, fresh, piece_tokens=piece_tokens)


def first_turn(session: SnapshotSession) -> list[int]:
    turn = session.read(PROMPT, marks=[MARK])
    reply = list(turn.generate(N_REPLY))
    assert (turn.n_cached, turn.n_prefilled) == (0, len(PROMPT)) and turn.tokens == (*PROMPT, *reply[:-1])
    taken = turn.keep()
    assert taken.in_ram or taken.on_disk
    return reply


def second_turn(session: SnapshotSession, tokens: list[int]) -> tuple[int, torch.Tensor, list[int]]:
    turn = session.read(tokens, marks=[len(tokens) - 2])
    logits = turn.logits.clone()
    return turn.n_cached, logits, list(turn.generate(N_REPLY))


def uninterrupted(network: Any) -> tuple[list[int], torch.Tensor, list[int]]:
    """Both turns by plain calls of the network, with one cache that is never copied."""
    cache = fresh_cache(network)()

    def step(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            tokens, named = torch.tensor([ids], device=network.device), {cache_argument(network): cache}
            made = network(tokens, **named, use_cache=True, logits_to_keep=1)
        logits: torch.Tensor = made.logits[0, -1]
        return logits

    def reply(logits: torch.Tensor) -> list[int]:
        found = [int(logits.argmax())]
        while len(found) < N_REPLY:
            found.append(int(step(found[-1:]).argmax()))
        return found

    step(PROMPT[:MARK])
    first = reply(step(PROMPT[MARK:]))
    new = [*first[-1:], *NEXT]
    step(new[:-2])
    logits = step(new[-2:])
    return first, logits, reply(logits)


@pytest.mark.parametrize("family", RECURRENT)
@pytest.mark.parametrize("tier", ["ram", "disk"])
def test_a_follow_up_turn_is_the_uninterrupted_one(
    family: str, tier: str, network_of: NetworkOf, tmp_path: Path
) -> None:
    network = network_of(family)
    first, logits, second = uninterrupted(network)
    session = session_of(network, tmp_path, ram_bytes=0 if tier == "disk" else 1 << 24)
    assert first_turn(session) == first
    n_cached, ours, reply = second_turn(session, [*PROMPT, *first, *NEXT])
    assert n_cached == len(PROMPT) + N_REPLY - 1
    assert torch.equal(ours, logits) and reply == second


RESTART = """
import sys
from pathlib import Path
from tests.experts.tiny_moe import plain_network
from tests.snapshots.test_session import NEXT, PROMPT, second_turn, session_of
folder, states, *first = sys.argv[1:]
session = session_of(plain_network(Path(folder)), Path(states))
n_cached, logits, reply = second_turn(session, [*PROMPT, *map(int, first), *NEXT])
print(n_cached, logits.numpy().tobytes().hex(), *reply)
"""


@pytest.mark.slow
@pytest.mark.parametrize("family", RECURRENT)
def test_a_new_process_goes_on_as_if_it_had_never_stopped(
    family: str, network_of: NetworkOf, checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    first, logits, second = uninterrupted(network_of(family))
    assert first_turn(session_of(network_of(family), tmp_path)) == first
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    command = [sys.executable, "-c", RESTART, str(checkpoint_folder(family)), str(tmp_path), *map(str, first)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=ROOT)
    n_cached, raw, *reply = done.stdout.split()
    assert int(n_cached) == len(PROMPT) + N_REPLY - 1
    assert raw == logits.numpy().tobytes().hex() and [int(token) for token in reply] == second


def test_a_reply_that_was_changed_goes_on_from_its_header(network_of: NetworkOf, tmp_path: Path) -> None:
    """Templates strip what a model thought: the mark before the header is what both prompts have in common."""
    network = network_of("qwen3_next")
    first_turn(session_of(network, tmp_path))
    for ram_bytes in (1 << 24, 0):
        session = session_of(network, tmp_path, ram_bytes=ram_bytes)
        assert session.read([*PROMPT, 50, 51, *NEXT]).n_cached == MARK
        again = session.read(PROMPT)
        assert (again.n_cached, again.n_prefilled) == (MARK, 2)


def test_a_header_is_kept_where_ram_takes_nothing(network_of: NetworkOf, tmp_path: Path) -> None:
    network = network_of("qwen3_next")
    first_turn(session_of(network, tmp_path, ram_bytes=0))
    assert session_of(network, tmp_path).read([*PROMPT, 50, 51, *NEXT]).n_cached == MARK


@pytest.mark.parametrize("n_passes", [1, 4, 5])
def test_a_turn_that_is_forgotten_while_it_goes_on_leaves_nothing(
    n_passes: int, network_of: NetworkOf, tmp_path: Path
) -> None:
    network, passes = network_of("qwen3_next"), list[int]()
    fresh = fresh_cache(network)
    key = snapshot_key(network, "tiny", fresh)
    snapshots = Snapshots(tmp_path, key, fresh, ram_bytes=1 << 24, disk_bytes=1 << 24)

    def forget() -> None:
        passes.append(1)
        if len(passes) == n_passes:
            snapshots.forget("ann")

    session = SnapshotSession(network, snapshots, fresh, piece_tokens=4, before_pass=forget)
    turn = session.read(PROMPT, marks=[MARK], user="ann")
    list(turn.generate(3))
    assert "forgotten" in str(turn.keep().reason)
    assert list(tmp_path.iterdir()) == [] and snapshots.counts().ram_bytes == 0
    again = session.read(PROMPT, marks=[MARK], user="ann")
    assert again.keep().on_disk and len(list(tmp_path.iterdir())) == 2


@pytest.mark.slow
def test_streamed_experts_and_rows_go_on_from_snapshots(
    network_of: NetworkOf, checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    first, logits, second = uninterrupted(network_of("qwen4_exp_text"))
    folder = checkpoint_folder("qwen4_exp_text")
    for turn in (1, 2):
        with load_streamed(folder, ram_bytes=1 << 18, n_threads=1, rows=RowSettings(n_threads=2)) as streamed:
            session = session_of(streamed.network, tmp_path)
            if turn == 1:
                assert first_turn(session) == first
            else:
                n_cached, ours, reply = second_turn(session, [*PROMPT, *first, *NEXT])
                assert n_cached == len(PROMPT) + N_REPLY - 1 and torch.equal(ours, logits) and reply == second


def test_pieces_stops_and_turns_of_others(network_of: NetworkOf) -> None:
    network = network_of("qwen3_next")
    passes: list[int] = []
    fresh = fresh_cache(network)
    snapshots = Snapshots(None, snapshot_key(network, "tiny", fresh), fresh, ram_bytes=1 << 24, disk_bytes=0)
    session = SnapshotSession(network, snapshots, fresh, piece_tokens=4, before_pass=lambda: passes.append(1))
    turn = session.read(PROMPT, marks=[MARK, 0, 99])
    assert len(passes) == 4
    one = next(turn.generate(5))
    assert list(turn.generate(5, stop_ids=frozenset({one}))) == [one] and list(turn.generate(0)) == []
    assert not turn.keep().on_disk
    plain = network.generate(torch.tensor([PROMPT]), max_new_tokens=4, do_sample=False)[0, len(PROMPT) :].tolist()
    whole = SnapshotSession(network, snapshots, fresh).read(PROMPT, user="another")
    assert whole.n_cached == 0 and list(whole.generate(4, stop_ids=frozenset({1}))) == plain


def test_a_state_after_a_pass_that_failed_is_not_kept(network_of: NetworkOf, tmp_path: Path) -> None:
    network = network_of("qwen3_next")
    session = session_of(network, tmp_path)
    turn = session.read(PROMPT, marks=[MARK])
    reply = turn.generate(3)
    next(reply)

    def fail(module: Any, args: Any) -> None:
        raise ZeroDivisionError

    hook = network.model.layers[2].register_forward_pre_hook(fail)
    try:
        with pytest.raises(ZeroDivisionError):
            next(reply)
    finally:
        hook.remove()
    assert "within a pass" in str(turn.keep().reason)
    assert session_of(network, tmp_path).read([*PROMPT, 3]).n_cached == MARK


def test_headers_are_found_where_they_are() -> None:
    assert header_start([1, 2, 3, 1, 2, 4], [1, 2]) == 3
    assert header_start([1, 2], [3]) is None and header_start([1, 2], []) is None and header_start([], [1]) is None
    tokenizer = tiny_tokenizer()
    header = assistant_header(tokenizer)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert header and header_start(ids, header) == len(ids) - len(header)


def test_bad_arguments_are_named(network_of: NetworkOf) -> None:
    with pytest.raises(InputError, match="piece_tokens"):
        session_of(network_of("qwen3_next"), None, piece_tokens=0)
    with pytest.raises(InputError, match="tokens"):
        session_of(network_of("qwen3_next"), None).read([])
