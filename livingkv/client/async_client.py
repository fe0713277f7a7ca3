"""The client that is awaited: sends calls over httpx, again where the service is busy.

Knows sending and waiting; what is sent and how answers are read is in the calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import httpx

from livingkv.client import job_calls, memory_calls, session_calls
from livingkv.client.answers import AskResult, Job
from livingkv.client.call import Call, answer_of, check
from livingkv.client.connection import CHUNK_BYTES, Connection, arguments, part_of, told_plainly
from livingkv.client.errors import ApiError
from livingkv.client.methods import AsyncMethod, AsyncPages
from livingkv.client.retrying import Retries
from livingkv.client.server_events import EventReader, ask_event, stream_broke
from livingkv.client.waiting import Waiting

T = TypeVar("T")


class AsyncClient:
    """A connection to a service. Close it, or use it in `async with`. Tasks may share it.

    url, api_key: else LIVINGKV_URL and LIVINGKV_API_KEY. user: the scope of every call that names none. timeout_s: how
    long a call may be silent. Every call raises the errors of errors.py.
    """

    turn = AsyncMethod(memory_calls.turn)
    search = AsyncMethod(memory_calls.search)
    ask = AsyncMethod(memory_calls.ask)
    sentences = AsyncPages(memory_calls.sentences)
    sentence = AsyncMethod(memory_calls.sentence)
    edit = AsyncMethod(memory_calls.edit)
    forget_sentence = AsyncMethod(memory_calls.forget_sentence)
    forget = AsyncMethod(memory_calls.forget)
    would_forget = AsyncMethod(memory_calls.would_forget)
    ingest = AsyncMethod(job_calls.ingest)
    prune = AsyncMethod(job_calls.prune)
    reembed = AsyncMethod(job_calls.reembed)
    defrag = AsyncMethod(job_calls.defrag)
    jobs = AsyncMethod(job_calls.jobs)
    job = AsyncMethod(job_calls.job)
    cancel = AsyncMethod(job_calls.cancel)
    create_session = AsyncMethod(session_calls.create_session)
    sessions = AsyncPages(session_calls.sessions)
    session = AsyncMethod(session_calls.session)
    forget_session = AsyncMethod(session_calls.forget_session)
    would_forget_session = AsyncMethod(session_calls.would_forget_session)
    change_session = AsyncMethod(session_calls.change_session)
    save = AsyncMethod(session_calls.save)
    restore = AsyncMethod(session_calls.restore)
    fork = AsyncMethod(session_calls.fork)
    import_file = AsyncMethod(session_calls.import_file)
    stats = AsyncMethod(session_calls.stats)
    version = AsyncMethod(session_calls.version)

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        user: str | None = None,
        timeout_s: float = 60.0,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._connection = Connection.of(url, api_key, user)
        self._retries = retries or Retries()
        self._http = httpx.AsyncClient(
            base_url=self._connection.url,
            headers=self._connection.headers(),
            timeout=timeout_s,
            transport=transport,
        )

    def __repr__(self) -> str:
        return f"AsyncClient({self._connection.url!r}, user={self._connection.user!r})"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. Calls after that raise RuntimeError."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """The answer to a call; what all methods do."""
        bound = call.bound(self._connection.user)

        async def once() -> T:
            with told_plainly(bound):
                got = await self._http.send(self._request(bound))
            return answer_of(bound, got.status_code, got.headers, got.content)

        return await self._again_while_busy(once)

    @asynccontextmanager
    async def _open(self, call: Call[Any]) -> AsyncIterator[AsyncIterator[bytes]]:
        """The body of an answer, as it comes."""
        bound = call.bound(self._connection.user)

        async def once() -> httpx.Response:
            with told_plainly(bound):
                got = await self._http.send(self._request(bound), stream=True)
                if got.status_code >= 300:
                    try:
                        await got.aread()
                    finally:
                        await got.aclose()
            check(got.status_code, got.headers, b"" if got.status_code < 300 else got.content)
            return got

        async with AsyncExitStack() as closing:
            got = await self._again_while_busy(once)
            closing.push_async_callback(got.aclose)
            yield _told_plainly(bound, got)

    async def _again_while_busy(self, once: Callable[[], Awaitable[T]]) -> T:
        n_sent = 0
        while True:
            try:
                return await once()
            except ApiError as error:
                n_sent += 1
                wait_s = self._retries.wait_s(error, n_sent)
                if wait_s is None:
                    raise
            await anyio.sleep(wait_s)

    def _request(self, call: Call[Any]) -> httpx.Request:
        given = arguments(call)
        if call.upload is not None:
            given["content"] = _chunks(call.upload)
        return self._http.build_request(**given)

    @asynccontextmanager
    async def ask_stream(
        self,
        query: str,
        *,
        session: str | None = None,
        mode: memory_calls.Mode = "auto",
        max_tokens: int = 64,
        stop: str | Sequence[str] | None = None,
        user: str | None = None,
    ) -> AsyncIterator[AsyncAskStream]:
        """As `ask`, while it is written: iterate over it with `async for` for pieces of text; then its `answer()` is
        the whole, with evidence. Leaving the block ends the work."""
        call = memory_calls.ask_stream(query, session=session, mode=mode, max_tokens=max_tokens, stop=stop, user=user)
        async with self._open(call) as chunks:
            yield AsyncAskStream(chunks)

    async def export(
        self, name: str, path: str | Path, *, kv: bool = True, decrypt: bool = False, user: str | None = None
    ) -> int:
        """Write a session to a file that `import_file` reads, its size in bytes. The file is there once it is whole.
        kv: False leaves its KV out; decrypt needs an admin's key."""
        whole, size = Path(path), 0
        part = part_of(whole)
        try:
            async with (
                self._open(session_calls.export(name, kv=kv, decrypt=decrypt, user=user)) as chunks,
                await anyio.open_file(part, "wb") as file,
            ):
                async for chunk in chunks:
                    size += await file.write(chunk)
            part.replace(whole)
        finally:
            part.unlink(missing_ok=True)
        return size

    async def wait(
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
            found = await self.job(job, user=user)
            pause_s = waiting.pause_s(found)
            if pause_s is None:
                return found
            await anyio.sleep(pause_s)


class AsyncAskStream:
    """An answer while it is written. Iterate over it once."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self._answer: AskResult | None = None

    async def __aiter__(self) -> AsyncIterator[str]:
        reader = EventReader()
        async for chunk in self._chunks:
            for event in reader.feed(chunk):
                found = ask_event(event)
                if isinstance(found, str):
                    yield found
                elif found is not None:
                    self._answer = found
                    return
        raise stream_broke()

    async def answer(self) -> AskResult:
        """The whole answer; what was not iterated over is read first."""
        if self._answer is None:
            async for _ in self:
                pass
        assert self._answer is not None, "the stream ends with it, or raises"
        return self._answer


async def _told_plainly(call: Call[Any], response: httpx.Response) -> AsyncIterator[bytes]:
    with told_plainly(call):
        async for chunk in response.aiter_bytes():
            yield chunk


async def _chunks(path: Path) -> AsyncIterator[bytes]:
    async with await anyio.open_file(path, "rb") as file:
        while chunk := await file.read(CHUNK_BYTES):
            yield chunk
