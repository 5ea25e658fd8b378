"""Server-sent events as bytes, as far as model APIs use them.

Only an event's data is read, without a copy through `str`: the APIs repeat the event's name
there. An event without its closing empty line is not given.

https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from __future__ import annotations

import json

import orjson

from nplt_protocol import JsonObject, JsonValue
from nplt_server.errors import ProviderUnavailable

_EVENT_BYTES_MAX = 16 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class SseParser:
    def __init__(self, *, event_bytes_max: int = _EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        self._tail: list[bytes] = []
        """The pieces of a line that has not ended: joining them each time would be quadratic."""
        self._held_bytes = 0
        self._data: list[bytes] = []
        self._after_cr = False
        self._at_start = True

    def feed(self, chunk: bytes) -> list[bytes]:
        """The data of the events that these bytes complete. Raises if an event is too large."""
        if self._after_cr and chunk:
            # The CR at the end of the last chunk may have been half of a CRLF.
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if not chunk:
            return []
        self._after_cr = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        self._held_bytes += len(chunk)
        if b"\n" not in chunk:
            self._tail.append(chunk)
            events = []
        else:
            lines = b"".join((*self._tail, chunk)).split(b"\n")
            tail = lines.pop()
            self._tail = [tail] if tail else []
            events = self._take(lines)
            if events or not self._data:
                self._held_bytes = len(tail) + sum(map(len, self._data))
        if self._held_bytes > self._event_bytes_max:
            raise ProviderUnavailable(
                "the provider sent something too large to be read", before_first_token=False
            )
        return events

    def _take(self, lines: list[bytes]) -> list[bytes]:
        if self._at_start:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif line == b"data":
                self._data.append(b"")
        return events


def json_object_of(data: bytes) -> JsonObject:
    """Raises `ValueError` if this is no JSON object. Only Python's own parser takes half a
    surrogate pair, escaped."""
    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            parsed = json.loads(data)
        except RecursionError:
            raise ValueError("nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("not an object")
    return parsed


def object_of(value: JsonValue) -> JsonObject:
    return value if isinstance(value, dict) else {}


def text_of(value: object) -> str:
    return value if isinstance(value, str) else ""
