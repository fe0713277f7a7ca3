"""Reads a GGUF file through transformers, dequantizes it to bf16 and writes a model folder, as a process of its own:

    python -m livingkv.gguf_reading FILE TARGET_FOLDER SHA256

Reports progress and refusals on standard output, for gguf_conversion.py. Mends what transformers leaves out of a GGUF
file (scaled rotary frequencies) or refuses it; checks the tokenizer by round trips before anything is written.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from livingkv.errors import LivingKVError, ModelDamaged, ModelNotFound, UnsupportedModel
from livingkv.gguf_conversion import CONVERTER_VERSION, REPORT_MARK
from livingkv.model_loading import first_line
from livingkv.model_refusal import refuse_unsupported

_STEPS = 5
_CONTROL_TOKEN, _USER_TOKEN = 3, 4  # token types of GGUF's tokenizer.ggml.token_type
_ROUND_TRIPS = (
    "The quick brown fox, 1234567 times; isn't it?",
    "def f(x: int) -> str:\n\treturn f'{x:>10}'  # \\ two  spaces\r\n\n\n",
    "Zażółć gęślą jaźń — “naïve” é ﬁ\u00a0№",
    "日本語のテキスト、中文文本，한국어 텍스트. العربية हिन्दी",
    "🙂 👩‍👩‍👧‍👦 🏳️‍🌈 𝔘𝔫𝔦𝔠𝔬𝔡𝔢",
)
_LLAMA3 = {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def read_gguf(gguf: Path, target: Path, sha256: str) -> None:
    """Write config, tokenizer and weights of the GGUF file into the folder `target`. Raises ModelError."""
    _report(done=0, total=_STEPS)
    reader = _open(gguf)
    config = _read_config(gguf, reader)
    refuse_unsupported(gguf.name, config)
    _mend_rope(config, reader, gguf.name)
    n_bytes = 2 * sum(int(tensor.n_elements) for tensor in reader.tensors)
    if shutil.disk_usage(target).free < n_bytes + (64 << 20):
        text = f"no space left in {target.parent} ({n_bytes / 1e6:.0f} MB are needed); free some or set LIVINGKV_CACHE"
        raise ModelNotFound(text)
    _report(done=1, total=_STEPS)
    tokenizer = _read_tokenizer(gguf, reader)
    tokenizer.save_pretrained(target)
    _report(done=2, total=_STEPS)
    network = _read_network(gguf, config)
    _report(done=3, total=_STEPS)
    _write_weights(network, target, sha256)
    _report(done=4, total=_STEPS)
    config.tie_word_embeddings = all(tensor.name != "output.weight" for tensor in reader.tensors)
    config.eos_token_id, config.bos_token_id = tokenizer.eos_token_id, tokenizer.bos_token_id
    config.architectures = [type(network).__name__]
    config.dtype = torch.bfloat16
    config.save_pretrained(target)
    shutil.copymode(target / "config.json", target / "model.safetensors")
    _report(done=_STEPS, total=_STEPS)


def _open(gguf: Path) -> Any:
    from gguf import GGUFReader

    try:
        reader = GGUFReader(gguf)
    except (ValueError, KeyError, IndexError, OSError, OverflowError, MemoryError) as error:
        raise ModelDamaged(f"{gguf}: the GGUF file is damaged or cut off ({first_line(error)})") from error
    parts = _field(reader, "split.count")
    if parts and parts > 1:
        raise UnsupportedModel(f"{gguf.name}: this is one of {parts} files; merge them with llama-gguf-split first")
    return reader


def _field(reader: Any, key: str) -> Any:
    field = reader.get_field(key)
    return None if field is None else field.contents()


def _read_config(gguf: Path, reader: Any) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(gguf.parent, gguf_file=gguf.name)
    except (ValueError, KeyError, NotImplementedError) as error:
        raise UnsupportedModel(f"{gguf.name}: transformers cannot read this GGUF file ({first_line(error)})") from error
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    head_dim = _field(reader, f"{_field(reader, 'general.architecture')}.attention.key_length")
    if head_dim and getattr(config, "head_dim", head_dim) != head_dim:
        config.head_dim = int(head_dim)
    return config


def _mend_rope(config: Any, reader: Any, name: str) -> None:
    """Put scaled rotary frequencies of the GGUF file into the config, which transformers does for few architectures."""
    architecture = _field(reader, "general.architecture")
    scaling = f"{architecture}.rope.scaling"
    kind, factor = _field(reader, f"{scaling}.type"), _field(reader, f"{scaling}.factor")
    original = _field(reader, f"{scaling}.original_context_length")
    rope = {**config.rope_parameters}
    factors = next((tensor.data for tensor in reader.tensors if tensor.name == "rope_freqs.weight"), None)
    if any(tensor.name.startswith("rope_factors_") for tensor in reader.tensors):
        raise UnsupportedModel(f"{name} cannot be used: its rotary frequencies change with the length of the text")
    if factors is not None:
        rope |= _llama3_scaling(torch.from_numpy(factors.copy()), rope, config, name)
    elif kind == "linear" and factor:
        rope |= {"rope_type": "linear", "factor": float(factor)}
    elif kind == "yarn" and factor and original:
        rope |= {"rope_type": "yarn", "factor": float(factor), "original_max_position_embeddings": int(original)}
    elif kind not in (None, "none") and rope.get("rope_type", "default") != kind:
        raise UnsupportedModel(f"{name} cannot be used: its rope scaling {kind!r} cannot be read from a GGUF file")
    config.rope_parameters = rope


def _llama3_scaling(factors: Tensor, rope: Mapping[str, Any], config: Any, name: str) -> dict[str, Any]:
    """The llama3 settings that give the file's factors: GGUF keeps the quotients of frequencies, not the settings."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    for factor in (8.0, 16.0, 32.0):
        candidate = {**_LLAMA3, "factor": factor, "original_max_position_embeddings": 8192}
        trial = type(config)(**{**config.to_dict(), "rope_parameters": {**rope, **candidate}})
        scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](trial, torch.device("cpu"))
        n = scaled.shape[0]
        plain = 1.0 / rope["rope_theta"] ** (torch.arange(n, dtype=torch.float) / n)
        if factors.shape == scaled.shape and torch.allclose(plain / scaled, factors, rtol=1e-3):
            return candidate
    raise UnsupportedModel(f"{name} cannot be used: its scaled rotary frequencies (rope_freqs) are of no known kind")


