"""Reading a model folder through transformers: config, network, tokenizer.

The boundary where transformers' progress bars, log lines and warnings are silenced and its errors become livingkv's.
Knows nothing of where a folder came from.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from livingkv.errors import InputError, ModelDamaged, ModelError, ModelNotFound, UnsupportedModel

_LOAD_ERRORS = (OSError, ValueError, RuntimeError, TypeError, AttributeError, KeyError, ImportError)


@contextmanager
def quiet() -> Iterator[None]:
    """No warnings, log lines or progress bars of transformers inside the block. Process-wide while it lasts."""
    from transformers.utils import logging as their_logging

    level, bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity(logging.CRITICAL)
    their_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        their_logging.set_verbosity(level)
        if bars:
            their_logging.enable_progress_bar()


def read_config(folder: Path) -> Any:
    """The Hugging Face config of a model folder. Code that comes with a model is never run.

    Raises ModelNotFound without a config.json, UnsupportedModel for a model type that transformers does not know.
    """
    from transformers import AutoConfig

    if not (folder / "config.json").is_file():
        raise ModelNotFound(f"{folder}: no config.json in it, so it is not a model folder")
    try:
        with quiet():
            return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise UnsupportedModel(f"{folder}: transformers cannot read its config.json ({first_line(error)})") from error


def load_network(folder: Path, *, dtype: torch.dtype, device: torch.device, quantization: str) -> Any:
    """The folder's causal language model in `dtype` on `device`. bf16 weights on the CPU stay mapped from the files."""
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    if not any(folder.glob("*.safetensors")):
        raise ModelNotFound(f"{folder}: no *.safetensors weights in it; other weight files are not read")
    plain_cpu = device.type == "cpu" and quantization == "none"
    options: dict[str, Any] = {} if plain_cpu else {"device_map": {"": device}}
    if quantization != "none":
        options["quantization_config"] = _bitsandbytes_config(quantization, dtype)
    try:
        with quiet():
            network, info = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                attn_implementation="eager",
                output_loading_info=True,
                **options,
            )
    except torch.cuda.OutOfMemoryError as error:
        raise ModelError(f"{folder}: it does not fit on {device}; try 4-bit weights or the CPU") from error
    except (*_LOAD_ERRORS, SafetensorError) as error:
        raise ModelDamaged(f"{folder}: its weights cannot be loaded ({first_line(error)})") from error
    lacking = sorted(info["missing_keys"]) + sorted(str(key) for key in info["mismatched_keys"])
    if lacking:
        raise ModelDamaged(f"{folder}: {len(lacking)} tensors are missing or misshapen, the first is {lacking[0]}")
    return network


def load_tokenizer(folder: Path) -> Any:
    """The folder's tokenizer. Raises UnsupportedModel where it is not a fast one, ModelNotFound where there is none."""
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):  # transformers would make an empty one
        raise ModelNotFound(f"{folder}: no tokenizer in it (tokenizer.json)")
    try:
        with quiet():
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except _LOAD_ERRORS as error:
        raise ModelDamaged(f"{folder}: its tokenizer cannot be loaded ({first_line(error)})") from error
    if not tokenizer.is_fast:
        raise UnsupportedModel(f"{folder}: its tokenizer has no fast version (tokenizer.json)")
    return tokenizer


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder holds a vocabulary in any of the usual files."""
    return any((folder / name).is_file() for name in ("tokenizer.json", "tokenizer.model", "vocab.json"))


def first_line(error: BaseException) -> str:
    """The first line of an error's text that says something, cut to a readable length."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def _has_bitsandbytes() -> bool:
    return importlib.util.find_spec("bitsandbytes") is not None


def require_quantizer(quantization: str) -> None:
    """Raise InputError where these weights are packed by what is not installed. "none" is always fine."""
    if quantization != "none" and not _has_bitsandbytes():
        allowed = "bf16 or fp32 is allowed until bitsandbytes is installed (pip install bitsandbytes)"
        raise InputError("weights", quantization, allowed)


def _bitsandbytes_config(quantization: str, dtype: torch.dtype) -> Any:
    from transformers import BitsAndBytesConfig

    require_quantizer(quantization)
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # it warns in every forward pass of the network
    if quantization == "8bit":
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )
