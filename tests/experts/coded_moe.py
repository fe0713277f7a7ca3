"""Tiny checkpoints written in the formats of codes and scales, and what their weights are in plain numbers.

The plain numbers are computed here with numpy, from tables, so that they share no code with what is tested.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.experts.tiny_moe import make_checkpoint

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

Written = dict[str, Tensor]
Coder = Callable[[str, Tensor], tuple[Written, Tensor]]
"""A matrix of that name to what is stored of it, and the fp32 numbers that this means."""


@dataclass(frozen=True)
class Coded:
    """A checkpoint in some format, and one of the same numbers without any."""

    folder: Path
    plain: Path


def grouped(weight: Tensor, group: int) -> NDArray[np.float32]:
    """[out, in] to [out, groups, group]."""
    out, into = weight.shape
    return weight.float().numpy().reshape(out, into // group, group)


def nearest_codes(values: NDArray[np.float32]) -> NDArray[np.uint8]:
    codes: NDArray[np.uint8] = np.abs(values[..., None] - E2M1).argmin(-1).astype(np.uint8)
    return codes


def packed(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def fp8(name: str, weight: Tensor) -> tuple[Written, Tensor]:
    """DeepSeek-V3's blocks of 128 x 128."""
    out, into = weight.shape
    scales = torch.empty(-(-out // 128), -(-into // 128))
    codes = torch.empty(out, into, dtype=torch.float8_e4m3fn)
    plain = torch.empty(out, into)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            at = (slice(i * 128, i * 128 + 128), slice(j * 128, j * 128 + 128))
            scales[i, j] = weight[at].float().abs().max() / 448
            codes[at] = (weight[at].float() / scales[i, j]).to(torch.float8_e4m3fn)
            plain[at] = codes[at].float() * scales[i, j]
    return {name: codes, f"{name}_scale_inv": scales}, plain


def _mx(weight: Tensor) -> tuple[NDArray[np.uint8], NDArray[np.uint8], Tensor]:
    groups = grouped(weight, 32)
    exponents = np.floor(np.log2(np.abs(groups).max(-1))).astype(np.int64) - 2
    codes = nearest_codes(np.ldexp(groups, -exponents[..., None]))
    plain = np.ldexp(E2M1[codes], exponents[..., None]).reshape(weight.shape)
    return packed(codes), (exponents + 127).astype(np.uint8), torch.from_numpy(plain)


def mx_rows(name: str, weight: Tensor) -> tuple[Written, Tensor]:
    """DeepSeek-V4's experts."""
    codes, scales, plain = _mx(weight)
    base = name.removesuffix(".weight")
    return {
        name: torch.from_numpy(codes).view(weight.shape[0], -1).view(torch.int8),
        f"{base}.scale": torch.from_numpy(scales).view(torch.float8_e8m0fnu),
    }, plain


def mx_blocks(name: str, weight: Tensor) -> tuple[Written, Tensor]:
    """gpt_oss: the experts of a layer in one tensor, [experts, in, out] in the network, [experts, out, in] on disk."""
    made = [_mx(one.t().contiguous()) for one in weight]
    return {
        f"{name}_blocks": torch.from_numpy(np.stack([codes for codes, _, _ in made])),
        f"{name}_scales": torch.from_numpy(np.stack([scales for _, scales, _ in made])),
    }, torch.stack([plain.t() for _, _, plain in made]).contiguous()


def _nv(weight: Tensor) -> tuple[Tensor, Tensor, np.float32]:
    groups = grouped(weight, 16)
    whole = np.float32(np.abs(groups).max() / (448 * 6))
    scales = torch.from_numpy(np.abs(groups).max(-1) / 6 / whole).to(torch.float8_e4m3fn)
    steps = scales.float().numpy()[..., None] * whole
    return torch.from_numpy(packed(nearest_codes(groups / steps))).view(weight.shape[0], -1), scales, whole


def _nv_plain(codes: Tensor, steps: NDArray[np.float32]) -> Tensor:
    halves = np.stack((codes.numpy() & 15, codes.numpy() >> 4), -1).reshape(*steps.shape, 16)
    return torch.from_numpy((E2M1[halves] * steps[..., None]).reshape(codes.shape[0], -1))


def modelopt(name: str, weight: Tensor) -> tuple[Written, Tensor]:
    """Six tensors for an expert's matrix with the unused scale of its input, as modelopt writes them."""
    codes, scales, whole = _nv(weight)
    base = name.removesuffix(".weight")
    return {
        name: codes,
        f"{base}.weight_scale": scales,
        f"{base}.weight_scale_2": torch.tensor(whole),
        f"{base}.input_scale": torch.tensor(0.01),
    }, _nv_plain(codes, scales.float().numpy() * whole)


def compressed(name: str, weight: Tensor) -> tuple[Written, Tensor]:
    """As compressed-tensors writes them."""
    codes, scales, whole = _nv(weight)
    divisor = np.float32(1) / whole
    base = name.removesuffix(".weight")
    return {
        f"{base}.weight_packed": codes,
        f"{base}.weight_scale": scales,
        f"{base}.weight_global_scale": torch.tensor([divisor]),
        f"{base}.input_global_scale": torch.tensor([3.0]),
    }, _nv_plain(codes, (scales.float().numpy() / divisor).astype(np.float32))


_NV_WEIGHTS = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "symmetric": True}
CONFIGS: dict[str, dict[str, Any]] = {
    "fp8": {"quant_method": "fp8", "weight_block_size": [128, 128], "fmt": "e4m3", "activation_scheme": "dynamic"},
    "mxfp4": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]},
    "modelopt": {"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]},
    "compressed": {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": _NV_WEIGHTS, "format": "nvfp4-pack-quantized"}},
    },
}
CONFIGS["fp4 rows"] = CONFIGS["fp8"] | {"scale_fmt": "ue8m0", "expert_dtype": "fp4"}
CODERS: dict[str, Coder] = {
    "fp8": fp8,
    "mxfp4": mx_blocks,
    "fp4 rows": mx_rows,
    "modelopt": modelopt,
    "compressed": compressed,
}


def write_coded(kind: str, family: str, to: Path, *, dtype: torch.dtype = torch.float32, **changes: Any) -> Coded:
    """A tiny checkpoint whose experts and attention (experts alone for mxfp4) are stored in that format."""
    source = make_checkpoint(family, to / "source", dtype=dtype, **changes)
    stored = load_file(source / "model.safetensors")
    coded, plain = dict(stored), dict(stored)
    is_blocks = kind == "mxfp4"
    for name, weight in stored.items():
        is_expert = ".experts." in name and not name.endswith("bias")
        is_attention = "self_attn" in name and name.endswith("proj.weight") and not is_blocks
        if is_expert or is_attention:
            # DeepSeek-V4 keeps its attention in fp8
            coder = fp8 if kind == "fp4 rows" and not is_expert else CODERS[kind]
            written, numbers = coder(name, weight)
            del coded[name]
            coded |= written
            plain[name] = numbers.to(dtype)
    config = json.loads((source / "config.json").read_text())
    for folder, tensors, settings in (("coded", coded, CONFIGS[kind]), ("plain", plain, None)):
        (to / folder).mkdir()
        extra = {} if settings is None else {"quantization_config": settings}
        (to / folder / "config.json").write_text(json.dumps(config | extra))
        save_file(tensors, to / folder / "model.safetensors", metadata={"format": "pt"})
    return Coded(to / "coded", to / "plain")
