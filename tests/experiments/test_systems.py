"""The systems that experiments compare: one text, one question, honest counts; on tiny random models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from experiments import systems
from experiments.plain_model import PlainModel
from experiments.systems import DEFAULT_SYSTEMS, Models, open_systems, passages_within
from livingkv import Memory, Settings
from livingkv.models import LoadedModel
from livingkv.store import Sentence
from tests.tiny import NATIVE_CONTEXT, tiny_model

SETTINGS = Settings(window_tokens=256, block_tokens=128, commit_tokens=512, recall_tokens=256)
TEXT = (
    "\n\n".join(f"The lamp number {n} stands in room {n * 7}. Nobody looks at it. It is dark." for n in range(12))
    + "\n"
)
QUESTION = "Where does lamp number 5 stand?"


@pytest.fixture
def models(monkeypatch: pytest.MonkeyPatch) -> Models:
    """Models that are tiny; every load makes a new network."""

    def load(spec: str | None) -> LoadedModel:
        assert spec == "tiny"
        return tiny_model("qwen2")

    monkeypatch.setattr(systems, "load_model", load)
    return Models("tiny")


@pytest.fixture
def store(tmp_path: Path, models: Models) -> Path:
    """A store that holds the text."""
    with Memory.open(tmp_path / "store", model=models.served, settings=SETTINGS) as memory:
        memory.ingest("text", text=TEXT.encode())
    return tmp_path / "store"


def test_every_system_answers_the_same_question(store: Path, models: Models) -> None:
    with open_systems(DEFAULT_SYSTEMS, models=models, store=store, text=TEXT, settings=SETTINGS) as opened:
        assert tuple(opened) == DEFAULT_SYSTEMS
        answers = {name: system.answer(QUESTION, max_tokens=4) for name, system in opened.items()}
    assert answers["full"].recalled is None
    assert answers["full"].prefilled_tokens == answers["full"].extra["prompt_tokens"]
    for name in ("text", "kv", "ground"):
        assert "lamp number 5" in "\n".join(answers[name].recalled or ())
    assert answers["kv"].extra["mode"] == "kv"
    assert answers["ground"].extra["mode"] == "ground"
    assert answers["text"].prefilled_tokens < answers["full"].prefilled_tokens
    assert answers["text"].prefilled_tokens > SETTINGS.recall_tokens / 2
    assert all(answered.seconds > 0 for answered in answers.values())


def test_text_retrieval_reads_passages_in_document_order(store: Path, models: Models) -> None:
    with open_systems(["text"], models=models, store=store, settings=SETTINGS) as opened:
        answered = opened["text"].answer("Which is in room 14, and which in room 70?", max_tokens=1)
    spans = [(lo, hi) for _, lo, hi in answered.extra["passages"]]
    assert len(spans) > 1
    assert spans == sorted(spans)
    assert sum(hi - lo for lo, hi in spans) <= SETTINGS.recall_tokens
    assert "room 14." in "\n".join(answered.recalled or ())


def test_full_attention_alone_needs_no_store_and_says_what_it_lacks(models: Models) -> None:
    with open_systems(["full"], models=models, store=None, text=TEXT) as opened:
        assert opened["full"].answer(QUESTION, max_tokens=2).prefilled_tokens > 100
    assert "served" not in vars(models)
    for names, message in ((["full"], "needs the text"), (["kv"], "without a store"), (["rag"], "no system rag")):
        with pytest.raises(ValueError, match=message), open_systems(names, models=models, store=None):
            pass


def test_a_further_question_reuses_the_text_and_answers_as_if_read_anew() -> None:
    plain, fresh = PlainModel(tiny_model("qwen2")), PlainModel(tiny_model("qwen2"))
    for question in (QUESTION, "Where does lamp number 7 stand?", QUESTION):
        message = f"{TEXT}\n\n{question}"
        reused, anew = plain.complete(message, max_tokens=12, reuse=True), fresh.complete(message, max_tokens=12)
        assert reused.text == anew.text
        assert reused.n_prompt_tokens == anew.n_prompt_tokens == anew.prefilled_tokens
    assert reused.prefilled_tokens < 60 < anew.prefilled_tokens


def test_greedy_answers_are_those_of_generate() -> None:
    model = tiny_model("qwen2")
    plain = PlainModel(model)
    ids = torch.tensor([plain.prompt_ids(QUESTION)])
    out = model.network.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=16,
        do_sample=False,
        eos_token_id=sorted(model.stop_ids),
        pad_token_id=0,
    )
    expected = model.tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True).strip()
    assert plain.complete(QUESTION, max_tokens=16).text == expected


def test_beyond_the_native_context_nothing_is_answered() -> None:
    with pytest.raises(ValueError, match=f"native context of {NATIVE_CONTEXT}"):
        PlainModel(tiny_model("qwen2")).complete("word " * NATIVE_CONTEXT, max_tokens=4)


def sentence(index: int, size: int = 20) -> Sentence:
    """The sentence of this number; all have the same size in tokens."""
    text = f"Sentence {index}.".encode()
    span = (index * size, (index + 1) * size)
    return Sentence(index, 1, "default", index, index + 1, *span, "source", "document", text)


def around(sentence_id: int, before: int, after: int) -> list[Sentence]:
    """Neighbours in a document of 100 sentences."""
    return [sentence(n) for n in range(max(0, sentence_id - before), min(100, sentence_id + after + 1))]


def test_passages_fill_the_budget_grow_alike_on_both_sides_and_merge() -> None:
    found = passages_within([sentence(50), sentence(10)], around, budget_tokens=200, passage_tokens=100)
    assert [[s.sentence_id for s in run] for run in found] == [[8, 9, 10, 11, 12], [48, 49, 50, 51, 52]]
    found = passages_within([sentence(50), sentence(53)], around, budget_tokens=200, passage_tokens=60)
    assert [[s.sentence_id for s in run] for run in found] == [[49, 50, 51, 52, 53, 54]]
    found = passages_within([sentence(n) for n in range(0, 90, 9)], around, budget_tokens=100, passage_tokens=20)
    assert [s.sentence_id for run in found for s in run] == [0, 9, 18, 27, 36]
    assert passages_within([], around, budget_tokens=100) == []


def test_a_first_hit_longer_than_the_budget_is_kept() -> None:
    found = passages_within([sentence(5, 300), sentence(7, 300)], lambda *_: [], budget_tokens=100)
    assert [s.sentence_id for run in found for s in run] == [5]
