"""The errors of this package, and who has to act.

    StorageError
        ConversationNotFound    the caller: there is no such conversation
        ConversationExists      the caller: that id is taken
        ConversationDamaged     the operator: the file is left untouched
        ConversationReadOnly    wait: it can be read, writing works again later
            ConversationHeld    wait, or ask the server that has it
        StorageUnavailable      the operator: disk full, input/output error
        DataDirectoryInUse      the operator: another server has it
        BadStoreConfig          the operator: there is no such store (in `opening`)
        NotInReach              the caller: read the whole record (in `history`)
        BadEntry                the caller: this entry can't be stored as it is
            WrittenElsewhere    the caller: open it again, it has grown meanwhile

`BadLine` (in `codec`) does not leave the package: it becomes one of the above.
"""

from __future__ import annotations

from pathlib import Path


class StorageError(Exception):
    pass


class _OfConversation(StorageError):
    says = ""

    def __init__(self, session_id: str, reason: str = "") -> None:
        super().__init__(self.says.format(id=session_id, reason=reason))
        self.session_id = session_id
        self.reason = reason


class ConversationNotFound(_OfConversation):
    says = "there is no conversation {id!r}"


class ConversationExists(_OfConversation):
    says = "there is a conversation {id!r} already"


class ConversationDamaged(_OfConversation):
    says = "the record of conversation {id!r} is damaged: {reason}"
    can_be_repaired = False
    """Whether its store can repair it (`Repairable`)."""


class ConversationReadOnly(_OfConversation):
    says = "conversation {id!r} can't be written to now: {reason}"


class ConversationHeld(ConversationReadOnly):
    """Another server has it open."""

    def __init__(
        self, session_id: str, address: str | None = None, token: str | None = None
    ) -> None:
        who = f"the server at {address}" if address else "another server"
        super().__init__(session_id, f"{who} has it open")
        self.address = address
        self.token = token
        """The token of that server's ownership. It ends when another ownership begins."""


class StorageUnavailable(StorageError):
    pass


class StorageAway(StorageUnavailable):
    """The store does not answer now. It may later, although its settings stay as they are."""


class DataDirectoryInUse(StorageError):
    def __init__(self, directory: Path) -> None:
        super().__init__(f"the data directory {directory} is in use by another server")
        self.directory = directory


class BadEntry(StorageError):
    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WrittenElsewhere(BadEntry):
    """Another process has written to the conversation, so our knowledge of it is out of date."""
