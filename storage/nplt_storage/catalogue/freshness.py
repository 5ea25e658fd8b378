"""Is what the catalogue knows of a file still so? Asked of all files at a start.

A stamp says how a file was when it was last looked at. Its entries need not be
read again while the file is the same one, of the same size and time. A file
that was only written on is read from where its closing line began; anything
else is read whole. A replaced file is another one (its inode says so), even if
it has the same size: a redacted text must not stay in an index.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

_INODE_BITS = 2**63 - 1  # what SQLite can keep of an unsigned number


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundFile:
    """A conversation's file as the directory shows it."""

    name: str
    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, name: str, status: os.stat_result) -> FoundFile:
        return cls(
            name=name,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            inode=status.st_ino & _INODE_BITS,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileStamp:
    """A file as it was when everything up to `head_seq` was taken in.

    A stamp may be of less than the whole file (its size that of the part): the
    rest is then read like anything that was written later.
    """

    file: FoundFile
    end_offset: int
    """Where the closing line began: an append changes nothing before it."""
    head_seq: int
    synced: bool = True
    """Whether that head was on disk for good when it was noted: only then is a
    lower one damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Freshness:
    """Conversations by what there is to do."""

    fresh: tuple[str, ...]
    """Nothing."""
    grown: tuple[str, ...]
    """Read on from `end_offset`. What is there must follow: if it does not, the
    file was changed by someone else, and is read whole."""
    unknown: tuple[str, ...]
    """Read whole: new here, or not the file we knew."""
    gone: tuple[str, ...]
    """Forget."""


def compare(found: Mapping[str, FoundFile], known: Mapping[str, FileStamp]) -> Freshness:
    """Both by session id."""
    fresh: list[str] = []
    grown: list[str] = []
    unknown: list[str] = []
    for session_id, file in found.items():
        stamp = known.get(session_id)
        if stamp is not None and stamp.file == file:
            fresh.append(session_id)
        elif stamp is not None and _may_have_grown(stamp.file, file):
            grown.append(session_id)
        else:
            unknown.append(session_id)
    return Freshness(
        fresh=tuple(fresh),
        grown=tuple(grown),
        unknown=tuple(unknown),
        gone=tuple(session_id for session_id in known if session_id not in found),
    )


def _may_have_grown(before: FoundFile, now: FoundFile) -> bool:
    """The same size at another time is the end of a file that was written again,
    as it is whenever a file is opened."""
    return (before.name, before.inode) == (now.name, now.inode) and now.size >= before.size
