"""Recall beside a conversation: when memory is asked, what becomes of its answer, and what is never asked."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any, cast

import pytest

import livingkv.asking
import livingkv.auto_answer
import livingkv.conversation
from livingkv import Memory, Settings
from livingkv.asking import Asking
from livingkv.auto_answer import Auto
from livingkv.errors import InputError
from livingkv.passages import Judged
from livingkv.recall import Probed, sentences_with
from livingkv.results import Recall
from livingkv.sampling import Sampling
from tests.tiny import tiny_model

MODEL = tiny_model("qwen2")
SETTINGS = Settings(window_tokens=128, block_tokens=64, commit_tokens=128, n_candidates=4)
TEXT = "".join(f"The code of door {i} is {1000 + i * 7}. Nobody remembers room {i}.\n\n" for i in range(30)).encode()
ASKED = "What is the code of door 3?"


@pytest.fixture(scope="module", name="doors")
def doors_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the doors, to be copied."""
    path = tmp_path_factory.mktemp("doors") / "s"
    with Memory.open(path, model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT, session="doors")
    return path


@pytest.fixture
def memory(tmp_path: Path, doors: Path, monkeypatch: pytest.MonkeyPatch) -> Memory:
    """A memory of doors in a session of its own, which believes every answer."""
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    monkeypatch.setattr(livingkv.conversation, "LEAST_RANK", -99.0)
    return Memory.open(shutil.copytree(doors, tmp_path / "s"), model=MODEL, settings=SETTINGS)


@pytest.fixture
def probes(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The sessions that were probed, in order."""
    probed: list[str | None] = []
    plain = Asking.probe

    def noted(asking: Asking, session: str | None) -> Probed:
        probed.append(session)
        return plain(asking, session)

    monkeypatch.setattr(Asking, "probe", noted)
    return probed


def test_an_answer_of_memory_becomes_the_turn(memory: Memory) -> None:
    told: list[str] = []
    alone = memory.ask(ASKED, max_tokens=6)
    turn = memory.chat(ASKED, max_tokens=6, on_text=told.append)
    assert turn.answer == alone.answer == "".join(told).strip() and len(told) == 1
    assert turn.mode == alone.mode == "kv" and turn.confident and turn.evidence == alone.evidence
    assert turn.reason.startswith("recalled: ") and turn.turn == 1
    assert turn.reused_tokens == alone.reused_tokens and turn.prefilled_tokens > alone.prefilled_tokens
    assert memory.text("default").startswith(ASKED.encode()) and turn.answer.encode() in memory.text("default")
    assert turn.n_tokens == memory.session("default").n_tokens and turn.timings_ms.probe > 0
    assert memory._home.store().hottest(5)
    assert memory.check().problems == ()
    memory.close()


def test_a_recalled_turn_is_read_as_a_generated_one_would_be(memory: Memory, tmp_path: Path) -> None:
    """Ids, turns and frame: the next turn cannot tell where the assistant's words came from."""
    answer = memory.chat(ASKED, max_tokens=6).answer
    store, words = memory._home.store(), memory._home.engine().words
    row = store.session("default")
    ids = store.token_ids(row.session_id, 0, row.n_tokens).tolist()
    framing = words.framing
    asked = [*framing.prologue, *words.encode(ASKED), *framing.answer]
    assert ids[: len(asked)] == asked and ids[-len(framing.reopen) :] == list(framing.reopen)
    assert answer in memory._home.engine().model.tokenizer.decode(ids[len(asked) :])
    assert memory.chat("Thank you.", max_tokens=3).turn == 2
    memory.close()


def test_what_does_not_convince_is_marked_and_the_conversation_goes_on(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 2.0)
    told: list[str] = []
    turn = memory.chat(ASKED, max_tokens=9, on_text=told.append)
    plain = memory.chat(ASKED, session="plain", max_tokens=9, recall="off")
    assert turn.answer == plain.answer == "".join(told).strip() and turn.mode == "resume"
    assert not turn.confident and turn.confidence < 1.0 and turn.evidence == () and "memory was asked" in turn.reason
    assert plain.confident and plain.reason == "the conversation goes on from its stored state"
    assert memory._home.store().hottest(5) == []
    memory.close()


@pytest.mark.parametrize("message", ["The code of door 3 is 1021.", "Door 3!", "what a door that is", "And you?"])
def test_what_is_no_question_costs_no_probe(message: str, memory: Memory, probes: list[str | None]) -> None:
    turn = memory.chat(message, max_tokens=3)
    assert probes == [] and turn.mode == "resume" and turn.confident
    memory.close()


@pytest.mark.parametrize(("recall", "want"), [("all", [None]), ("session", ["talk"]), ("off", [])])
def test_where_it_is_recalled_from(
    recall: Recall, want: list[str | None], memory: Memory, probes: list[str | None]
) -> None:
    memory.add_messages([{"role": "user", "content": TEXT.decode()}], session="talk")
    memory.chat(ASKED, session="talk", max_tokens=3, recall=recall)
    assert probes == want
    memory.close()


def test_nothing_is_asked_where_the_hot_window_holds_all_of_it(memory: Memory, probes: list[str | None]) -> None:
    memory.add_messages([{"role": "user", "content": "My dog is called Rex."}], session="talk")
    assert memory.chat("What is my dog called?", session="talk", max_tokens=3, recall="session").mode == "resume"
    assert probes == []
    memory.close()


def test_what_the_hot_window_holds_is_not_recalled(memory: Memory, probes: list[str | None]) -> None:
    memory.add_messages([{"role": "user", "content": "The code of door 3 is 5555 now."}], session="talk")
    turn = memory.chat(ASKED, session="talk", max_tokens=3)
    assert probes == [None] and turn.mode == "resume" and turn.confident
    memory.close()


def test_a_question_asked_before_is_no_answer(memory: Memory) -> None:
    memory.chat(ASKED, session="talk", max_tokens=1, recall="off")
    turn = memory.chat(ASKED, session="talk", max_tokens=3)
    assert turn.mode == "kv" and turn.evidence[0].session == "doors"
    memory.close()


def test_what_is_encrypted_elsewhere_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livingkv.asking, "CONFIDENT", 0.0)
    with Memory.open(tmp_path / "s", model=MODEL, settings=SETTINGS) as memory:
        memory.ingest("doors", text=TEXT, session="doors", encrypt=True)
        turn = memory.chat(ASKED, max_tokens=3)
        assert turn.mode == "resume" and turn.evidence == () and "memory was asked" not in turn.reason
        memory.ingest("notes", text=b"The code of door 4 is 1028.", session="notes")
        turn = memory.chat(ASKED, max_tokens=3)
        assert all(passage.session == "notes" for passage in turn.evidence)


