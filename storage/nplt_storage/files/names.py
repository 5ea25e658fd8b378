"""What is called how in the directory of conversations.

    session_YYYYMMDD_<id>.json              one conversation
    session_YYYYMMDD_<id>.json.live         what its running answer has said so far
    session_YYYYMMDD_<id>.json.broken-N     what a torn append left
    session_YYYYMMDD_<id>.json.orig         what another program had written
    session_YYYYMMDD_<id>.blobs/            what is too large for its lines
    .session_YYYYMMDD_<id>.….new            on its way in; left only by a crash
    ….~N                                    one of these that met its own name when
                                            it went to the trash, or came back

Only ids that were checked become part of a path.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from nplt_storage.ids import is_session_id

_SUFFIX = ".json"
_NAME = re.compile(r"session_([0-9]{8})_(.+)\.json", re.DOTALL)
_COMPANION = re.compile(r"(session_[0-9]{8}_(.+?))(?:\.json\.(.+)|\.blobs)", re.DOTALL)
_COPY = re.compile(
    r"\.(?:broken-[0-9]+|before-repair-[0-9]+|orig(?:-[0-9]+)?)(?:~[0-9]+)?|\.live~[0-9]+"
)


def file_name(session_id: str, created_at: datetime) -> str:
    return f"session_{created_at.astimezone(UTC):%Y%m%d}_{session_id}{_SUFFIX}"


def session_id_of(name: str) -> str | None:
    """`None`: not the name of a conversation's file."""
    parts = _NAME.fullmatch(name)
    return parts[2] if parts and is_session_id(parts[2]) else None


def day_of(name: str) -> datetime:
    try:
        return datetime.strptime(name[8:16], "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def companion_of(name: str) -> str | None:
    """Whose side file or folder that is; `None`: nobody's."""
    parts = _COMPANION.fullmatch(name)
    return parts[2] if parts and is_session_id(parts[2]) else None


def companions(names: Iterable[str], path: Path) -> list[str]:
    """Of these names, what stands beside that conversation's file."""
    beside = blobs_of(path).name
    return [name for name in names if name.startswith(f"{path.name}.") or name == beside]


def copies(names: Iterable[str], path: Path) -> list[str]:
    """Of these names, those that may hold lines of that file once more."""
    whole = path.name
    return [
        name
        for name in names
        if name.startswith(whole) and _COPY.fullmatch(name.removeprefix(whole))
    ]


def is_unfinished(name: str) -> bool:
    """Whether a crash left it on its way in."""
    return name.startswith(".session_") and name.endswith(".new")


def on_its_way(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")


def blobs_of(path: Path) -> Path:
    return path.with_suffix(".blobs")


def is_blobs(name: str) -> bool:
    return name.endswith(".blobs")


def live_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.live")
