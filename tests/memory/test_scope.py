"""Questions, searches and lists within some sessions of a store: nothing of any other is ever said."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from livingkv import Memory, Settings
from livingkv.auto_answer import Auto
from livingkv.errors import InputError, QuestionError, SessionNotFound
from livingkv.recall import sentences_with
from livingkv.results import Answer, Mode
from livingkv.scope import ALL, Scope
from livingkv.store import Store
from tests.tiny import tiny_model

SMALL = Settings(window_tokens=1024, block_tokens=64, commit_tokens=64)
MARKERS = {"anna": "AQUAMARINE", "bert": "BERYL"}
OWN = Scope(folder="anna")
QUESTIONS = (
    "What is the access code of Delta Gate?",
    "What are all the codes of Delta Gate?",
    "How many codes are there?",
    "How many times is Delta Gate mentioned?",
    "What is step_two?",
    "What is my code and what is my gate called?",
    "Summarize everything that is stored.",
    "BERYL",
)


def facts(user: str) -> str:
    """What a user said, with a marker in every sentence; a chain of identifiers goes through all of them."""
    marker = MARKERS[user]
    told = [f"The access code number {n} of Delta Gate is {marker}-{n}." for n in range(4)]
    return " ".join([*told, f"step_one = {marker}.", f"step_two = step_one of {marker}.", f"My gate is {marker}."])


@pytest.fixture(scope="module", name="memory")
def fill(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Memory]:
    """Two users with sessions of the same names, and two sessions of nobody."""
    with Memory.open(tmp_path_factory.mktemp("scope") / "s", model=tiny_model(), settings=SMALL) as memory:
        for user in MARKERS:
            memory.ingest("codes", text=facts(user).encode(), session=f"{user}/codes")
            memory.add_messages([{"role": "user", "content": facts(user)}], session=f"{user}/talk")
        memory.ingest("codes", text=facts("bert").encode(), session="codes")
        memory.ingest("codes", text=facts("bert").encode(), session="anna-2/codes", kv=False)
        yield memory


@pytest.mark.parametrize("mode", ["extract", "kv", "ground"])
@pytest.mark.parametrize("question", [QUESTIONS[0], QUESTIONS[-1]])
def test_nothing_of_another_user_is_said(memory: Memory, mode: Mode, question: str) -> None:
    check_own(memory, memory.ask(question, session=OWN, mode=mode, max_tokens=6), question)


def check_own(memory: Memory, answer: Answer, question: str) -> None:
    """Fail unless an answer is of anna's sessions alone."""
    assert "BERYL" not in str({**asdict(answer), "timings_ms": None}).replace(question, "")
    assert {each.session for each in answer.evidence} <= {"anna/codes", "anna/talk"}
    assert answer.n_tokens == sum(memory.session(f"anna/{name}").n_tokens for name in ("codes", "talk"))


