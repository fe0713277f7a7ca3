"""Facts from the header of a GGUF file; what is cut or made up is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from livingkv.errors import ModelError
from livingkv.gguf_header import read_gguf_header
from livingkv.planner.facts import model_facts

Tensor = tuple[int, ...]
_DENSE = {"attn_k.weight": (32, 64), "attn_v.weight": (32, 64), "ffn_up.weight": (96, 64)}


def made(
    path: Path,
    architecture: str = "llama",
    layer: dict[str, Tensor] | None = None,
    fields: dict[str, Any] | None = None,
) -> Path:
    """Two layers with 2 KV heads of 16, an embedding and an output."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_token_list([b"word"] * 20_000)
    for name, value in (fields or {}).items():
        if isinstance(value, list):
            writer.add_array(f"{architecture}.{name}", value)
        else:
            writer.add_uint32(f"{architecture}.{name}", value)
    for name in ("token_embd.weight", "output.weight"):
        writer.add_tensor(name, np.zeros((100, 64), np.float16))
    for number in range(2):
        for name, shape in (layer or _DENSE).items():
            writer.add_tensor(f"blk.{number}.{name}", np.zeros(shape, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def numbers(path: Path) -> dict[str, float | None]:
    return {name: one.amount and one.amount.value for name, one in model_facts(str(path)).facts.items()}  # type: ignore[misc]


def test_a_dense_model(tmp_path: Path) -> None:
    path = made(tmp_path / "dense.gguf")
    found, total = numbers(path), 2 * 6400 + 2 * (2 * 32 * 64 + 96 * 64)
    assert found["parameters"] == total and found["active_parameters"] == total - 6400
    assert found["reading_parameters"] == total - 2 * 6400
    assert found["kv_elements"] == 2 * 64 and found["weight_bits"] == 16 and found["native_context"] == 256
    assert (found["experts"], found["sliding_window"], found["state_bytes"]) == (0, 0, 0)
    assert model_facts(str(path)).page_bits is not None


def test_the_same_as_the_gguf_package_reads(tmp_path: Path) -> None:
    path = made(tmp_path / "dense.gguf", fields={"some.list": [1, 2, 3]})
    header, reader = read_gguf_header(path), gguf.GGUFReader(path)
    assert {name: (one.n_elements, one.n_bytes) for name, one in header.tensors.items()} == {
        one.name: (int(one.n_elements), int(one.n_bytes)) for one in reader.tensors
    }
    small = {
        name: field.contents() for name, field in reader.fields.items() if "tokens" not in name and name[:4] != "GGUF"
    }
    assert {name: header.metadata[name] for name in small} == small


def test_experts_windows_states_and_latents(tmp_path: Path) -> None:
    experts = {**_DENSE, "ffn_up_exps.weight": (8, 16, 64), "ffn_gate_exps.weight": (8, 16, 64)}
    found = numbers(made(tmp_path / "moe.gguf", layer=experts, fields={"expert_count": 8, "expert_used_count": 2}))
    assert (found["moe_layers"], found["experts"], found["expert_bytes"]) == (2, 8, 2 * 16 * 64 * 2)
    window = numbers(made(tmp_path / "w.gguf", fields={"attention.sliding_window": 8}))
    assert (window["kv_elements"], window["bounded_elements"], window["sliding_window"]) == (0, 128, 8)
    pattern = {"attention.sliding_window": 8, "attention.sliding_window_pattern": [1, 0]}
    mixed = numbers(made(tmp_path / "p.gguf", "gemma3", fields=pattern))
    assert (mixed["kv_elements"], mixed["bounded_elements"]) == (64, 64)
    unsaid = numbers(made(tmp_path / "u.gguf", "gemma3", fields={"attention.sliding_window": 8}))
    assert unsaid["kv_elements"] is None and unsaid["bounded_elements"] is None
    ranks = {"attention.kv_lora_rank": 32, "rope.dimension_count": 8}
    latent = numbers(made(tmp_path / "l.gguf", "deepseek2", {"attn_kv_a_mqa.weight": (40, 64)}, ranks))
    assert latent["kv_elements"] == 2 * 40
    shared = {**pattern, "attention.shared_kv_layers": 1}
    once = numbers(made(tmp_path / "shared.gguf", "gemma3n", fields=shared))
    assert (once["kv_elements"], once["bounded_elements"]) == (0, 64)
    assert numbers(made(tmp_path / "unsaid.gguf", "gemma3n", fields=pattern))["kv_elements"] is None
    state = numbers(made(tmp_path / "s.gguf", "mamba", {"ssm_conv1d.weight": (4, 64)}))
    assert state["kv_elements"] == 0 and state["state_bytes"] is None


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    data = made(tmp_path / "whole.gguf").read_bytes()
    for n_bytes in (0, 3, 4, 20, 300, 5000):
        (tmp_path / "cut.gguf").write_bytes(data[:n_bytes])
        with pytest.raises(ModelError):
            model_facts(str(tmp_path / "cut.gguf"))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 700), byte=st.integers(0, 255), tail=st.binary(max_size=20))
def test_no_bytes_bring_a_traceback(tmp_path: Path, at: int, byte: int, tail: bytes) -> None:
    path = tmp_path / "whole.gguf"
    data = bytearray((path if path.exists() else made(path)).read_bytes()[:900] + tail)
    data[at] = byte
    (tmp_path / "odd.gguf").write_bytes(data)
    try:
        model_facts(str(tmp_path / "odd.gguf"))
    except ModelError as error:
        assert "\n" not in str(error)
