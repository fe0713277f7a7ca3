"""Which sessions a question is asked of, or a forgetting is about: all, some by name, or those of one folder.

Knows names and a store; knows no index, no model and nothing of whose a folder is.
"""

from __future__ import annotations

from dataclasses import dataclass

from livingkv.store import SessionRow, Store


@dataclass(frozen=True, slots=True)
class Scope:
    """Sessions of a store: those of these names, those of one folder, or all where neither is given.

    The folder of a name is what stands before its last slash: "anna/diary" is in "anna", "diary" in "".
    """

    names: frozenset[str] | None = None
    folder: str | None = None

    @classmethod
    def of(cls, session: str | Scope | None) -> Scope:
        """One session by its name, or all (None). A scope is itself."""
        if isinstance(session, Scope):
            return session
        return ALL if session is None else cls(names=frozenset({session}))

    def rows(self, store: Store) -> tuple[SessionRow, ...]:
        """The sessions, oldest first. Raises SessionNotFound for a name that there is not."""
        if self.names is None:
            return tuple(store.sessions(self.folder))
        return tuple(sorted((store.session(name) for name in self.names), key=lambda row: row.session_id))

    def ids(self, store: Store) -> frozenset[int] | None:
        """Their ids, None where they are all that there are. Raises SessionNotFound, and KeyMissing for a single name
        of a session that is encrypted and cannot be read."""
        if self.names is not None:
            found = frozenset(store.session(name).session_id for name in self.names)
            if len(found) == 1:
                store.require_key(*found)
            return found
        if self.folder is None:
            return None
        found = store.session_ids(self.folder)
        return None if len(found) == store.n_sessions else found


ALL = Scope()
