"""The client that blocks: sends calls over httpx, again where the service is busy.

Knows sending and waiting; what is sent and how answers are read is in the calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from livingkv.client import job_calls, memory_calls, session_calls
from livingkv.client.answers import AskResult, Job
from livingkv.client.call import Call, answer_of, check
from livingkv.client.connection import CHUNK_BYTES, Connection, arguments, part_of, told_plainly
from livingkv.client.errors import ApiError
from livingkv.client.methods import Method, Pages
from livingkv.client.retrying import Retries
from livingkv.client.server_events import EventReader, ask_event, stream_broke
from livingkv.client.waiting import Waiting

T = TypeVar("T")


class Client:
    """A connection to a service. Close it, or use it in `with`. Threads may share it.

    url, api_key: else LIVINGKV_URL and LIVINGKV_API_KEY. user: the scope of every call that names none. timeout_s: how
    long a call may be silent. Every call raises the errors of errors.py.
    """

    turn = Method(memory_calls.turn)
    search = Method(memory_calls.search)
    ask = Method(memory_calls.ask)
    sentences = Pages(memory_calls.sentences)
    sentence = Method(memory_calls.sentence)
    edit = Method(memory_calls.edit)
    forget_sentence = Method(memory_calls.forget_sentence)
    forget = Method(memory_calls.forget)
    would_forget = Method(memory_calls.would_forget)
    ingest = Method(job_calls.ingest)
    prune = Method(job_calls.prune)
    reembed = Method(job_calls.reembed)
    defrag = Method(job_calls.defrag)
    jobs = Method(job_calls.jobs)
    job = Method(job_calls.job)
    cancel = Method(job_calls.cancel)
    create_session = Method(session_calls.create_session)
    sessions = Pages(session_calls.sessions)
    session = Method(session_calls.session)
    forget_session = Method(session_calls.forget_session)
    would_forget_session = Method(session_calls.would_forget_session)
    change_session = Method(session_calls.change_session)
    save = Method(session_calls.save)
    restore = Method(session_calls.restore)
    fork = Method(session_calls.fork)
    import_file = Method(session_calls.import_file)
    stats = Method(session_calls.stats)
    version = Method(session_calls.version)

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._connection = Connection.of(url, api_key, user)
        self._retries = retries or Retries()
        self._http = httpx.Client(
            base_url=self._connection.url,
            headers=self._connection.headers(),
            timeout=timeout_s,
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"Client({self._connection.url!r}, user={self._connection.user!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. Calls after that raise RuntimeError."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """The answer to a call; what all methods do."""
        bound = call.bound(self._connection.user)

        def once() -> T:
            with told_plainly(bound):
                got = self._http.send(self._request(bound))
            return answer_of(bound, got.status_code, got.headers, got.content)

        return self._again_while_busy(once)

    @contextmanager
    def _open(self, call: Call[Any]) -> Iterator[Iterator[bytes]]:
        """The body of an answer, as it comes."""
        bound = call.bound(self._connection.user)

        def once() -> httpx.Response:
            with told_plainly(bound):
                got = self._http.send(self._request(bound), stream=True)
                if got.status_code >= 300:
                    try:
                        got.read()
                    finally:
                        got.close()
            check(got.status_code, got.headers, b"" if got.status_code < 300 else got.content)
            return got

        with ExitStack() as closing:
            got = self._again_while_busy(once)
            closing.callback(got.close)
            yield _told_plainly(bound, got)

    def _again_while_busy(self, once: Callable[[], T]) -> T:
        n_sent = 0
        while True:
            try:
                return once()
            except ApiError as error:
                n_sent += 1
                wait_s = self._retries.wait_s(error, n_sent)
                if wait_s is None:
                    raise
            time.sleep(wait_s)

    def _request(self, call: Call[Any]) -> httpx.Request:
        given = arguments(call)
        if call.upload is not None:
            given["content"] = _chunks(call.upload)
        return self._http.build_request(**given)

    @contextmanager
    def ask_stream(
        self,
        query: str,
        *,
        session: str | None = None,
        mode: memory_calls.Mode = "auto",
        max_tokens: int = 64,
        stop: str | Sequence[str] | None = None,
        user: str | None = None,
    ) -> Iterator[AskStream]:
        """As `ask`, while it is written: iterate over it for pieces of text; then its `answer` is the whole, with
        evidence. Leaving the block ends the work."""
        call = memory_calls.ask_stream(query, session=session, mode=mode, max_tokens=max_tokens, stop=stop, user=user)
        with self._open(call) as chunks:
            yield AskStream(chunks)

    def export(
        self, name: str, path: str | Path, *, kv: bool = True, decrypt: bool = False, user: str | None = None
    ) -> int:
        """Write a session to a file that `import_file` reads, its size in bytes. The file is there once it is whole.
        kv: False leaves its KV out; decrypt needs an admin's key."""
        whole, size = Path(path), 0
        part = part_of(whole)
        try:
            with (
                self._open(session_calls.export(name, kv=kv, decrypt=decrypt, user=user)) as chunks,
                part.open("wb") as file,
            ):
                for chunk in chunks:
                    size += file.write(chunk)
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
        return size

    def wait(
        self,
        job: Job | str,
        *,
        timeout_s: float | None = None,
        progress: Callable[[Job], None] | None = None,
        user: str | None = None,
    ) -> Job:
        """Wait until a job is done; its last state. progress: called with each state that is new. Raises JobFailed,
        or JobUnfinished after timeout_s: the job goes on then."""
        waiting = Waiting(timeout_s, progress)
        while True:
            found = self.job(job, user=user)
            pause_s = waiting.pause_s(found)
            if pause_s is None:
                return found
            time.sleep(pause_s)


class AskStream:
    """An answer while it is written. Iterate over it once."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks = chunks
        self._answer: AskResult | None = None

    def __iter__(self) -> Iterator[str]:
        reader = EventReader()
        for chunk in self._chunks:
            for event in reader.feed(chunk):
                found = ask_event(event)
                if isinstance(found, str):
                    yield found
                elif found is not None:
                    self._answer = found
                    return
        raise stream_broke()

    @property
    def answer(self) -> AskResult:
        """The whole answer; what was not iterated over is read first."""
        if self._answer is None:
            for _ in self:
                pass
        assert self._answer is not None, "the stream ends with it, or raises"
        return self._answer


def _told_plainly(call: Call[Any], response: httpx.Response) -> Iterator[bytes]:
    with told_plainly(call):
        yield from response.iter_bytes()


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