@pytest.mark.parametrize("question", QUESTIONS)
def test_nothing_of_another_user_is_read(memory: Memory, question: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor said, by whatever mode auto reads on its way, also where it gives no answer."""
    read: list[str] = []
    plain, store = Auto._read, memory._home.store()
    runs, texts = memory._home.store().read_pages, store.text

    def noted(self: Auto, mode: Mode, passages: list[object], reason: str) -> object:
        read.extend(str(passage) for passage in passages)
        return plain(self, mode, passages, reason)  # type: ignore[arg-type]

    def session_pages(self: Store, session_id: int, pages: list[int]) -> list[bytes]:
        read.append(store.session(session_id).name)
        return runs(session_id, pages)

    def session_text(self: Store, session_id: int, lo: int = 0, hi: int | None = None) -> bytes:
        read.append(store.session(session_id).name)
        return texts(session_id, lo, hi)

    monkeypatch.setattr(Auto, "_read", noted)
    monkeypatch.setattr(Store, "read_pages", session_pages)
    monkeypatch.setattr(Store, "text", session_text)
    check_own(memory, memory.ask(question, session=OWN, max_tokens=6), question)
    assert not any("BERYL" in each or each.startswith(("bert", "codes", "anna-2")) for each in read)


def test_search_and_lists_stay_within_a_scope(memory: Memory) -> None:
    for scope, sessions in (
        (OWN, {"anna/codes", "anna/talk"}),
        (Scope(folder=""), {"codes"}),
        (Scope(names=frozenset({"anna/talk", "bert/talk"})), {"anna/talk", "bert/talk"}),
        (Scope(folder="nobody"), set[str]()),
        (ALL, {"anna/codes", "anna/talk", "bert/codes", "bert/talk", "codes", "anna-2/codes"}),
    ):
        found = memory.search("code of Delta Gate BERYL", session=scope, limit=100)
        assert {hit.session for hit in found} == sessions
        assert {each.session for each in memory.sentences(session=scope, limit=1000)} == sessions
    with pytest.raises(SessionNotFound):
        memory.search("code", session=Scope(names=frozenset({"anna/none"})))


def test_words_are_looked_for_in_the_sessions_of_the_question(memory: Memory) -> None:
    store, index = memory._home.store(), memory._home.index.current()
    found = sentences_with(store, index, "Delta Gate", "Delta Gate", OWN.rows(store), 100)
    assert len(found) == 10 and all("AQUAMARINE" in hit.sentence.text for hit in found)


def test_hits_have_ranks_and_ids(memory: Memory) -> None:
    hits = memory.search("access code number 2 of Delta Gate", session="anna/codes", limit=3)
    assert len(hits) == 3 and hits[0].lexical_rank == 1 and hits[0].lexical is not None
    assert hits[0].text == "The access code number 2 of Delta Gate is AQUAMARINE-2." and hits[0].coverage > 0.9
    assert any(hit.semantic_rank for hit in hits) and hits[0].score >= hits[1].score
    answer = memory.ask("access code number 2 of Delta Gate", session="anna/codes", mode="extract")
    assert answer.evidence[0].sentence_id == hits[0].sentence_id and answer.evidence[0].lexical_rank == 1
    shown = memory.around(hits[0].sentence_id, 1, 1)
    assert [each.sentence_id - hits[0].sentence_id for each in shown] == [-1, 0, 1]


def test_search_by_source_and_role_looks_deeper(memory: Memory) -> None:
    assert {hit.role for hit in memory.search("Delta Gate", limit=2, role="user")} == {"user"}
    assert {hit.source for hit in memory.search("Delta Gate", limit=2, source="codes")} == {"codes"}
    assert memory.search("Delta Gate", source="none") == []
    with pytest.raises(InputError, match="limit"):
        memory.search("Delta Gate", limit=0)
    with pytest.raises(QuestionError):
        memory.search(" ")


def test_sentences_go_on_behind_one(memory: Memory) -> None:
    every = memory.sentences(session=OWN, limit=1000)
    pages, last = list(every[:0]), None
    while page := memory.sentences(session=OWN, after=last, limit=3):
        pages, last = pages + page, page[-1].sentence_id
    assert [each.sentence_id for each in pages] == [each.sentence_id for each in every]
    assert {each.role for each in memory.sentences(role="user", limit=1000)} == {"user"}
    assert {each.source for each in memory.sentences(source="chat", limit=1000)} == {"chat"}
    memory._home.note_recall([every[0].sentence_id])
    first = memory.sentences(session=OWN, limit=1)[0]
    assert first.n_recalls == every[0].n_recalls + 1 and first.weight > every[0].weight
    assert first.created_s == pytest.approx(memory.session("anna/codes").created_s, abs=60)


def test_one_session_alone_is_needed_where_all_of_it_is_attended(memory: Memory) -> None:
    with pytest.raises(InputError, match="session"):
        memory.ask("What?", session=OWN, mode="exact")
    one = Scope(names=frozenset({"anna/talk"}))
    assert memory.ask("What?", session=one, mode="exact", max_tokens=2).mode == "exact"


def test_forgetting_is_counted_before(tmp_path: Path) -> None:
    with Memory.open(tmp_path / "s", model=tiny_model(), settings=SMALL) as memory:
        for user in MARKERS:
            memory.ingest("codes", text=(facts(user) * 4).encode(), session=f"{user}/codes")
        memory.fork("anna/codes", "anna/fork")
        ids = [each.sentence_id for each in memory.sentences(session="anna/codes", limit=3)]
        forgettings: tuple[dict[str, Any], ...] = (
            {"sentence_ids": ids, "deep": True},
            {"session": "anna/codes", "source": "codes"},
            {"session": OWN},
            {"everything": True},
        )
        for what in forgettings:
            before, text = memory.sentences(limit=1000), memory.text("bert/codes")
            counted = memory.forget(**what, dry_run=True)
            assert memory.sentences(limit=1000) == before and memory.text("bert/codes") == text
            receipt = memory.forget(**what)
            for name in ("n_sentences", "n_tokens", "n_pages", "n_bytes", "n_keys"):
                assert getattr(counted, name) == getattr(receipt, name), (what, name)
            assert counted.n_sentences > 0 and counted.bytes_erased == counted.bytes_freed == 0
            if what.get("everything"):
                break
            assert memory.text("bert/codes") == text
        assert memory.sessions() == [] and memory.check().problems == ()
