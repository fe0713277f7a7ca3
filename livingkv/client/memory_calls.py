"""The calls about what is remembered, one function for each route of docs/API.md. They are the contracts of the methods
of `Client` and `AsyncClient`: the arguments are those, and `Call[T]` means that the method returns a T.

In all of them: `session` is a name without a slash; `user` is the scope within the tenant, the client's own where it is
left out; `idempotency_key` makes a call that stores safe to repeat (one is made where none is given).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from livingkv.client.answers import AskResult, Counts, Hit, Page, Receipt, Sentence, TurnResult
from livingkv.client.call import Call, segment
from livingkv.client.parsing import each, item, parsed

Mode = Literal["auto", "kv", "ground", "extract", "exact", "resume"]
Messages = str | Sequence[Mapping[str, str]]


def turn(
    messages: Messages,
    *,
    session: str = "default",
    query: str | None = None,
    mode: Mode = "extract",
    k: int = 5,
    max_tokens: int = 64,
    recall: Literal["all", "session"] = "all",
    user: str | None = None,
    idempotency_key: str | None = None,
) -> Call[TurnResult]:
    """What was known before the messages; then they are stored, durably. messages: `{"role": "user" or "assistant",
    "content": ...}` each, or one text that the user said. query: what to look for; left out, what was said."""
    listed = [{"role": "user", "content": messages}] if isinstance(messages, str) else [dict(one) for one in messages]
    body = {
        "messages": listed,
        "session": session,
        "query": query,
        "mode": mode,
        "k": k,
        "max_tokens": max_tokens,
        "recall": recall,
    }
    return Call(
        "POST",
        "/v1/memory/turn",
        lambda told: parsed(TurnResult, told),
        body=body,
        user=user,
        stores=True,
        idempotency_key=idempotency_key,
    )


def search(
    query: str,
    *,
    session: str | None = None,
    k: int = 10,
    source: str | None = None,
    role: str | None = None,
    user: str | None = None,
) -> Call[tuple[Hit, ...]]:
    """The k sentences that a question is most about, the best first. No model runs."""
    body = {"query": query, "session": session, "k": k, "source": source, "role": role}
    return Call("POST", "/v1/memory/search", lambda told: each(Hit, told, "hits"), body=body, user=user)


def ask(
    query: str,
    *,
    session: str | None = None,
    mode: Mode = "auto",
    max_tokens: int = 64,
    stop: str | Sequence[str] | None = None,
    user: str | None = None,
) -> Call[AskResult]:
    """An answer from the memory, with its evidence and confidence."""
    body = _asked(query, session, mode, max_tokens, stop)
    return Call("POST", "/v1/memory/ask", lambda told: parsed(AskResult, told), body=body, user=user)


def ask_stream(
    query: str,
    *,
    session: str | None = None,
    mode: Mode = "auto",
    max_tokens: int = 64,
    stop: str | Sequence[str] | None = None,
    user: str | None = None,
) -> Call[AskResult]:
    """The same as it is written: iterate inside `with` (`async with`) for its pieces of text; `answer` is the whole,
    with evidence, once they have all come. Leaving the block ends the work."""
    body = {**_asked(query, session, mode, max_tokens, stop), "stream": True}
    return Call("POST", "/v1/memory/ask", lambda told: parsed(AskResult, told), body=body, user=user)


def _asked(
    query: str, session: str | None, mode: str, max_tokens: int, stop: str | Sequence[str] | None
) -> dict[str, Any]:
    stops = stop if stop is None or isinstance(stop, str) else list(stop)
    return {"query": query, "session": session, "mode": mode, "max_tokens": max_tokens, "stop": stops}


def sentences(
    *,
    session: str | None = None,
    source: str | None = None,
    role: str | None = None,
    limit: int = 50,
    user: str | None = None,
) -> Call[Page[Sentence]]:
    """Everything that is stored, in order: an iterator, which asks for `limit` at a time."""
    query = {"session": session, "source": source, "role": role, "limit": limit}
    return Call("GET", "/v1/memory", _sentence_page, query=query, user=user)


def _sentence_page(told: Any) -> Page[Sentence]:
    return Page(each(Sentence, told, "sentences"), told.get("next_cursor"))


def sentence(sentence_id: str, *, user: str | None = None) -> Call[Sentence]:
    """One sentence with the texts before and after it."""
    return Call("GET", f"/v1/memory/{segment(sentence_id)}", lambda told: parsed(Sentence, told), user=user)


def edit(sentence_id: str, text: str, *, user: str | None = None) -> Call[Sentence]:
    """Put another text in a sentence's place: the new sentence; the old one is forgotten."""
    path = f"/v1/memory/{segment(sentence_id)}"
    return Call("PATCH", path, lambda told: parsed(Sentence, told), body={"text": text}, user=user)


def forget_sentence(sentence_id: str, *, user: str | None = None) -> Call[Receipt]:
    """Forget one sentence: text, KV, vector and index entry."""
    return Call("DELETE", f"/v1/memory/{segment(sentence_id)}", receipt_of, user=user)


def forget(
    *,
    session: str | None = None,
    source: str | None = None,
    ids: Sequence[str] | None = None,
    everything: bool = False,
    deep: bool = False,
    user: str | None = None,
    idempotency_key: str | None = None,
) -> Call[Receipt]:
    """Forget a session, one source of it, sentences by id, or everything. deep: what was computed from it too.
    `would_forget` tells the counts before."""
    body = _forgotten(session, source, ids, everything, deep)
    return Call(
        "POST",
        "/v1/memory/forget",
        receipt_of,
        body=body,
        user=user,
        stores=True,
        idempotency_key=idempotency_key,
    )


def would_forget(
    *,
    session: str | None = None,
    source: str | None = None,
    ids: Sequence[str] | None = None,
    everything: bool = False,
    deep: bool = False,
    user: str | None = None,
) -> Call[Counts]:
    """What `forget` with the same arguments would forget. Nothing is changed."""
    body = {**_forgotten(session, source, ids, everything, deep), "dry_run": True}
    return Call("POST", "/v1/memory/forget", counts_of, body=body, user=user)


def _forgotten(
    session: str | None, source: str | None, ids: Sequence[str] | None, everything: bool, deep: bool
) -> dict[str, Any]:
    listed = list(ids) if ids is not None else None
    return {"session": session, "source": source, "ids": listed, "everything": everything or None, "deep": deep}


def receipt_of(told: Any) -> Receipt:
    """The receipt in an answer."""
    return parsed(Receipt, item(told, "receipt"), "receipt")


def counts_of(told: Any) -> Counts:
    """The counts of what would be forgotten."""
    return parsed(Counts, item(told, "counts"), "counts")
