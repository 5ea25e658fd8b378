"""Through a list page by page, also if the server who gives it means no good. Pure."""

from __future__ import annotations

from nplt_client.errors import ProtocolViolation

PAGES_MAX = 10_000


class Walk:
    """A cursor that comes a second time, or pages without end, would be walked for ever."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def on(self, next_cursor: str | None) -> str | None:
        """Where to go on; `None`: that was the last page."""
        if next_cursor is None:
            return None
        if next_cursor in self._seen or len(self._seen) >= PAGES_MAX:
            raise ProtocolViolation("the server's list has no end")
        self._seen.add(next_cursor)
        return next_cursor
