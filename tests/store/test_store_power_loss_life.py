"""Power loss among all that happens to sessions: what is found is the state before or after, never a mixture, and what
was acknowledged as forgotten is in no file."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from livingkv.errors import RecordDamaged
from livingkv.store import SentenceRecord, Store
from livingkv.store.stats import folder_bytes
from tests.store.crash_driver import open_store, require_whole, tailless
from tests.store.crash_operations import Change, Operation, Sessions, applied, perform
from tests.store.power_loss import RecordingDisk, after_power_loss
from tests.store.store_cases import make_append, new_store, read_store

SEED = 20_261_130


@dataclass(frozen=True)
class Moment:
    """From event `n_events` on the store holds `sessions`, and no file holds `gone`. `what` made it so."""

    n_events: int
    what: str
    sessions: Sessions | None
    gone: frozenset[bytes]
    takes_pages: bool


class Recorder:
    """A store on a recording disk, and the moments of its life."""

    def __init__(self, folder: Path, *, syncs: bool) -> None:
        self.root = folder / "origin"
        self.disk = RecordingDisk(self.root, syncs=syncs)
        self._exports = folder / "exports"
        self._exports.mkdir(exist_ok=True)
        self._rng = random.Random(SEED)
        self.moments: list[Moment] = []
        self._gone: frozenset[bytes] = frozenset()
        self.sessions: Sessions = {}
        self.store = open_store(self.root, self.disk)
        self._note("making", None)
        self._note("made", {})

    def _note(self, what: str, sessions: Sessions | None, *, takes_pages: bool = False) -> None:
        self.disk.note_commits()
        self.moments.append(Moment(len(self.disk.events), what, sessions, self._gone, takes_pages))
        self.sessions = sessions or {}

    def reopen(self, budget: int | None = None) -> None:
        """Close the store and open it again."""
        self.store.close()
        self.store = open_store(self.root, self.disk, budget)

    def do(self, what: Operation, *, takes_pages: bool = False) -> None:
        """One operation. `takes_pages`: a budget may take pages of sessions that are not pinned."""
        perform(self.store, what, self.sessions, self._exports)
        before, sessions = self.sessions, applied(self.sessions, what)
        for name, model in sessions.items():
            missing = frozenset(self.store.missing_pages(model.session_id))
            assert missing == model.missing or takes_pages
            sessions[name] = replace(model, missing=missing)
        if isinstance(what, Change) and what.kind.startswith("forget"):
            kept = {text for model in sessions.values() for _, _, text in model.sentences}  # it may be pruned later
            self._gone |= unique_bytes(before) - unique_bytes(sessions) - kept
        self._note(what.kind if isinstance(what, Change) else "append", sessions, takes_pages=takes_pages)

    def append(self, name: str, source: str, *, page_bytes: int = 60, takes_pages: bool = False) -> None:
        """An append of three sentences of one token each and as many tokens without, all with bytes of their own."""
        model = self.sessions[name]
        texts = [self._rng.randbytes(20).hex().encode() for _ in range(3)]
        append = make_append(model, self._rng, n_tokens=6, page_bytes=page_bytes, source=source)
        byte, token, spans = len(model.text), len(model.ids), []
        for number, text in enumerate(texts):
            spans.append(SentenceRecord(byte, byte + len(text), token + number, token + number + 1))
            byte += len(text)
        append = replace(append, text=b"".join(texts), sentences=tuple(spans))
        self.do([append], takes_pages=takes_pages)

    def rebuild(self) -> None:
        """The catalog is lost and made anew."""
        self.store.close()
        self.disk.lose_catalog()
        sessions = tailless(self.sessions)
        self._note("loss", sessions)
        Store.rebuild_catalog(self.root, catalog_bytes=1 << 24, disk=self.disk)
        self._note("rebuilding", sessions)
        self.store = open_store(self.root, self.disk)
        self._note("opening", sessions)


def unique_bytes(sessions: Sessions) -> frozenset[bytes]:
    """KV and text that nothing else holds, as they stand in the files of a store that holds these sessions.

    Text is stored compressed where that is smaller: the archive's lines are what can be looked for.
    """
    found: set[bytes] = set()
    for model in sessions.values():
        found |= {page for number, page in enumerate(model.pages) if number not in model.missing}
        found |= {text for _, text in model.archived}
        if model.has_tail and model.tail:
            found.add(model.tail)
    return frozenset(found)


def recorded(folder: Path, *, syncs: bool = True) -> Recorder:
    """A life with every verb in it."""
    life = Recorder(folder, syncs=syncs)
    life.do(Change("create", "main", number=1))
    for source in ("book", "notes", "book", "letters"):
        life.append("main", source)
    life.do(Change("fork", "main", "fork", 2))
    life.append("fork", "book")
    life.do(Change("rename", "main", "renamed"))
    life.do(Change("copy", "fork", "copy", 3, is_on=True))
    life.do(Change("copy", "renamed", "text", 4))
    life.do(Change("prune", "copy", number=9))
    life.do(Change("forget", "renamed", number=4))
    life.do(Change("forget source", "copy", source="book"))
    life.do(Change("drop", "renamed", pages=frozenset([0, 2])))
    life.do(Change("repair", "renamed"))
    life.reopen()
    life.do(Change("defrag", "renamed"))
    life.do(Change("pin", "renamed", is_on=True))
    life.append("copy", "notes", page_bytes=30_000)
    life.append("copy", "notes", page_bytes=30_000)
    life.reopen(folder_bytes(life.root) + 20_000)
    life.append("fork", "notes", page_bytes=20_000, takes_pages=True)
    assert any(model.missing for model in (life.sessions["copy"], life.sessions["fork"]))
    life.rebuild()
    life.append("renamed", "letters")
    life.do(Change("forget session", "copy"))
    life.do(Change("prune", "fork", number=3))
    life.do(Change("forget session", "fork"))
    life.do(Change("defrag", "renamed"))
    life.store.close()
    return life


def require_state(root: Path, moments: list[Moment], n_events: int) -> None:
    """Raise AssertionError unless the store at `root` is what it was before or after the operation under way."""
    now = [moment for moment in moments if moment.n_events <= n_events][-1:]
    require_gone(root, now)
    following = [moment for moment in moments if moment.n_events > n_events][:1]
    if not (root / "manifest.json").exists():
        assert not now or not now[0].sessions, "the store is gone"
        new_store(root).close()
    if any(moment.what in ("loss", "rebuilding") for moment in now + following):
        try:
            read_store(root).close()
        except RecordDamaged:
            assert Store.rebuild_catalog(root, catalog_bytes=1 << 24).problems == ()

    def takes(_: int) -> bool:
        return bool(following and following[0].takes_pages)

    try:
        require_whole(root, (now[0].sessions if now else None) or {}, takes)
    except AssertionError:
        if not following:
            raise
        require_whole(root, following[0].sessions or {}, takes)
    require_gone(root, now)


def require_gone(root: Path, now: list[Moment]) -> None:
    """Raise AssertionError if forgotten bytes are in any file."""
    files = [path.read_bytes() for path in root.rglob("*") if path.is_file()]
    for needle in now[0].gone if now else ():
        assert not any(needle in content for content in files), "forgotten bytes are back"


def require_survival(life: Recorder, n_events: int, root: Path, seed: int) -> None:
    """Raise AssertionError unless the store survives a power loss after `n_events`."""
    after_power_loss(life.disk.events[:n_events], root, random.Random(seed))
    try:
        require_state(root, life.moments, n_events)
    except Exception as error:
        error.add_note(f"seed {seed}, power lost after event {n_events}: {life.disk.events[n_events - 1].kind}")
        raise


def test_the_life_leaves_traces_that_can_be_looked_for(folder: Path) -> None:
    """Else "in no file" would say nothing."""
    life = Recorder(folder, syncs=True)
    life.do(Change("create", "main", number=1))
    life.append("main", "book")
    life.do(Change("prune", "main", number=1))
    life.store.close()
    needles = unique_bytes(life.sessions)
    assert len(needles) == 2 + len(life.sessions["main"].pages) - len(life.sessions["main"].missing) + 1
    files = [path.read_bytes() for path in life.root.rglob("*") if path.is_file()]
    assert all(any(needle in content for content in files) for needle in needles)


@pytest.mark.slow
def test_power_is_lost_after_each_event(folder: Path) -> None:
    life = recorded(folder)
    for n_events in range(1, len(life.disk.events) + 1):
        require_survival(life, n_events, folder / f"after{n_events}", SEED + n_events)


def test_power_is_lost_at_some_moments(folder: Path) -> None:
    life = recorded(folder)
    for number in range(12):
        n_events = random.Random(SEED + number).randint(1, len(life.disk.events))
        require_survival(life, n_events, folder / f"loss{number}", SEED + number)


@pytest.mark.slow
def test_the_replay_catches_a_life_without_syncs(folder: Path) -> None:
    life = recorded(folder, syncs=False)
    with pytest.raises((AssertionError, RecordDamaged)):
        for number in range(200):
            n_events = random.Random(SEED + number).randint(1, len(life.disk.events))
            require_survival(life, n_events, folder / f"loss{number}", SEED + number)
