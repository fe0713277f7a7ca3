"""Messages of a conversation that took place elsewhere: read as turns, durable together, refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from livingkv import Memory, Settings
from livingkv.errors import InputError, KeyReused, StoreFull, StoreUnwritable
from livingkv.store import Disk, IdempotencyKey
from tests.tiny import tiny_model

MODEL = tiny_model("qwen2")
SETTINGS = Settings(window_tokens=128, block_tokens=64, commit_tokens=128)
TALK: list[Mapping[str, object]] = [
    {"role": "user", "content": "My dog is called Rex. He is three."},
    {"role": "assistant", "content": "A fine name. How is he?"},
    {"role": "user", "content": "Well."},
    {"role": "user", "content": "He sleeps."},
    {"role": "assistant", "content": "Good."},
]


def test_they_become_turns_of_the_session(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        added = memory.add_messages(iter(TALK), session="talk")
        row = memory.session("talk")
        assert (added.n_messages, added.turn, added.n_tokens, added.n_sentences) == (5, 2, row.n_tokens, 7)
        assert memory.text("talk") == "".join(str(each["content"]) for each in TALK).encode()
        found = memory._home.store().sentences_after(None, 99)
        assert [each.role for each in found] == ["user"] * 2 + ["assistant"] * 2 + ["user"] * 2 + ["assistant"]
        assert found[0].text == "My dog is called Rex." and {each.source for each in found} == {"chat"}
        assert memory.check().problems == ()
        assert memory.chat("Is he well?", session="talk", max_tokens=3, recall="off").turn == 3


def test_the_stream_is_that_of_the_chat_template(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.add_messages(TALK[:3])
        memory.add_messages(TALK[3:])
        store, tokenizer = memory._home.store(), memory._home.engine().model.tokenizer
        row = store.session("default")
        got = tokenizer.decode(store.token_ids(row.session_id, 0, row.n_tokens))
    merged = [TALK[0], TALK[1], {"role": "user", "content": "Well.\n\nHe sleeps."}, TALK[4]]
    want = tokenizer.apply_chat_template(merged, tokenize=False)
    assert got == f"{want}<|im_start|>user\n"


def test_a_conversation_in_parts_is_the_one_given_at_once(tmp_path: Path) -> None:
    ids, tails = [], []
    for cuts in ((0, 5), (0, 1, 2, 3, 4, 5)):
        with Memory.open(tmp_path / str(len(cuts)), model=MODEL, settings=SETTINGS) as memory:
            for lo, hi in pairwise(cuts):
                memory.add_messages(TALK[lo:hi])
            store = memory._home.store()
            row = store.session("default")
            ids.append(store.token_ids(row.session_id, 0, row.n_tokens).tolist())
            tails.append(row.n_turns)
    assert ids[0] == ids[1] and tails == [2, 2]


@pytest.mark.parametrize(
    ("messages", "named"),
    [
        ([], "messages: got none"),
        ([{"role": "system", "content": "Be kind."}], "message 1: role: got 'system'"),
        ([TALK[0], {"role": "user", "content": " \n"}], "message 2: content"),
        ([{"role": "user"}], "message 1: content: got None"),
        ([{"role": "user", "content": "a \ud800"}], "lone surrogate at 2"),
        ([{"role": "user", "content": "Hello.", "name": "Ada"}], "'name'"),
        (["Hello."], "message 1: got 'Hello.'"),
    ],
)
def test_what_is_no_message_is_named_and_nothing_is_changed(
    tmp_path: Path, messages: list[Mapping[str, object]], named: str
) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.add_messages(TALK[:2])
        before = memory.sessions()
        with pytest.raises(InputError, match=named):
            memory.add_messages(messages, session="new")
        assert memory.sessions() == before


def test_a_full_disk_leaves_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.add_messages(TALK[:2])
        before = memory.session("default")
        with monkeypatch.context() as patch:
            patch.setattr(Disk, "write", full)
            with pytest.raises(StoreFull):
                memory.add_messages(TALK[2:])
        assert memory.session("default") == before
        assert memory.add_messages(TALK[2:]).turn == 2


def test_a_reader_adds_nothing(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.add_messages(TALK)
    with (
        Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS, read_only=True) as memory,
        pytest.raises(StoreUnwritable),
    ):
        memory.add_messages(TALK)


def test_a_text_only_session_takes_them_without_kv(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("a", text=b"Kept as text.", session="log", kv=False)
        runner = memory._home.engine().runner
        before = runner.n_prefilled
        assert memory.add_messages(TALK, session="log").turn == 2 and runner.n_prefilled == before
        assert memory.check().problems == ()


def test_passages_keep_messages_apart(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.add_messages(TALK)
        found = memory.ask("What is my dog called?", mode="extract").evidence[0]
    assert found.role == "user" and found.text == "My dog is called Rex. He is three.\nA fine name. How is he?\nWell."


@pytest.mark.parametrize("given", [None, 5, "hello", {"role": "user", "content": "hi"}])
def test_what_is_no_list_of_messages_is_refused(tmp_path: Path, given: Any) -> None:
    with (
        Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory,
        pytest.raises(InputError, match="a list of messages"),
    ):
        memory.add_messages(given)


def test_a_question_of_another_day_is_no_answer(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.add_messages([*TALK, {"role": "user", "content": "What is my dog called?"}])
        answer = memory.ask("What is my dog called?", mode="extract")
        assert answer.answer == "My dog is called Rex."


def test_messages_with_a_key_are_added_once(tmp_path: Path) -> None:
    key = IdempotencyKey.of("turn 7", b"what it says")
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        added = memory.add_messages(TALK, session="talk", once=key)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        text = memory.text("talk")
        again = memory.add_messages(TALK, session="talk", once=key)
        assert again.sentence_ids == added.sentence_ids and again.turn == 0
        assert (again.n_messages, again.n_tokens, again.prefilled_tokens) == (0, 0, 0) and memory.text("talk") == text
        with pytest.raises(KeyReused, match="a new key is needed"):
            memory.add_messages(TALK, session="talk", once=IdempotencyKey.of("turn 7", b"something else"))
        assert memory.add_messages(TALK, session="talk").n_messages == len(TALK)
        memory.rename("talk", "another")
        assert memory.add_messages(TALK, session="talk", once=key).sentence_ids == added.sentence_ids
