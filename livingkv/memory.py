"""A persistent memory: the write loop and the read loop, each in one screen.

Write (`ingest`): text, sentences, token ids, KV, pages, catalog commit, index.
Read (`ask`): question, probe, passages within the budget, pages, workspace, prefill of the question, decode, answer.
Knows the order of the steps; every step lives in its own module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from livingkv.asking import Asking, check_ask
from livingkv.auto_answer import Auto
from livingkv.conversation import ask_beside, check_recall
from livingkv.describing import added_messages, turn_of
from livingkv.extracting import extract
from livingkv.generation import collect
from livingkv.home import Home
from livingkv.keeping import Keeping
from livingkv.looking import Looking
from livingkv.messages import CHAT, check_messages, read_messages, read_user_message
from livingkv.model_choice import ModelChoice
from livingkv.model_fetch import Progress
from livingkv.models import LoadedModel
from livingkv.pieces import source_digest, split_pieces
from livingkv.results import (
    AddedMessages,
    Answer,
    Ingested,
    Mode,
    Recall,
    Turn,
)
from livingkv.sampling import Sampler, Sampling
from livingkv.scope import Scope
from livingkv.session_reader import Origin, SessionReader
from livingkv.settings import Settings
from livingkv.sources import check_text, read_source
from livingkv.store import IdempotencyKey, SessionRow, check_session_name
from livingkv.writing import WriteBehind

OnText = Callable[[str], None]
OnProgress = Callable[[int, int], None]


class Memory(Looking, Keeping):
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
        model: str | ModelChoice | LoadedModel | None = None,
        settings: Settings | None = None,
        read_only: bool = False,
        create: bool = True,
    ) -> Self:
        """Open the store at `path`. Where there is none, the first ingest or chat makes it, unless `create` is False.

        model: a spec as for `load_model`, a `ModelChoice`, or a loaded model; None takes what the store was written
        with, else the default. settings: None takes the defaults with the store's codec. read_only: any number may be
        open beside one writer. Raises StoreNotFound, StoreLocked, FormatUnsupported, StoreUnwritable or InputError;
        FingerprintMismatch when a loaded model does not fit, else at the first use of the model.
        """
        return cls(Home(Path(path), model, settings, read_only=read_only, create=create))

    def ready(self, session: str = "default", *, kv: bool = True, progress: Progress | None = None) -> None:
        """Check all that can be checked before a text for `session` is there, and load the model; changes nothing.

        `progress` gets phases of finding, fetching and loading the model. Raises InputError (the name, or kv=False for
        a session that keeps KV), StoreUnwritable, StoreError or ModelError.
        """
        check_session_name(session)
        self._home.known_session(session, kv=kv)
        self._home.ready_to_write(progress)

    def ingest(
        self,
        source: str | Path,
        *,
        session: str = "default",
        text: bytes | None = None,
        kv: bool = True,
        encrypt: bool = False,
        progress: OnProgress | None = None,
    ) -> Ingested:
        """Read a file (or `text`, then `source` is only its name) into a session; all of it is durable on return.

        Committed about every `settings.commit_tokens`; an ingest that broke off goes on from there when it is called
        again, and bytes that the session holds already under that name are skipped. Where the file changed since, the
        new text is a source beside the part that was read (`Ingested.n_stale_sentences`). kv=False makes a
        new session text-only: nothing is run through the model, recall reads its passages' text. encrypt makes
        a new session encrypted, with a key that `forget` destroys (`settings.key_folder`). `progress` gets bytes
        done and in all. Raises SourceError, or InputError where kv=False meets a session that keeps KV, before
        anything is changed; ModelError, StoreError: what was committed stands.
        """
        started, name, limit = perf_counter(), str(source), self._home.settings.max_line_bytes
        if text is None:
            text = read_source(source, max_line_bytes=limit)
        else:
            check_text(text, name, max_line_bytes=limit)
        check_session_name(session)
        self._home.known_session(session, kv=kv, encrypt=encrypt)
        store = self._home.writable_store()
        row = self._home.session_for_writing(session, kv=kv, encrypt=encrypt)
        digest, known = store.find_source(row.session_id, name, source_digest(text), text)
        if known is not None and known.complete:
            return Ingested(name, session, len(text), known.n_tokens, known.n_sentences, 0.0, skipped=True)
        parts = store.sources(row.session_id)
        stale = sum(
            part.n_sentences for part in parts if part.name == name and part.digest != digest and not part.complete
        )
        done = known.n_bytes if known is not None else 0
        with self._reader(row, document=True) as reader, WriteBehind(store.append) as behind:
            for piece in split_pieces(
                text, self._home.settings.commit_tokens, done, self._home.engine().runner.between
            ):
                end = piece.byte_hi
                origin = Origin(name, "document", digest, end_of_source=end == len(text))
                draft = reader.read_ahead(text[piece.byte_lo : piece.byte_hi], piece.spans, origin)
                _tell(progress, behind.durable(), len(text))
                _tell(progress, behind.put(draft, end), len(text))
            _tell(progress, behind.finish(), len(text))
        self._home.index.feed_if_possible()
        now = store.source(row.session_id, name, digest)
        assert now is not None, "it was committed just now"
        seconds = perf_counter() - started
        return Ingested(name, session, len(text), now.n_tokens, now.n_sentences, seconds, n_stale_sentences=stale)

    def ask(
        self,
        question: str,
        *,
        session: str | Scope | None = None,
        mode: Mode = "auto",
        max_tokens: int = 64,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Answer:
        """Answer from what is stored, in one session, those of a `Scope` or all. Ends before a `stop` string.

        Mode auto gives `on_text` the whole answer at once, because it is checked first; other modes stream it.

        Raises QuestionError (empty, or longer than the hot window), SessionNotFound, ModelError or StoreError.
        """
        check_ask(question, mode, max_tokens)
        if mode == "extract":
            return _told(extract(self._home, question, Scope.of(session)).answer, on_text)
        asking = Asking(self._home, question)
        probed = asking.probe(session)
        if mode == "auto":
            answer = Auto(asking, probed, asking.judge(probed), max_tokens, sampling or Sampling(), stop).answer()
            _told(answer, on_text)
        elif mode in ("resume", "exact"):  # nothing of what is recalled is attended: it is evidence, for afterwards
            answer = asking.read(
                mode,
                probed,
                lambda: asking.recall(probed),
                max_tokens,
                sampling or Sampling(),
                stop,
                on_text,
                "asked for",
            )
        else:
            passages = asking.recall(probed)
            if mode in ("kv", "ground") and not passages:
                return _told(
                    asking.abstain(probed, passages, "nothing stored shares a word or a meaning with it"), on_text
                )
            answer = asking.read(mode, probed, passages, max_tokens, sampling or Sampling(), stop, on_text, "asked for")
        if answer.confident or mode != "auto":
            self._home.note_recall(asking.recalled)
        return answer

    def chat(
        self,
        message: str,
        *,
        session: str = "default",
        max_tokens: int = 256,
        recall: Recall = "all",
        encrypt: bool = False,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        on_text: OnText | None = None,
    ) -> Turn:
        """One turn of a conversation that goes on from the session's stored state; the turn is durable on return.
        encrypt: as for `ingest`.

        A question whose answer the hot window does not hold is asked of memory first (recall: what is older in this
        session and all others but encrypted ones, or this session alone, or nothing); an answer that convinces becomes
        the assistant's, given to `on_text` at once, else the model answers from its hot window.
        It ends before a `stop` string, which is kept, having been generated, and is not part of the answer.
        Raises QuestionError, InputError, ModelError or StoreError; the session is unchanged then.
        """
        check_ask(message, "resume", max_tokens)
        check_recall(recall)
        check_session_name(session)
        asking = Asking(self._home, message)
        engine, picking = asking.engine, sampling or Sampling()
        self._home.writable_store()
        row = self._home.session_for_writing(session, encrypt=encrypt)
        beside = ask_beside(self._home, asking, message, row, recall, max_tokens, picking, stop)
        with self._reader(row) as reader:
            assert reader.hot is not None
            reused, at_start = reader.n_reused, self._home.at_message_start(reader.session_id)
            user = read_user_message(reader, message, at_start=at_start)
            logits = reader.open_answer()
            engine.settle()
            asking.clock.first_token = asking.clock.lap()
            prefilled = asking.n_prefilled()
            if beside.words is None:
                tokens = engine.runner.generate(logits, reader.hot, Sampler(picking), max_tokens)
                generated = collect(tokens, engine.words.stream(), max_tokens, stop=stop, on_text=on_text)
            else:
                generated, prefilled = beside.words, prefilled + len(beside.words.token_ids)
                if on_text is not None:
                    on_text(generated.text)
            assistant = reader.close_answer(generated, Origin(CHAT, "assistant"))
            self._home.store().append_all([user, assistant])
        self._home.index.feed_if_possible()
        if beside.words is not None:
            self._home.note_recall(asking.recalled)
        row = self._home.store().session(session)
        return turn_of(row, generated.text.strip(), beside.answer, reused, prefilled, asking.clock.timings())

    def add_messages(
        self,
        messages: Iterable[Mapping[str, object]],
        *,
        session: str = "default",
        encrypt: bool = False,
        once: IdempotencyKey | None = None,
    ) -> AddedMessages:
        """Read messages of a conversation that took place elsewhere, `{"role": "user" or "assistant", "content": text}`
        each, oldest first, as turns of the session; nothing is generated. encrypt: as for `ingest`.

        All of them are durable on return, or none is there: they are in memory until then, so that a long history is
        better added in parts. A second call with the same messages adds them again, unless both have the same `once`:
        that is stored with the messages and known for a day; the answer has their sentence ids then and counts nothing.
        Raises InputError (KeyReused where the key was another request's), ModelError or StoreError: the session is
        unchanged then, and one that was made for them is empty.
        """
        started, said = perf_counter(), check_messages(messages)
        check_session_name(session)
        self._home.writable_store()
        if once is not None and (known := self._home.request(once)) is not None:
            return AddedMessages(session, 0, 0, 0, 0, 0, perf_counter() - started, tuple(known.sentence_ids))
        engine, before = self._home.engine(), self._home.session_for_writing(session, encrypt=encrypt)
        with self._reader(before, document=before.text_only) as reader:
            at_start, store, runner = self._home.at_message_start(reader.session_id), self._home.store(), engine.runner
            n_read = runner.n_prefilled
            appends = read_messages(reader, said, at_start=at_start)
            n_prefilled = runner.n_prefilled - n_read
            sentence_ids = store.append_all(appends, once)
        self._home.index.feed_if_possible()
        return added_messages(
            before,
            store.session(session),
            len(said),
            perf_counter() - started,
            sentence_ids=sentence_ids,
            n_reused=reader.n_reused,
            n_prefilled=n_prefilled,
        )

    @contextmanager
    def _reader(self, row: SessionRow, *, document: bool = False) -> Iterator[SessionReader]:
        """The reading end of a session; after an error in the block its hot window is dropped."""
        if document and row.text_only:
            yield SessionReader.of(self._home.engine(), None, row)
            return
        with self._home.hot_window(row, document=document) as hot:
            yield SessionReader.of(self._home.engine(), hot, row)

    def close(self) -> None:
        """Close store, index and model. Everything acknowledged is durable already."""
        self._home.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def _tell(progress: OnProgress | None, durable: Sequence[int], n_bytes: int) -> None:
    if progress is not None:
        for done in durable:
            progress(done, n_bytes)


def _told(answer: Answer, on_text: OnText | None) -> Answer:
    if on_text is not None:
        on_text(answer.answer)
    return answer
