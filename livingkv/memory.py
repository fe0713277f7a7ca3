"""A persistent memory: the write loop and the read loop, each in one screen.

Write (`ingest`): text, sentences, token ids, KV, pages, catalog commit, index.
Read (`ask`): question, probe, passages within the budget, pages, workspace, prefill of the question, decode, answer.
Knows the order of the steps; every step lives in its own module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from livingkv.answering import NOT_STORED, Clock, Prepared, Preparing, complete, evidence_of
from livingkv.confidence import Verdict, judge, judge_words
from livingkv.describing import session_info, store_stats
from livingkv.engine import Engine
from livingkv.errors import InputError, QuestionError
from livingkv.generation import collect
from livingkv.home import Home
from livingkv.models import LoadedModel
from livingkv.passages import Passage
from livingkv.pieces import source_digest, split_pieces
from livingkv.recall import QUESTION_LEAD, Probed, alone_or_grown, judge_hits, passages_for, probe
from livingkv.results import Answer, CheckReport, Ingested, Mode, SessionInfo, Stats, Timings, Turn
from livingkv.sampling import Sampler, Sampling
from livingkv.session_reader import Origin, SessionReader
from livingkv.settings import Settings
from livingkv.sources import check_text, read_source
from livingkv.stored_kv import StoredKV
from livingkv.text import split_sentences

OnText = Callable[[str], None]
OnProgress = Callable[[int, int], None]

CHAT = "chat"
"""Source name of what is said in a conversation."""


class Memory:
    """One store, open. A context manager; made by `Memory.open`. Not thread-safe. The model is loaded when first
    needed."""

    def __init__(self, home: Home) -> None:
        """Use `Memory.open`."""
        self._home = home

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        model: str | LoadedModel | None = None,
        settings: Settings | None = None,
        read_only: bool = False,
        create: bool = True,
    ) -> Self:
        """Open the store at `path`. Where there is none, the first ingest or chat makes it, unless `create` is False.

        model: a spec as for `load_model`, or a loaded model; None takes what the store was written with, else the
        default. settings: None takes the defaults with the store's codec. read_only: any number may be open beside
        one writer. Raises StoreNotFound, StoreLocked, FormatUnsupported, StoreUnwritable or InputError;
        FingerprintMismatch when a loaded model does not fit, else at the first use of the model.
        """
        return cls(Home(Path(path), model, settings, read_only=read_only, create=create))

    def ingest(
        self,
        source: str | Path,
        *,
        session: str = "default",
        text: bytes | None = None,
        progress: OnProgress | None = None,
    ) -> Ingested:
        """Read a file (or `text`, then `source` is only its name) into a session; all of it is durable on return.

        Committed about every `settings.commit_tokens`; an ingest that broke off goes on from there when it is called
        again, and bytes that the session holds already under that name are skipped. `progress` gets bytes done and
        in all. Raises SourceError before anything is changed; ModelError, StoreError: what was committed stands.
        """
        started, name, limit = perf_counter(), str(source), self._home.settings.max_line_bytes
        if text is None:
            text = read_source(source, max_line_bytes=limit)
        else:
            check_text(text, name, max_line_bytes=limit)
        store, digest = self._home.writable_store(), source_digest(text)
        row = self._home.session_for_writing(session)
        known = store.source(row.session_id, name, digest)
        if known is not None and known.complete:
            return Ingested(name, session, len(text), known.n_tokens, known.n_sentences, 0.0, skipped=True)
        done = known.n_bytes if known is not None else 0
        with self._reader(session) as reader:
            for piece in split_pieces(text, self._home.settings.commit_tokens, done):
                end = piece.byte_hi == len(text)
                origin = Origin(name, "document", digest, end_of_source=end)
                append = reader.read_text(text[piece.byte_lo : piece.byte_hi], piece.spans, origin)
                store.append(append)
                if progress is not None:
                    progress(piece.byte_hi, len(text))
        self._home.index_new_sentences()
        now = store.source(row.session_id, name, digest)
        assert now is not None, "it was committed just now"
        return Ingested(name, session, len(text), now.n_tokens, now.n_sentences, perf_counter() - started)

    def ask(
        self,
        question: str,
        *,
        session: str | None = None,
        mode: Mode = "auto",
        max_tokens: int = 64,
        sampling: Sampling | None = None,
        on_text: OnText | None = None,
    ) -> Answer:
        """Answer from what is stored, in one session or in all; changes nothing.

        Raises QuestionError (empty, or longer than the hot window), SessionNotFound, ModelError or StoreError.
        """
        clock = Clock(perf_counter())
        if mode == "extract":
            return self._extract(question, session, clock)
        engine = self._ready(question, clock)
        before = engine.runner.n_prefilled
        probed = probe(self._home.store(), self._home.index(), question, session, self._home.settings.n_candidates)
        clock.probe = clock.lap() - clock.load
        kv = StoredKV(self._home.store(), engine, self._home.pages())
        judged = judge_hits(engine, kv, probed, question, self._home.n_sinks)
        verdict = judge(judged)
        passages = passages_for(self._home.store(), judged[: verdict.n_recalled], self._home.settings.recall_tokens)
        if (mode == "auto" and not verdict.confident) or (mode in ("kv", "ground") and not passages):
            prefilled = engine.runner.n_prefilled - before
            return self._abstain(probed, passages, verdict, prefilled, clock, on_text)
        chosen = verdict.mode if mode == "auto" else mode
        if chosen == "kv" and len(passages) == 1:
            passages = [alone_or_grown(engine, kv, probed, question, self._home.n_sinks, passages[0])]
        prepared = self._prepare(chosen, probed, kv, passages, question, max_tokens)
        clock.fetch = clock.lap() - clock.probe - clock.load
        generated = complete(
            engine,
            prepared.state,
            prepared.token_ids,
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            clock=clock,
            on_text=on_text,
        )
        return Answer(
            answer=generated.text.strip(),
            mode=prepared.mode,
            confident=verdict.confident,
            confidence=verdict.confidence,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=prepared.reused_tokens,
            prefilled_tokens=engine.runner.n_prefilled - before - max(len(generated.token_ids) - 1, 0),
            timings_ms=_timings(clock),
            reason=prepared.reason or (verdict.reason if mode == "auto" else "asked for"),
        )

    def chat(
        self,
        message: str,
        *,
        session: str = "default",
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        on_text: OnText | None = None,
    ) -> Turn:
        """One turn of a conversation that goes on from the session's stored state; the turn is durable on return.

        Raises QuestionError, ModelError or StoreError; the session is unchanged then.
        """
        clock = Clock(perf_counter())
        engine = self._ready(message, clock)
        before, words = engine.runner.n_prefilled, engine.words
        self._home.writable_store()
        with self._reader(session) as reader:
            reused = reader.n_reused
            if not self._home.at_message_start(reader.session_id):
                reader.frame(words.encode(QUESTION_LEAD))
            text = message.encode()
            user = reader.read_text(text, split_sentences(text), Origin(CHAT, "user"))
            logits = reader.open_answer()
            clock.first_token = clock.lap()
            prefilled = engine.runner.n_prefilled - before
            tokens = engine.runner.generate(logits, reader.hot, Sampler(sampling or Sampling()), max_tokens)
            generated = collect(tokens, words.stream(), max_tokens, on_text=on_text)
            assistant = reader.close_answer(generated, Origin(CHAT, "assistant"))
            self._home.store().append_all([user, assistant])
        self._home.index_new_sentences()
        row = self._home.store().session(session)
        return Turn(
            answer=generated.text.strip(),
            mode="resume",
            confident=True,
            confidence=1.0,
            evidence=(),
            n_tokens=row.n_tokens,
            reused_tokens=reused,
            prefilled_tokens=prefilled,
            timings_ms=_timings(clock),
            reason="the conversation goes on from its stored state",
            turn=row.n_turns,
        )

    def _extract(self, question: str, session: str | None, clock: Clock) -> Answer:
        """Mode extract: the stored text of the best passage, verbatim. The index alone decides; no model is loaded."""
        self._check_question(question)
        probed = probe(self._home.store(), self._home.index(), question, session, self._home.settings.n_candidates)
        clock.probe = clock.lap()
        verdict = judge_words(probed.hits)
        passages = passages_for(
            self._home.store(), probed.hits[: verdict.n_recalled], self._home.settings.recall_tokens
        )
        clock.fetch = clock.lap() - clock.probe
        return Answer(
            answer=passages[0].best.sentence.text.strip() if passages else NOT_STORED,
            mode="extract",
            confident=verdict.confident,
            confidence=verdict.confidence,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=0,
            prefilled_tokens=0,
            timings_ms=_timings(clock),
            reason=verdict.reason,
        )

    def _abstain(
        self,
        probed: Probed,
        passages: list[Passage],
        verdict: Verdict,
        prefilled: int,
        clock: Clock,
        on_text: OnText | None,
    ) -> Answer:
        """No answer is generated: nothing stored seems to hold one."""
        if on_text is not None:
            on_text(NOT_STORED)
        return Answer(
            answer=NOT_STORED,
            mode=verdict.mode,
            confident=False,
            confidence=verdict.confidence,
            evidence=evidence_of(passages),
            n_tokens=probed.n_tokens,
            reused_tokens=0,
            prefilled_tokens=prefilled,
            timings_ms=_timings(clock),
            reason=verdict.reason,
        )

    def _prepare(
        self, mode: Mode, probed: Probed, kv: StoredKV, passages: list[Passage], question: str, max_tokens: int
    ) -> Prepared:
        """The workspace of one mode, ready for the question."""
        engine = self._home.engine()
        placement = self._home.settings.placement
        preparing = Preparing(engine, kv, probed, passages, question, self._home.n_sinks, max_tokens, placement)
        if mode in ("exact", "resume"):
            if len(probed.sessions) != 1:
                raise InputError("session", "none", f"mode {mode} needs one: name a session of this store")
            session = probed.sessions[0]
            if mode == "exact":
                return preparing.exact_mode(session)
            with self._home.hot_window(session) as hot:
                return preparing.resume_mode(hot)
        if mode == "ground":
            return preparing.ground_mode()
        return preparing.kv_mode()

    def _ready(self, question: str, clock: Clock) -> Engine:
        """The engine, after the question was found fit to be read in one block behind the sinks."""
        self._check_question(question)
        loaded = self._home.load_ms
        engine = self._home.engine()
        clock.load = self._home.load_ms - loaded
        n_tokens = len(engine.words.encode(question))
        if n_tokens > self._home.settings.window_tokens:
            limit = self._home.settings.window_tokens
            allowed = f"at most {limit} tokens, the hot window, are allowed: ingest the text instead"
            raise QuestionError("question", f"{n_tokens} tokens", allowed)
        return engine

    @staticmethod
    def _check_question(question: str) -> None:
        if not question.strip():
            raise QuestionError("question", "no words", "a question in words is needed")

    @contextmanager
    def _reader(self, session: str) -> Iterator[SessionReader]:
        """The reading end of a session; after an error in the block its hot window is dropped."""
        row = self._home.session_for_writing(session)
        with self._home.hot_window(row) as hot:
            yield SessionReader.of(self._home.engine(), hot, row)

    def session(self, name: str) -> SessionInfo:
        """One session. Raises SessionNotFound or StoreNotFound."""
        return session_info(self._home.store().session(name))

    def sessions(self) -> list[SessionInfo]:
        """All sessions, oldest first."""
        return [session_info(row) for row in self._home.store().sessions()]

    def text(self, session: str) -> bytes:
        """All text of a session, byte for byte as it was given. Raises SessionNotFound."""
        store = self._home.store()
        return store.text(store.session(session).session_id)

    def stats(self) -> Stats:
        """Counts and bytes, everything that takes disk space named. Needs no model."""
        return store_stats(self._home.store())

    def check(self) -> CheckReport:
        """Verify everything that is stored. Needs no model; never raises for damage, it reports it."""
        return self._home.store().check()

    def close(self) -> None:
        """Close store, index and model. Everything acknowledged is durable already."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _timings(clock: Clock) -> Timings:
    return Timings(clock.load, clock.probe, clock.fetch, clock.first_token, clock.lap())
