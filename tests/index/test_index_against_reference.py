"""Random use of the index against the slow reference: the same sentences, the same scores."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from livingkv.index import Entry, Index
from tests.index.bm25_reference import SlowIndex
from tests.index.word_embedder import WordEmbedder

_WORDS = ["alpha", "beta", "gamma", "delta", "number", "numbers", "2.14", "foo_bar", "été", "встреча", "京都", "what"]
_TEXTS = st.lists(st.sampled_from(_WORDS), min_size=1, max_size=8).map(" ".join)
_SESSIONS = st.one_of(st.none(), st.frozensets(st.integers(0, 2)))


@pytest.fixture(scope="module", params=["durable", "pending"])
def filled(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Index, SlowIndex]]:
    """An index of random sentences, and the reference with the same ones."""
    generator = random.Random(7)
    slow = SlowIndex()
    for key in range(120):
        slow.texts[key] = (key % 3, " ".join(generator.choices(_WORDS, k=generator.randint(1, 8))))
    with Index.recreate(tmp_path_factory.mktemp("index"), None) as index:
        index.add(Entry(key, session, text) for key, (session, text) in slow.texts.items())
        index.commit(119)
        if request.param == "durable":
            index.flush()
        yield index, slow


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(question=_TEXTS, sessions=_SESSIONS)
def test_scores_are_those_of_the_formula(
    filled: tuple[Index, SlowIndex], question: str, sessions: frozenset[int] | None
) -> None:
    index, slow = filled
    found = {hit.sentence_id: hit.lexical for hit in index.probe(question, limit=200, session_ids=sessions)}
    # tantivy keeps the length of a sentence in one byte: exact up to 40 terms, as here
    assert found == pytest.approx(slow.scores(question, sessions), rel=1e-4)


class IndexMachine(RuleBasedStateMachine):
    """Adds, replaces, removes, flushes and reopens, with a dict beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "index"
        self.slow = SlowIndex()
        self.next_id = 0
        self.durable_high_water: int | None = None

    @initialize()
    def start(self) -> None:
        self.index = Index.recreate(self.path, WordEmbedder())

    @rule(texts=st.lists(_TEXTS, min_size=1, max_size=12), session=st.integers(0, 2))
    def add(self, texts: list[str], session: int) -> None:
        entries = [Entry(self.next_id + row, session, text) for row, text in enumerate(texts)]
        self.next_id += len(texts)
        self.index.add(entries)
        self.index.commit(self.next_id - 1)
        self.slow.texts.update((entry.sentence_id, (session, entry.text)) for entry in entries)

    @rule(data=st.data(), text=_TEXTS)
    def replace(self, data: st.DataObject, text: str) -> None:
        if self.slow.texts:
            key = data.draw(st.sampled_from(sorted(self.slow.texts)))
            self.index.add([Entry(key, 1, text)])
            self.index.commit(self.next_id - 1)
            self.slow.texts[key] = (1, text)

    @rule(keys=st.frozensets(st.integers(0, 40), max_size=5))
    def remove_sentences(self, keys: frozenset[int]) -> None:
        n_removed = self.index.remove(sentence_ids=sorted(keys))
        assert n_removed == len(keys & self.slow.texts.keys())
        self.slow.texts = {key: row for key, row in self.slow.texts.items() if key not in keys}

    @rule(session=st.integers(0, 3))
    def remove_session(self, session: int) -> None:
        gone = [key for key, row in self.slow.texts.items() if row[0] == session]
        assert self.index.remove(session_ids=[session]) == len(gone)
        for key in gone:
            del self.slow.texts[key]

    @rule()
    def flush(self) -> None:
        self.index.flush()

    @rule()
    def reopen(self) -> None:
        self.index.close()
        self.index = Index.open(self.path, WordEmbedder(), "write")

    @rule(question=_TEXTS, sessions=_SESSIONS)
    def probe(self, question: str, sessions: frozenset[int] | None) -> None:
        hits = self.index.probe(question, limit=200, session_ids=sessions)
        expected = self.slow.scores(question, sessions)
        assert {hit.sentence_id for hit in hits if hit.lexical is not None} == set(expected)
        wanted = {key for key, row in self.slow.texts.items() if sessions is None or row[0] in sessions}
        assert {hit.sentence_id for hit in hits} == wanted
        assert all(hit.session_id == self.slow.texts[hit.sentence_id][0] for hit in hits)

    @invariant()
    def counts(self) -> None:
        if hasattr(self, "index"):
            assert self.index.n_sentences == len(self.slow.texts)
            assert self.index.high_water == (self.next_id - 1 if self.next_id else None)

    def teardown(self) -> None:
        if hasattr(self, "index"):
            self.index.close()
            assert Index.open(self.path, None, "read").check() == []
        self.folder.cleanup()


IndexMachine.TestCase.settings = settings(max_examples=6, stateful_step_count=12, deadline=None)
TestIndexMachine = IndexMachine.TestCase
