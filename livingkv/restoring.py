"""The archive of pruned sentences: whose they are, and their text read into a session again.

Knows archived sentences and how a session is read; the archive itself is the store's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from time import perf_counter

from livingkv.errors import InputError, SessionNotFound
from livingkv.home import Home
from livingkv.pieces import source_digest, split_pieces
from livingkv.results import Archived, ArchiveErased, Ingested
from livingkv.session_reader import Origin, SessionReader
from livingkv.store import ArchivedSentence, Store


def archived_in(store: Store, session: str | None, sentence_ids: Iterable[int] | None = None) -> list[ArchivedSentence]:
    """The archive's sentences, oldest first, of one session or all, `session` being their session's name now.

    sentence_ids: these only. Raises SessionNotFound, InputError for an id that is not in the archive, RecordDamaged.
    """
    names = {row.session_id: row.name for row in store.sessions()}
    found = [_renamed(each, names.get(each.session_id, each.session)) for each in store.archived()]
    if session is not None:
        own = [each for each in found if each.session == session]
        if not own and session not in names.values():
            raise SessionNotFound(f"there is no session {session!r} in {store.path}, and none in its archive")
        found = own
    if sentence_ids is not None:
        wanted = set(sentence_ids)
        missing = sorted(wanted - {each.sentence_id for each in found})
        if missing:
            raise InputError(
                "sentence id", missing[0], "ids of archived sentences are allowed: archive list shows them"
            )
        found = [each for each in found if each.sentence_id in wanted]
    return found


def _renamed(each: ArchivedSentence, session: str) -> ArchivedSentence:
    return replace(each, session=session)


def described(each: ArchivedSentence) -> Archived:
    """An archived sentence as users see it."""
    return Archived(each.sentence_id, each.session, each.source, each.role, each.text)


def erase_archived(store: Store, session: str | None, sentence_ids: Iterable[int] | None = None) -> ArchiveErased:
    """Erase what `archived_in` finds; with neither session nor ids all of it, also where it is damaged.

    Raises as `archived_in`, or StoreError.
    """
    if session is None and sentence_ids is None:
        gone = store.erase_archive()
    else:
        gone = store.erase_archive(each.sentence_id for each in archived_in(store, session, sentence_ids))
    return ArchiveErased(len(gone), sum(len(each.text.encode("utf-8", "surrogateescape")) for each in gone))


def restore_sentences(home: Home, sentences: Sequence[ArchivedSentence], session: str | None) -> list[Ingested]:
    """Read sentences into `session`, or each into the one that it is of, as new text of their source at its end; then
    they leave the archive. One entry for each session and source. Broken off, the next call goes on.

    Between sentences that did not follow one another a line break is put where there is no white space. What was
    encrypted is read into an encrypted session only, which is made where there is none. Raises KeyMissing without its
    key, and InputError for a session in the clear.
    """
    store = home.store()
    encrypted = set(store.encrypted_sessions())
    for each in sentences:
        if each.sealed:
            store.require_key(each.session_id)
    groups: dict[tuple[str, str], list[ArchivedSentence]] = {}
    for each in sentences:
        groups.setdefault((session or each.session, each.source), []).append(each)
    done = []
    for (name, source), group in groups.items():
        encrypt = any(each.session_id in encrypted for each in group)
        done.append(_restore(home, name, source, group, encrypt=encrypt))
        home.store().erase_archive(each.sentence_id for each in group)
    return done


def _restore(home: Home, session: str, source: str, group: Sequence[ArchivedSentence], *, encrypt: bool) -> Ingested:
    started = perf_counter()
    text, ids = joined(group), [each.sentence_id for each in group]
    digest = source_digest(f"{ids} ".encode() + text)  # ids are never given out twice: pruned again, it is another one
    store = home.writable_store()
    row = home.session_for_writing(session, encrypt=encrypt)
    known = store.source(row.session_id, source, digest)
    done = known.n_bytes if known is not None else 0
    with nullcontext() if row.text_only else home.hot_window(row, document=True) as hot:
        reader = SessionReader.of(home.engine(), hot, row)
        for piece in split_pieces(text, home.settings.commit_tokens, done):
            origin = Origin(source, "document", digest, end_of_source=piece.byte_hi == len(text))
            store.append(reader.read_text(text[piece.byte_lo : piece.byte_hi], piece.spans, origin))
    home.index.feed_if_possible()
    now = store.source(row.session_id, source, digest)
    assert now is not None, "it was committed just now"
    return Ingested(source, session, len(text), now.n_tokens, now.n_sentences, perf_counter() - started)


def joined(sentences: Sequence[ArchivedSentence]) -> bytes:
    """The text of sentences in order, with line breaks between those that would run together; bytes that are not UTF-8
    become U+FFFD."""
    text = b""
    for each in sentences:
        raw = each.text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode()
        if text and not text[-1:].isspace() and not raw[:1].isspace():
            text += b"\n"
        text += raw
    return text
