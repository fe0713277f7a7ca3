"""The operations that a crash run does, made from a seed; what each makes of the sessions, and how a store does it.

Operation i is made from (seed, i) and the sessions before it, so that an oracle need only hold which were acknowledged.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from livingkv.store import Append, Store
from tests.store.store_cases import SessionModel, make_append

Sessions = dict[str, SessionModel]
Kind = Literal[
    "create", "fork", "rename", "pin", "drop", "repair", "forget", "forget source", "forget session", "prune",
    "copy", "defrag",
]  # fmt: skip
KINDS: tuple[Kind, ...] = get_args(Kind)
MOST_SESSIONS = 5


@dataclass(frozen=True)
class Change:
    """What is done to one session: `number` is a sentence, counted in it, the id of the new session, or how many
    sentences stay; `is_on`: whether it is encrypted, pinned, or copied with its KV."""

    kind: Kind
    name: str
    new_name: str = ""
    number: int = 0
    pages: frozenset[int] = frozenset()
    source: str = ""
    is_on: bool = False


Operation = Change | list[Append]


def operation(seed: str, number: int, sessions: Sessions) -> Operation:
    """Operation `number`: a change, or appends of one commit."""
    rng = random.Random(f"{seed}-{number}")
    new_name, n_made = f"session {number}", max((model.session_id for model in sessions.values()), default=0)
    if not sessions or (len(sessions) < MOST_SESSIONS - 1 and rng.random() < 0.1):
        return Change("create", new_name, number=n_made + 1, is_on=rng.random() < 0.5)
    name = rng.choice(sorted(sessions))
    if rng.random() < 0.5:
        return make_change(rng, sessions, name, new_name, n_made + 1)
    model, appends = sessions[name], []
    for _ in range(rng.choice([1, 1, 1, 3])):
        page_bytes = rng.choice([50, 700, 700, 12_000])
        append = make_append(model, rng, page_bytes=page_bytes, source=rng.choice(["book", "notes"]))
        appends.append(append)
        model = model.applied(append)
    return appends


def make_change(rng: random.Random, sessions: Sessions, name: str, new_name: str, next_id: int) -> Change:
    """A random change of session `name`; `next_id` is the id that a new session gets."""
    model = sessions[name]
    kind = rng.choice(KINDS[1:])
    sources = sorted({chunk.source for chunk in model.chunks} - {""})
    pages, is_on = range(len(model.pages)), rng.random() < 0.6
    has_room = len(sessions) < MOST_SESSIONS
    if kind == "drop":
        return Change(kind, name, pages=frozenset(rng.sample(pages, min(3, len(pages)))))
    if kind in ("fork", "copy") and has_room:
        return Change(kind, name, new_name, next_id, is_on=is_on)
    if kind == "prune" and model.sentences:
        return Change(kind, name, number=max(0, len(model.sentences) - rng.randint(1, 4)))
    if kind == "forget" and model.sentences:
        return Change(kind, name, number=rng.randrange(len(model.sentences)))
    if kind == "forget source" and sources and is_on:
        return Change(kind, name, source=rng.choice(sources))
    if kind == "forget session" and len(sessions) > 1 and model.session_id < next_id - 1:
        return Change(kind, name)
    if kind in ("rename", "pin", "repair"):
        return Change(kind, name, new_name, is_on=is_on)
    return Change("defrag", name)


def applied(sessions: Sessions, what: Operation) -> Sessions:
    """The sessions after an operation."""
    if isinstance(what, Change):
        return _changed(sessions, what)
    result = dict(sessions)
    for append in what:
        name = next(model.name for model in result.values() if model.session_id == append.session_id)
        result[name] = result[name].applied(append)
    return result


def _changed(sessions: Sessions, what: Change) -> Sessions:
    if what.kind == "create":
        return sessions | {what.name: SessionModel(what.number, what.name, encrypted=what.is_on)}
    model, result = sessions[what.name], dict(sessions)
    if what.kind == "fork":
        result[what.new_name] = model.copied(what.number, what.new_name, kv=True)
    elif what.kind == "copy":
        result[what.new_name] = model.copied(what.number, what.new_name, kv=what.is_on)
    elif what.kind == "rename":
        result = {what.new_name if name == what.name else name: each for name, each in sessions.items()}
        result[what.new_name] = replace(model, name=what.new_name)
    elif what.kind == "forget session":
        del result[what.name]
    else:
        result[what.name] = _changed_session(model, what)
    return result


def _changed_session(model: SessionModel, what: Change) -> SessionModel:
    if what.kind == "pin":
        return replace(model, pinned=what.is_on)
    if what.kind == "drop":
        return model.without_pages(what.pages)
    if what.kind == "repair":
        return model.repaired()
    if what.kind == "forget":
        return model.without_sentence(what.number)
    if what.kind == "forget source":
        return model.without_source(what.source)
    return model.pruned(what.number) if what.kind == "prune" else model


def perform(store: Store, what: Operation, sessions: Sessions, exports: Path) -> None:
    """Do an operation on a store that holds `sessions`; durable on return."""
    if not isinstance(what, Change):
        store.append_all(what)
    elif what.kind == "create":
        store.create_session(what.name, encrypt=what.is_on)
    else:
        _perform_change(store, what, sessions[what.name], exports)


def _perform_change(store: Store, what: Change, model: SessionModel, exports: Path) -> None:
    session_id = model.session_id
    if what.kind == "fork":
        store.fork(session_id, what.new_name)
    elif what.kind == "copy":
        path = exports / f"{what.new_name}.lkv"
        store.export_session(session_id, path, kv=what.is_on, decrypt=model.encrypted)
        store.import_session(path, name=what.new_name, kv=what.is_on, encrypt=model.encrypted)
    elif what.kind == "rename":
        store.rename(session_id, what.new_name)
    elif what.kind == "pin":
        store.pin(session_id, pinned=what.is_on)
    elif what.kind == "drop":
        store.drop_pages(session_id, what.pages)
    elif what.kind == "repair":
        store.replace_pages(session_id, {page: model.pages[page] for page in model.missing}, tail=model.tail)
    elif what.kind == "forget":
        own = [each for each in store.sentences_after(None, 1 << 30) if each.session_id == session_id]
        store.forget_sentences([own[what.number].sentence_id])
    elif what.kind == "forget source":
        store.forget_source(session_id, what.source)
    elif what.kind == "forget session":
        store.forget_session(session_id)
    elif what.kind == "prune":
        store.prune(session_id, keep=what.number)
    else:
        store.defrag()
