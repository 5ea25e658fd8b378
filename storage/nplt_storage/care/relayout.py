"""One of our documents that another program has laid out anew, as it was written.

Indenting a file changes every line of it and nothing that it says. So it is
written again as we write it, and believed only if every checksum then fits.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any, Final
from zlib import crc32

import orjson

from nplt_storage.facts.lines import crc_suffix

_BEHIND: Final = ("updated_at", "head_seq", "message_count", "epoch_offset")


def as_it_was_written(data: bytes) -> bytes | None:
    """`None`: it is none of ours, or something in it is not as it was."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return None
    try:
        return _written(document)
    except (_NotOurs, orjson.JSONEncodeError):
        return None


class _NotOurs(Exception):
    pass


def _written(document: Any) -> bytes:
    if not isinstance(document, dict) or not isinstance(document.get("messages"), list):
        raise _NotOurs
    names = [*takewhile(lambda name: name != "messages", document)]
    behind = [name for name in document if name not in (*names, "messages", "beside")]
    beside = document.get("beside", [])
    if tuple(behind) != _BEHIND or not isinstance(beside, list):
        raise _NotOurs
    first = _checked({name: document[name] for name in names})[:-1] + b',"messages":[\n'
    lines = b"\n,".join(map(_checked, document["messages"]))
    closing = b"]," + orjson.dumps({name: document[name] for name in behind})[1:-1]
    if beside:
        items = b"\n,".join(map(orjson.dumps, beside))
        closing += b',"beside":[\n' + items + b"\n]"
    return first + lines + (b"\n" if lines else b"") + closing + b"}\n"


def _checked(part: Any) -> bytes:
    """With its checksum, which fits."""
    if not isinstance(part, dict) or next(reversed(part), None) != "crc":
        raise _NotOurs
    body = orjson.dumps({name: value for name, value in part.items() if name != "crc"})[:-1]
    if part["crc"] != f"{crc32(body):08x}":
        raise _NotOurs
    return body + crc_suffix(body)
