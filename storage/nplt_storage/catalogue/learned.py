"""What the catalogue is told about a conversation, in pieces of any size.

A piece holds entries, and the row and stamp as they are after them. So a long
conversation can be taken in piece by piece, and what was taken in stays known
if the rest is cut off: its stamp says from where to go on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from nplt_storage.catalogue.freshness import FileStamp
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    row: ConversationRow
    """As it is after these entries."""
    stamp: FileStamp
    entries: Sequence[Entry] = ()
    """Any kinds; the catalogue takes from them what it needs."""
    anew: bool = False
    """Whether this is the beginning, and all that was known before is void."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    session_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    session_id: str
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Redacted:
    """That entry's content is no more, neither in the file nor in the row."""

    row: ConversationRow
    stamp: FileStamp
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsFound:
    """All of a file's prompts that have a name of their sender's, by number."""

    session_id: str
    prompts: Mapping[str, int]
    through: int
    """The last entry that was looked at."""


Note: TypeAlias = Learned | Gone | Touched | Redacted | PromptsFound

Survey: TypeAlias = Callable[[Mapping[str, FileStamp]], Iterator[Learned | Gone]]
"""Given what is known, says what has changed since: see `freshness.compare`. It
reads files, so it runs in the catalogue's thread, where a conversation that is
being written to can be read as well: what it misses is noted right after."""
