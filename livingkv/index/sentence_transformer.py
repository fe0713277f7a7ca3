"""Any model of the sentence-transformers library, an extra: `pip install ".[embedders]"`.

Knows that library's encode call; imports it, and torch with it, when an embedder is made, never before.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from livingkv.errors import ModelDamaged, ModelNotFound
from livingkv.index.common_part import unit
from livingkv.index.mixing import Floats

PREFIX = "sentence-transformers:"
_LIBRARY = "sentence_transformers"
_BATCH = 32


class SentenceTransformer:
    """An Embedder over `name`: a model's name on the hub, or a folder.

    The id holds the name, and for a folder the digest of its weights. Raises ModelNotFound when the library or the
    model is missing, ModelDamaged when the library cannot read the model.
    """

    def __init__(self, name: str) -> None:
        if importlib.util.find_spec(_LIBRARY) is None:
            raise ModelNotFound(f"the embedder {name!r} needs sentence-transformers; pip install sentence-transformers")
        folder = Path(name).expanduser()
        place = str(folder.resolve()) if folder.is_dir() else name
        library: Any = importlib.import_module(_LIBRARY)
        try:
            self._model = library.SentenceTransformer(place)
        except OSError as error:
            raise ModelNotFound(f"the embedder {name!r} could not be had: {_first_line(error)}") from error
        except (ValueError, KeyError, RuntimeError) as error:
            raise ModelDamaged(f"the embedder {name!r} cannot be used: {_first_line(error)}") from error
        self.dimension = int(self._model.encode(["x"]).shape[1])
        self.id = f"{PREFIX}{place}{_digest(folder) if folder.is_dir() else ''}"

    def embed(self, texts: Sequence[str]) -> Floats:
        """See Embedder."""
        if not texts:
            return np.zeros((0, self.dimension), np.float32)
        rows = self._model.encode(list(texts), batch_size=_BATCH, show_progress_bar=False)
        return unit(np.asarray(rows, np.float32))


def model_of(embedder_id: str) -> str:
    """The name or folder within the id of a SentenceTransformer."""
    return embedder_id.removeprefix(PREFIX).split("#")[0]


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.safetensors")) or sorted(folder.rglob("*.bin")):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return f"#{digest.hexdigest()[:16]}"


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:200]
