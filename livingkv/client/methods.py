"""Methods of the clients, made from the functions that build calls: the same arguments, checked by types, and the
answer instead of the call. Each exists twice, for a client that blocks and for one that is awaited.

Knows descriptors; knows no route and no HTTP.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import wraps
from typing import Any, Generic, ParamSpec, Protocol, Self, TypeVar, overload

from livingkv.client.answers import Page
from livingkv.client.call import Call

P = ParamSpec("P")
T = TypeVar("T")


class Sender(Protocol):
    """A client that blocks."""

    def send(self, call: Call[T]) -> T:
        """The answer to a call."""


class AsyncSender(Protocol):
    """A client that is awaited."""

    async def send(self, call: Call[T]) -> T:
        """The answer to a call."""


class Method(Generic[P, T]):
    """Sends the call and returns the answer."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, client: Sender, owner: type[Any]) -> Callable[P, T]: ...
    def __get__(self, client: Sender | None, owner: type[Any]) -> Self | Callable[P, T]:
        if client is None:
            return self

        @wraps(self._build)
        def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return client.send(self._build(*args, **kwargs))

        return send


class AsyncMethod(Generic[P, T]):
    """The same, awaited."""

    def __init__(self, build: Callable[P, Call[T]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, client: AsyncSender, owner: type[Any]) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: AsyncSender | None, owner: type[Any]) -> Self | Callable[P, Awaitable[T]]:
        if client is None:
            return self

        @wraps(self._build)
        async def send(*args: P.args, **kwargs: P.kwargs) -> T:
            return await client.send(self._build(*args, **kwargs))

        return send


class Pages(Generic[P, T]):
    """Iterates over what all pages of a list hold."""

    def __init__(self, build: Callable[P, Call[Page[T]]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, client: Sender, owner: type[Any]) -> Callable[P, Iterator[T]]: ...
    def __get__(self, client: Sender | None, owner: type[Any]) -> Self | Callable[P, Iterator[T]]:
        if client is None:
            return self

        @wraps(self._build)
        def every(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
            call: Call[Page[T]] | None = self._build(*args, **kwargs)
            while call is not None:
                page = client.send(call)
                yield from page.items
                call = None if page.next_cursor is None else call.at(page.next_cursor)

        return every


class AsyncPages(Generic[P, T]):
    """The same with `async for`."""

    def __init__(self, build: Callable[P, Call[Page[T]]]) -> None:
        self._build = build
        self.__doc__ = build.__doc__

    @overload
    def __get__(self, client: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, client: AsyncSender, owner: type[Any]) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: AsyncSender | None, owner: type[Any]) -> Self | Callable[P, AsyncIterator[T]]:
        if client is None:
            return self

        @wraps(self._build)
        async def every(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
            call: Call[Page[T]] | None = self._build(*args, **kwargs)
            while call is not None:
                page = await client.send(call)
                for one in page.items:
                    yield one
                call = None if page.next_cursor is None else call.at(page.next_cursor)

        return every