def _read_tokenizer(gguf: Path, reader: Any) -> Any:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _mend_special_tokens(tokenizer, reader, gguf.name)
    for text in _ROUND_TRIPS:
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if tokenizer.decode(ids, clean_up_tokenization_spaces=False) != text:
            raise UnsupportedModel(f"{gguf.name}: its tokenizer does not give text back exactly ({text[:24]!r}...)")
    return tokenizer


def _mend_special_tokens(tokenizer: Any, reader: Any, name: str) -> None:
    """Special tokens as the file lists them: some versions of transformers lose all but the first and the end's id."""
    from tokenizers import AddedToken

    pieces: list[str] = _field(reader, "tokenizer.ggml.tokens") or []
    types: list[int] = _field(reader, "tokenizer.ggml.token_type") or []
    listed = [(index, kind) for index, kind in enumerate(types) if kind in (_CONTROL_TOKEN, _USER_TOKEN)]

    def is_lost(index: int) -> bool:
        return bool(tokenizer(pieces[index], add_special_tokens=False)["input_ids"] != [index])

    lost = [(index, kind) for index, kind in listed if is_lost(index)]
    tokenizer.add_tokens([AddedToken(pieces[i], special=kind == _CONTROL_TOKEN, normalized=False) for i, kind in lost])
    for index, _ in lost:
        if is_lost(index):
            raise UnsupportedModel(f"{name}: its special token {pieces[index]!r} was lost by the conversion")
    for role, key in (("bos_token", "bos"), ("eos_token", "eos"), ("pad_token", "padding")):
        index = _field(reader, f"tokenizer.ggml.{key}_token_id")
        if index is not None and int(index) < len(pieces):
            setattr(tokenizer, role, pieces[int(index)])


def _read_network(gguf: Path, config: Any) -> Any:
    import transformers

    options: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # newer versions keep the weights packed unless told otherwise
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    network, info = transformers.AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        config=config,
        dtype=torch.bfloat16,
        output_loading_info=True,
        **options,
    )
    missing = sorted(info["missing_keys"])
    if missing:
        raise ModelDamaged(f"{gguf}: {len(missing)} tensors are missing from the file, the first is {missing[0]}")
    return network


def _write_weights(network: Any, target: Path, sha256: str) -> None:
    """Every tensor once (tied ones share memory), with where it came from in the file's metadata."""
    import transformers
    from safetensors.torch import save_file

    seen: set[int] = set()
    tensors: dict[str, Tensor] = {}
    for name, tensor in network.state_dict().items():
        if tensor.data_ptr() in seen:
            continue
        seen.add(tensor.data_ptr())
        if not torch.isfinite(tensor).all():
            raise ModelDamaged(f"{name}: the file holds values that are not numbers; it is damaged")
        tensors[name] = tensor.contiguous()
    versions = f"livingkv conversion {CONVERTER_VERSION}, transformers {transformers.__version__}"
    metadata = {"format": "pt", "source_sha256": sha256, "converter": versions}
    save_file(tensors, target / "model.safetensors", metadata=metadata)


def _report(**values: Any) -> None:
    print(REPORT_MARK + json.dumps(values), flush=True)


def main() -> int:
    """The process: 0 when the folder is written, 1 after a reported refusal. Anything else ends in a traceback."""
    gguf, target, sha256 = sys.argv[1:]
    try:
        read_gguf(Path(gguf), Path(target), sha256)
    except LivingKVError as error:
        _report(error=type(error).__name__, message=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
