"""The network of a streamed model: all of it but its experts, through transformers' own loader.

Knows transformers' loader and its errors; refuses to know sources and rows.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import LivingKVError, ModelDamaged, ModelError
from livingkv.experts.coded_format import CodedFormat
from livingkv.experts.codings import CODINGS
from livingkv.experts.files import CheckpointFiles
from livingkv.experts.formats import Format
from livingkv.experts.keys import ExpertKey
from livingkv.experts.lazy_weights import LazyMatrix, LazyTensor, lazy_weights
from livingkv.experts.ngram_rows import without_tables
from livingkv.experts.one_expert import slot_tensors
from livingkv.experts.plan import Plan
from livingkv.experts.plugging import NAME, register, without_experts
from livingkv.model_loading import first_line, quiet
from livingkv.triton_here import has_triton

LOG = logging.getLogger("livingkv.experts")

_LOAD_ERRORS = (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError, ImportError)


def load_network(plan: Plan, attention: str | None) -> Any:
    """The network in eval mode, on its device, its experts without weights. Blocks while the rest is read.

    Raises ModelDamaged where weights are missing or misshapen, ExpertReadError where they cannot be read.
    """
    files = CheckpointFiles(plan.checkpoint, direct=False)
    try:
        weights = lazy_weights(plan.checkpoint, files, plan.rest, CODINGS)
        network, info = _from_pretrained(plan, weights, attention)
    except LivingKVError:
        raise
    except torch.cuda.OutOfMemoryError as error:
        raise ModelError(f"{plan.folder}: what is not experts does not fit on {plan.device}; try the CPU") from error
    except _LOAD_ERRORS as error:
        raise ModelDamaged(f"{plan.folder}: its weights cannot be loaded ({first_line(error)})") from error
    finally:
        files.close()
    lacking = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if lacking:
        what = f"{len(lacking)} tensors are missing or misshapen, the first is {lacking[0]}"
        raise ModelDamaged(f"{plan.folder}: {what}")
    return network.requires_grad_(False)


def _from_pretrained(
    plan: Plan, weights: dict[str, LazyTensor | LazyMatrix], attention: str | None
) -> tuple[Any, dict[str, Any]]:
    from transformers import GenerationConfig

    register()
    options: dict[str, Any] = {} if plan.device.type == "cpu" else {"device_map": {"": plan.device}}
    if attention is not None:
        options["attn_implementation"] = attention
    bare = without_experts(plan.found)
    if plan.tables:
        bare = without_tables(bare)
    with quiet():
        network, info = bare.from_pretrained(  # type: ignore[attr-defined]
            None,
            config=plan.config,
            state_dict=weights,
            dtype=plan.dtype,
            experts_implementation=NAME,
            output_loading_info=True,
            **options,
        )
        if (plan.folder / "generation_config.json").is_file():
            network.generation_config = GenerationConfig.from_pretrained(plan.folder, local_files_only=True)
    return network, info


def fitted(network: Any, plan: Plan, *, may_multiply_codes: bool = False) -> tuple[Format, ...]:
    """Every layer's format for its experts module; layers of one kind share it. Raises UnsupportedModel.

    Of each kind that is stored as codes, an expert is read: faster ways to decode it are compared on it, and with
    may_multiply_codes, on a GPU, those to multiply without decoding.
    """
    known: dict[tuple[object, ...], Format] = {}
    found = []
    for layer, (module, form) in enumerate(zip(plan.modules, plan.formats, strict=True)):
        live = network.get_submodule(module.name)
        kind = (type(live), form, plan.index.layers[layer].parts, tuple(sorted(module.parameters.items())))
        if kind not in known:
            with torch.no_grad():
                fit = form.fitted(live, module.parameters, plan.device)
                if isinstance(fit, CodedFormat):
                    sample = _sample(plan, ExpertKey(layer, 0))
                    fit = fit.accelerated(sample)
                    if may_multiply_codes and plan.device.type == "cuda":
                        fit = _multiplying(fit, live, sample, plan.dtype)
                known[kind] = fit
        found.append(known[kind])
    return tuple(found)


def _multiplying(form: CodedFormat, module: Any, sample: dict[str, Tensor], dtype: torch.dtype) -> CodedFormat:
    if not has_triton():
        LOG.info("experts are decoded for every token: triton is not installed")
        return form
    from livingkv.experts.products import product_of

    product = product_of(form.coding)
    return form if product is None else form.multiplying(module, sample, product, dtype)


def _sample(plan: Plan, key: ExpertKey) -> dict[str, Tensor]:
    files = CheckpointFiles(plan.index.checkpoint, direct=False)
    try:
        return {name: part.to(plan.device) for name, part in slot_tensors(plan.index, key, files).items()}
    finally:
        files.close()
