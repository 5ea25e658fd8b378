"""What waits to be sent, in order, and how much of it is what.

Replies are never dropped; events are, when a reader is too slow, and then it
is told so. Both share one line, because their order matters. To judge a slow
reader, bytes count until the kernel has them: those kept here and those the
transport still holds. No I/O here; `stream` owns one and moves the bytes.
"""

from __future__ import annotations


class Outbox:
    __slots__ = ("_event_bytes", "_handed_bytes", "_handed_event_bytes", "_kept", "kept_bytes")

    def __init__(self) -> None:
        self._kept: list[bytes] = []
        self.kept_bytes = 0
        self._event_bytes = 0
        self._handed_bytes = 0
        self._handed_event_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._kept)

    def add_reply(self, data: bytes) -> None:
        self._kept.append(data)
        self.kept_bytes += len(data)

    def add_event(self, data: bytes) -> None:
        self.add_reply(data)
        self._event_bytes += len(data)

    def take(self, transport_bytes: int) -> bytes:
        """All that is kept; from now on it counts as the transport's."""
        if transport_bytes == 0:
            self._handed_event_bytes = 0
        self._handed_event_bytes += self._event_bytes
        self._handed_bytes += self.kept_bytes
        data = self._kept[0] if len(self._kept) == 1 else b"".join(self._kept)
        self._kept.clear()
        self.kept_bytes = self._event_bytes = 0
        return data

    def clear(self) -> None:
        self._kept.clear()
        self.kept_bytes = self._event_bytes = 0

    def sent_bytes(self, transport_bytes: int) -> int:
        """What the kernel has taken so far; progress means that it grows."""
        return self._handed_bytes - transport_bytes

    def unsent_bytes(self, transport_bytes: int) -> int:
        return self.kept_bytes + transport_bytes

    def unsent_event_bytes(self, transport_bytes: int) -> int:
        return self._event_bytes + min(self._handed_event_bytes, transport_bytes)

    def unsent_reply_bytes(self, transport_bytes: int) -> int:
        return self.unsent_bytes(transport_bytes) - self.unsent_event_bytes(transport_bytes)
