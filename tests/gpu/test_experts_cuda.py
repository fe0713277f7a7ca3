"""Streamed experts on a CUDA device: every bit of what transformers' eager code computes on the same device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from livingkv.experts import RowSettings, load_streamed
from livingkv.snapshots import cache_argument
from tests.experts.conftest import MadeOf, index_of
from tests.experts.test_coded_equal import CASES, TYPES, CodedOf
from tests.experts.test_equal import LAP, N_LAYERS, READ_AHEAD, ROWS, answers, budget
from tests.experts.test_ngram_rows import IDS
from tests.experts.tiny_moe import FAMILIES, N_EXPERTS, make_checkpoint, plain_network
from tests.snapshots.test_session import (
    N_REPLY,
    NEXT,
    PROMPT,
    RECURRENT,
    first_turn,
    second_turn,
    session_of,
    uninterrupted,
)

DEVICE = torch.device("cuda")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*[Dd]eterminis"),
]


@pytest.fixture(autouse=True)
def same_sums(request: pytest.FixtureRequest) -> Iterator[None]:
    """Where a token may choose an expert twice, eager code adds to one number twice at once, in any order."""
    given = getattr(getattr(request.node, "callspec", None), "params", {})
    is_hashed = "deepseek_v4" in (given.get("family"), CASES.get(given.get("case", ""), ("", ""))[1])
    torch.use_deterministic_algorithms(is_hashed, warn_only=True)
    torch.backends.cuda.enable_cudnn_sdp(False)  # as load_streamed does
    yield
    torch.use_deterministic_algorithms(False)


def on_device(folder: Path, dtype: torch.dtype = torch.float32) -> Any:
    """transformers' own network with its eager experts."""
    return plain_network(folder, dtype).to(DEVICE)


def agree(expected: list[torch.Tensor], found: list[torch.Tensor]) -> bool:
    """Whether all answers are equal, and come from where they should."""
    assert all(one.device.type == DEVICE.type for one in found)
    return [torch.equal(a, b) for a, b in zip(expected, found, strict=True)] == [True] * len(expected)


@pytest.fixture(scope="module")
def eager_of(checkpoint_of: MadeOf) -> Callable[[str], list[torch.Tensor]]:
    """What a family's plain network answers on the device, made once; it must be able to say it again."""
    made: dict[str, list[torch.Tensor]] = {}

    def find(family: str) -> list[torch.Tensor]:
        if family not in made:
            network = on_device(checkpoint_of(family))
            made[family] = answers(network)
            assert agree(made[family], answers(network)), "transformers answers otherwise the second time"
        return made[family]

    return find


@pytest.mark.parametrize("n_threads", [1, 4])
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("family", FAMILIES)
def test_equal_to_eager(
    checkpoint_of: MadeOf, eager_of: Callable[[str], list[torch.Tensor]], family: str, name: str, n_threads: int
) -> None:
    """Prompt, single tokens, a batch and a generation, with and without reading ahead."""
    folder, expected = checkpoint_of(family), eager_of(family)
    ram_bytes = budget(index_of(folder, "cuda").row_bytes, ROWS[name], n_threads)
    for read_ahead in READ_AHEAD:
        with load_streamed(
            folder, ram_bytes=ram_bytes, n_threads=n_threads, piece_bytes=4096, device=DEVICE, read_ahead=read_ahead
        ) as streamed:
            assert agree(expected, answers(streamed.network)) and streamed.check() == []
            counts = streamed.counts()
        assert name != "all" or counts.source.n_experts <= N_LAYERS * N_EXPERTS
        assert name != "none" or counts.n_hits == 0
        assert (counts.ahead.n_used > 0) == (read_ahead == "on" and name != "none")


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "gpt_oss"])
def test_equal_in_bf16(checkpoint_of: MadeOf, family: str) -> None:
    folder = checkpoint_of(family, torch.bfloat16)
    expected = answers(on_device(folder, torch.bfloat16))
    with load_streamed(folder, ram_bytes=1 << 16, n_threads=2, piece_bytes=4096, device=DEVICE) as streamed:
        assert streamed.network.dtype == torch.bfloat16 and agree(expected, answers(streamed.network))


@pytest.mark.parametrize("type_name", TYPES)
@pytest.mark.parametrize("case", CASES)
def test_equal_to_the_network_of_the_same_numbers(coded_of: CodedOf, case: str, type_name: str) -> None:
    """fp8, mxfp4 and nvfp4, decoded on the device."""
    if (case, type_name) == ("mxfp4 in rows, hashed routes", "bf16"):
        pytest.skip("transformers 5.17 cannot run the plain network")
    dtype = TYPES[type_name]
    coded = coded_of(case, dtype)
    expected = answers(on_device(coded.plain, dtype))
    row_bytes = index_of(coded.folder, "cuda").row_bytes
    ram_bytes = budget(row_bytes, LAP + 4, 2)
    with load_streamed(
        coded.folder, ram_bytes=ram_bytes, n_threads=2, piece_bytes=4096, dtype=dtype, device=DEVICE, products="exact"
    ) as streamed:
        assert agree(expected, answers(streamed.network)) and streamed.check() == []


def test_rows_of_tables_are_those_of_transformers(tmp_path: Path) -> None:
    folder = make_checkpoint("qwen4_exp_text", tmp_path, ple_layer_ids=[1, 3], split_ngram_parts=12)
    plain, ids = on_device(folder), IDS.to(DEVICE)
    name = cache_argument(plain)
    rows = RowSettings(n_threads=4, parity=True)
    with load_streamed(folder, ram_bytes=1 << 20, device=DEVICE, rows=rows) as streamed, torch.no_grad():
        assert torch.equal(streamed.network(ids).logits, plain(ids).logits)
        ours, theirs = streamed.network(ids[:, :5], use_cache=True), plain(ids[:, :5], use_cache=True)
        for position in range(5, ids.shape[1]):
            token = ids[:, position : position + 1]
            ours = streamed.network(token, **{name: ours[name]}, use_cache=True)
            theirs = plain(token, **{name: theirs[name]}, use_cache=True)
            assert torch.equal(ours.logits, theirs.logits)
        assert streamed.tables is not None
        counts = list(streamed.tables.counts().values())
    assert all(count.n_stages == 9 and count.n_compared > 0 and count.n_different == 0 for count in counts)


@pytest.mark.parametrize("tier", ["ram", "disk"])
@pytest.mark.parametrize("family", RECURRENT)
def test_a_follow_up_turn_is_the_uninterrupted_one(
    family: str, tier: str, checkpoint_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """States leave the device and come back, into another network that is streamed, too."""
    folder = checkpoint_folder(family)
    first, logits, second = uninterrupted(on_device(folder))
    session = session_of(on_device(folder), tmp_path, ram_bytes=0 if tier == "disk" else 1 << 24)
    assert first_turn(session) == first
    n_cached, ours, reply = second_turn(session, [*PROMPT, *first, *NEXT])
    assert n_cached == len(PROMPT) + N_REPLY - 1
    assert torch.equal(ours, logits) and reply == second
    with load_streamed(folder, ram_bytes=1 << 18, device=DEVICE) as streamed:
        for turn in (1, 2):
            again = session_of(streamed.network, tmp_path / "streamed", ram_bytes=0)
            if turn == 1:
                assert first_turn(again) == first
                continue
            n_cached, ours, reply = second_turn(again, [*PROMPT, *first, *NEXT])
            assert n_cached == len(PROMPT) + N_REPLY - 1 and torch.equal(ours, logits) and reply == second
