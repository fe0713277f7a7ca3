"""Experts stored as codes and scales: the same answers as the network of their numbers, to the last bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, FineGrainedFP8Config, Mxfp4Config

from livingkv.experts import load_streamed
from livingkv.model_loading import quiet
from tests.experts.coded_moe import Coded, write_coded
from tests.experts.test_equal import LAP, N_LAYERS, answers
from tests.experts.tiny_moe import N_EXPERTS, plain_network

BIG: dict[str, Any] = {"hidden_size": 256, "moe_intermediate_size": 128, "intermediate_size": 128}
EVEN: dict[str, Any] = {"hidden_size": 64, "moe_intermediate_size": 32, "intermediate_size": 32}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "fp8": ("fp8", "qwen3_moe", BIG),
    "fp8, cut blocks": ("fp8", "mixtral", BIG | {"intermediate_size": 160}),
    "mxfp4": ("mxfp4", "gpt_oss", EVEN),
    "mxfp4 in rows": ("fp4 rows", "qwen3_moe", EVEN),
    "mxfp4 in rows, other names": ("fp4 rows", "mixtral", EVEN),
    "mxfp4 in rows, hashed routes": ("fp4 rows", "deepseek_v4", {"hidden_size": 64, "moe_intermediate_size": 32}),
    "nvfp4 of modelopt": ("modelopt", "qwen3_moe", EVEN),
    "nvfp4 of modelopt, recurrent": ("modelopt", "qwen3_next", EVEN),
    "nvfp4 of modelopt, n-grams": ("modelopt", "qwen4_exp_text", {"hidden_size": 64, "moe_intermediate_size": 32}),
    "nvfp4 of compressed-tensors": ("compressed", "qwen2_moe", EVEN),
}

CodedOf = Callable[[str, torch.dtype], Coded]
pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")


@pytest.fixture(scope="module")
def coded_of(tmp_path_factory: pytest.TempPathFactory) -> CodedOf:
    """Checkpoints by case, each made once."""
    made: dict[tuple[str, torch.dtype], Coded] = {}

    def find(case: str, dtype: torch.dtype) -> Coded:
        if (case, dtype) not in made:
            kind, family, changes = CASES[case]
            made[case, dtype] = write_coded(kind, family, tmp_path_factory.mktemp("coded"), dtype=dtype, **changes)
        return made[case, dtype]

    return find


def reference(plain: Path, coded: Path, dtype: torch.dtype) -> tuple[Any, int]:
    """The network of the plain numbers, and the bytes of a row. Its weights lie at the addresses modulo 64 that
    they have in the streamed one.

    Sums of fp32 products depend on that (docs/decisions/0020), and the headers of the two files differ in length.
    """
    network = plain_network(plain, dtype)
    with load_streamed(coded, ram_bytes=1 << 30, dtype=dtype) as streamed:
        for name, held in streamed.network.named_parameters():
            own = network.get_parameter(name)
            room = torch.empty(own.nbytes + 64, dtype=torch.uint8)
            start = (held.data_ptr() - room.data_ptr()) % 64
            own.data = room[start : start + own.nbytes].view(own.dtype).view(own.shape).copy_(own)
        return network, streamed.index.row_bytes


def same(folder: Path, expected: list[torch.Tensor], ram_bytes: int, dtype: torch.dtype) -> int:
    """Stream a checkpoint with so much RAM, and compare. The number of experts there is room for."""
    with load_streamed(folder, ram_bytes=ram_bytes, n_threads=2, piece_bytes=4096, dtype=dtype) as streamed:
        found = answers(streamed.network)
        assert [torch.equal(a, b) for a, b in zip(expected, found, strict=True)] == [True] * len(expected)
        assert streamed.check() == []
        return streamed.arena.n_rows


FAST = {("mxfp4", "fp32", 1), ("mxfp4 in rows", "bf16", LAP + 4), ("nvfp4 of modelopt", "fp32", LAP + 4)}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize(
    ("case", "type_name", "n_rows"),
    [
        pytest.param(case, name, n_rows, marks=() if (case, name, n_rows) in FAST else pytest.mark.slow)
        for case in CASES
        for name in TYPES
        for n_rows in (1, LAP + 4, N_LAYERS * N_EXPERTS)
        if (case, name) != ("mxfp4 in rows, hashed routes", "bf16")  # transformers 5.17 cannot run the plain network
    ],
)
def test_equal_to_the_network_of_the_same_numbers(coded_of: CodedOf, case: str, type_name: str, n_rows: int) -> None:
    dtype = TYPES[type_name]
    coded = coded_of(case, dtype)
    network, row_bytes = reference(coded.plain, coded.folder, dtype)
    expected = answers(network)
    assert same(coded.folder, expected, n_rows * row_bytes + 2 * 4096, dtype) == n_rows


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES.values(), ids=TYPES)
@pytest.mark.parametrize(
    ("case", "settings"),
    [("fp8", FineGrainedFP8Config(dequantize=True)), ("mxfp4", Mxfp4Config(dequantize=True))],
    ids=["fp8", "mxfp4"],
)
def test_equal_to_what_transformers_dequantizes(
    coded_of: CodedOf, case: str, settings: Any, dtype: torch.dtype
) -> None:
    coded = coded_of(case, dtype)
    with quiet():
        network = AutoModelForCausalLM.from_pretrained(
            coded.folder, dtype=dtype, experts_implementation="eager", quantization_config=settings
        ).eval()
    if network.get_parameter("model.layers.0.mlp.experts.down_proj").dtype != dtype:
        pytest.skip("this transformers decodes to bf16 whatever it is asked for")  # 5.17, MXFP4
    same(coded.folder, answers(network), 1 << 30, dtype)
