"""What comes with a streamed network: tokenizer, generation config, counts; and what it does not hold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from livingkv.errors import InputError
from livingkv.experts import load_streamed
from livingkv.experts.skeleton import is_experts
from tests.experts.conftest import MadeOf
from tests.experts.tiny_moe import plain_network
from tests.tiny import tiny_tokenizer


def test_tokenizer_and_generation_config_come_from_the_folder(checkpoint_of: MadeOf, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(checkpoint_of("qwen3_moe"), folder)
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        assert streamed.tokenizer is None
    tiny_tokenizer().save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [3, 17], "max_new_tokens": 5}))
    with load_streamed(str(folder), ram_bytes=1 << 20) as streamed:
        assert streamed.tokenizer("a b")["input_ids"] == tiny_tokenizer()("a b")["input_ids"]
        assert streamed.network.generation_config.eos_token_id == [3, 17]


def test_the_network_holds_everything_but_experts(checkpoint_of: MadeOf) -> None:
    folder = checkpoint_of("qwen2_moe")
    plain = dict(plain_network(folder).named_parameters())
    with load_streamed(folder, ram_bytes=1 << 20) as streamed:
        held = dict(streamed.network.named_parameters())
        assert {name for name in plain if name not in held} == {
            f"model.layers.{layer}.mlp.experts.{part}" for layer in range(3) for part in ("gate_up_proj", "down_proj")
        }
        assert all(torch.equal(held[name], plain[name]) and not held[name].requires_grad for name in held)
        assert not streamed.network.training
        assert not any(list(module.parameters()) for module in streamed.network.modules() if is_experts(module))


def test_ram_is_never_more_than_what_all_experts_take(checkpoint_of: MadeOf) -> None:
    with load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 40) as streamed:
        assert streamed.arena.size_bytes == 24 * streamed.index.row_bytes == 24 * 8192
    with load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=100_000, n_threads=2, piece_bytes=4096) as streamed:
        used = streamed.arena.size_bytes + streamed.stream.source.buffer_bytes
        assert 100_000 - 8192 < used <= 100_000


def test_other_devices_are_refused(checkpoint_of: MadeOf) -> None:
    with pytest.raises(InputError, match="device: got meta; cpu and cuda are allowed"):
        load_streamed(checkpoint_of("qwen3_moe"), ram_bytes=1 << 20, device="meta")
