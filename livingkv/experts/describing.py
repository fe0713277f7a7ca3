"""What streaming a model would cost, as plain facts for people and programs.

Knows plans and indexes; reads headers only.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from livingkv.errors import ModelNotFound
from livingkv.experts.loading import FORMATS, experts_per_token
from livingkv.experts.pack_choice import default_pack
from livingkv.experts.plan import Plan, plan_of
from livingkv.regular_files import is_folder


def plan_of_folder(folder: Path) -> Plan:
    """As `load_streamed` would load it on the CPU. Raises ModelNotFound, ModelDamaged or UnsupportedModel."""
    require_folder(folder)
    return plan_of(folder, None, torch.device("cpu"), FORMATS)


def require_folder(folder: Path) -> None:
    """Raise ModelNotFound where there is none."""
    if not is_folder(folder):
        raise ModelNotFound(f"{folder}: no such folder; experts are read from a model's own safetensors")


def described(folder: Path) -> dict[str, Any]:
    """Experts, their bytes, and what a read of one takes. token_needs_bytes: rows of all experts that one token uses;
    with less RAM than that, the same few experts stay in it. pack: where one lies; it is not looked at."""
    plan = plan_of_folder(folder)
    index, report = plan.index, plan.index.report()
    layers = index.layers
    experts_bytes = sum(index.expert_bytes(number) * layer.n_experts for number, layer in enumerate(layers))
    chosen = experts_per_token(plan.config, index)
    stored = sum(tensor.n_bytes for file in index.checkpoint.files for tensor in file.tensors.values())
    return {
        "model_type": plan.config.model_type,
        "layers_with_experts": report.n_layers,
        "experts": report.n_experts,
        "experts_per_token_and_layer": chosen,
        "expert_bytes": report.expert_bytes,
        "all_experts_bytes": experts_bytes,
        "other_bytes": stored - experts_bytes,
        "token_needs_bytes": report.n_layers * chosen * report.row_bytes,
        "row_bytes": report.row_bytes,
        "reads_per_expert": round(report.reads_per_expert, 3),
        "padding_share": report.padding_share,
        "in_place_share": report.in_place_share,
        "pack_pays": report.pack_pays,
        "pack": str(default_pack(folder)) if default_pack(folder).exists() else None,
    }
