"""The index of sentences: a lexical and a dense channel, fused by rank, always rebuildable from the store.

Knows sentences by id and text, and nothing of the store, of tokens or of models. Imports no torch.
"""

from __future__ import annotations

from livingkv.index.embedders import Embedder, TokenEmbedder
from livingkv.index.embedding_matrix import map_embedding_matrix
from livingkv.index.hits import Entry, Hit
from livingkv.index.minilm import MiniLMEmbedder
from livingkv.index.sentence_index import Index
from livingkv.index.vector_file import Batch

__all__ = ["Batch", "Embedder", "Entry", "Hit", "Index", "MiniLMEmbedder", "TokenEmbedder", "map_embedding_matrix"]