def test_a_list_of_all_that_has_a_name_takes_nothing_out_of_what_is_encrypted(
    memory: Memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.ingest("hidden", text=b"The code of door 3 of Marjorie is XANTHIC.\n", session="hidden", encrypt=True)
    memory.ingest("open", text=b"The code of door 3 of Marjorie is 1021.\n", session="open")
    seen: list[str] = []
    plain = sentences_with

    def noted(*arguments: Any) -> list[Judged]:
        found = plain(*arguments)
        seen.extend(hit.sentence.session for hit in found)
        return found

    monkeypatch.setattr(livingkv.auto_answer, "sentences_with", noted)
    memory.chat("What are all the codes of Marjorie?", max_tokens=3)
    assert "open" in seen and "hidden" not in seen
    memory.close()


def test_a_question_about_everything_reads_no_session_again(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*arguments: object) -> None:
        raise AssertionError("nothing that it said could be confirmed")

    monkeypatch.setattr(Auto, "_read_all", tried)
    monkeypatch.setattr(Auto, "_exact", tried)
    memory.add_messages([{"role": "user", "content": TEXT.decode()}], session="talk")
    turn = memory.chat("What are the most common words?", session="talk", max_tokens=3, recall="session")
    assert turn.mode == "resume" and "all that is stored" in turn.reason
    memory.close()


def test_an_answer_that_memory_does_not_end_is_not_given(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(livingkv.conversation, "RECALL_TOKENS", 2)
    assert memory.chat(ASKED, max_tokens=2).mode == "kv"  # no longer than what was asked for
    turn = memory.chat(ASKED, session="other", max_tokens=5)
    assert turn.mode == "resume" and not turn.confident and "did not end" in turn.reason
    memory.close()


def test_stop_strings_and_sampling_hold_for_what_is_recalled(memory: Memory) -> None:
    whole = memory.ask(ASKED, max_tokens=8).answer
    turn = memory.chat(ASKED, session="cut", max_tokens=8, stop=[whole[2:4]], recall="all")
    assert turn.mode == "kv" and turn.answer == whole[: whole.index(whole[2:4])].strip()
    memory.forget(session="cut")
    picking = Sampling(temperature=1.5, seed=3)
    sampled = memory.ask(ASKED, max_tokens=8, sampling=picking).answer
    assert memory.chat(ASKED, max_tokens=8, sampling=picking).answer == sampled != whole
    memory.close()


def test_an_interrupted_recall_leaves_nothing(memory: Memory) -> None:
    def interrupt(text: str) -> None:
        raise KeyboardInterrupt

    memory.chat("Hello.", max_tokens=2)
    before, text = memory.session("default"), memory.text("default")
    with pytest.raises(KeyboardInterrupt):
        memory.chat(ASKED, max_tokens=6, on_text=interrupt)
    assert memory.session("default") == before and memory.text("default") == text
    assert memory.chat("Still there?", max_tokens=2).turn == 2
    memory.close()


def test_what_is_far_from_all_that_is_stored_costs_no_answer(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(*arguments: object) -> None:
        raise AssertionError("nothing is read for it")

    monkeypatch.setattr(livingkv.conversation, "LEAST_RANK", 99.0)
    monkeypatch.setattr(Auto, "answer", tried)
    turn = memory.chat(ASKED, max_tokens=3)
    assert turn.mode == "resume" and not turn.confident and "near enough" in turn.reason
    memory.close()


def test_an_unknown_place_is_named(memory: Memory) -> None:
    with pytest.raises(InputError, match="all, session, off"):
        memory.chat(ASKED, recall=cast(Any, "everywhere"))
    memory.close()


def test_the_hits_of_a_turn_are_judged_once(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[int] = []
    plain = Asking.judge

    def noted(asking: Asking, probed: Probed) -> list[Judged]:
        judged.append(len(probed.hits))
        return plain(asking, probed)

    monkeypatch.setattr(Asking, "judge", noted)
    memory.chat(ASKED, max_tokens=3)
    assert len(judged) == 1
    memory.close()
