"""Tells one listener which rows of a store have changed.

A store notes each change of a row here, whoever made it: an entry, a deletion, a repair, a mark of
what the user has seen. Only the rows of watched users are noted. A note says which row changed and
what kind of change it was, not what the row is now: the listener reads the row when it needs it.
"""

from __future__ import annotations

from typing import Final, Literal, Protocol, TypeAlias

from nplt_storage.entries import (
    ApprovalEntry,
    ArchivedEntry,
    Entry,
    FaultEntry,
    LaterChangeEntry,
    LaterPromptEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    PinnedEntry,
    RenamedEntry,
    RollbackEntry,
)

Change: TypeAlias = Literal[
    "new",
    "deleted",
    "message",
    "state",
    "renamed",
    "model",
    "pinned",
    "archived",
    "damaged",
    "seen",
    "entry",
]
"""The kinds of changes of a row. If several are reported together, the first of them in this list
is named."""

_OF_ENTRY: Final[dict[type[Entry], Change]] = {
    ModelInputEntry: "message",
    ModelOutputEntry: "message",
    RollbackEntry: "message",
    FaultEntry: "state",
    ApprovalEntry: "state",
    LaterPromptEntry: "state",
    LaterChangeEntry: "state",
    RenamedEntry: "renamed",
    ModelSwitchedEntry: "model",
    PinnedEntry: "pinned",
    ArchivedEntry: "archived",
}


def change_by(entry: Entry) -> Change:
    """The change that an appended entry makes."""
    return _OF_ENTRY.get(type(entry), "entry")


class ChangeListener(Protocol):
    """Called on the event loop."""

    def row_changed(self, user: str, session_id: str, change: Change) -> None: ...

    def changes_missed(self, user: str) -> None:
        """Changes that other servers made may not have been noted."""
        ...


class RowChanges:
    """The changes that this process makes."""

    def __init__(self) -> None:
        self.watched: set[str] = set()
        """The users whose rows are watched. Callers check it before they call `note`."""
        self._listener: ChangeListener | None = None

    def listen(self, listener: ChangeListener) -> None:
        self._listener = listener

    async def watch(self, user: str) -> None:
        """Every change after this returns is noted."""
        self.watched.add(user)

    def unwatch(self, user: str) -> None:
        self.watched.discard(user)

    def note(self, user: str, session_id: str, change: Change) -> None:
        if self._listener is not None and user in self.watched:
            self._listener.row_changed(user, session_id, change)

    def note_missed(self, user: str) -> None:
        if self._listener is not None and user in self.watched:
            self._listener.changes_missed(user)


NO_CHANGES: Final = RowChanges()
"""Stands for the changes of a store that does not report any; no user is watched."""
