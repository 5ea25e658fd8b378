"""Generates and checks ids of conversations, entries, turns and files.

Conversations get uuid4, so that short prefixes tell them apart; entries and turns get
uuid7, so that ids sort roughly by time. Nothing relies on that order; sequence numbers
do the ordering. Generators are passed in where they are used. An id from outside is
checked here before it becomes part of a path.
"""

from __future__ import annotations

import re
import uuid

import uuid_utils

_SESSION_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_FILE_ID = re.compile(r"[0-9a-f]{32}")


def new_session_id() -> str:
    return uuid.uuid4().hex


def new_entry_id() -> str:
    return uuid_utils.uuid7().hex


def new_file_id() -> str:
    return uuid.uuid4().hex


def is_session_id(text: str) -> bool:
    return _SESSION_ID.fullmatch(text) is not None


def is_file_id(text: str) -> bool:
    return _FILE_ID.fullmatch(text) is not None
