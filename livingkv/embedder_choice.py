"""Which embedder makes the dense channel: from a name to an embedder, and from an index's vectors back to the name.

Knows the names that people use; knows no index and no store.
"""

from __future__ import annotations

from livingkv.engine import Engine
from livingkv.index import Embedder, MiniLMEmbedder
from livingkv.index.sentence_transformer import PREFIX, SentenceTransformer, model_of

DEFAULT_EMBEDDER = "tokens"
"""docs/decisions/0013 says why."""


def make_embedder(engine: Engine, name: str) -> Embedder:
    """The embedder called `name`: "tokens" (means of the model's input embeddings), "states" (the model's own states),
    "minilm" (the packaged one), or any model of sentence-transformers by hub name or folder.

    Raises ModelNotFound or ModelDamaged.
    """
    if name == "tokens":
        return engine.embedder()
    if name == "states":
        return engine.state_embedder()
    if name == "minilm":
        return MiniLMEmbedder()
    return SentenceTransformer(name)


def name_of(embedder_id: str) -> str:
    """The name by which `make_embedder` makes vectors of this id, or those that took their place."""
    if embedder_id.startswith(PREFIX):
        return model_of(embedder_id)
    kinds = {"token-embeddings": "tokens", "model-states": "states", "all-MiniLM-L6-v2": "minilm"}
    return next((name for kind, name in kinds.items() if embedder_id.startswith(kind)), DEFAULT_EMBEDDER)
