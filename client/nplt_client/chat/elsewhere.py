"""The user's other conversations: which run, ask, failed or have unread answers.

`Elsewhere` watches the rows of all conversations while a chat is open. The status line shows its
counts, and the chat alerts the person when something ends or asks in another conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from nplt_client.client import Client
from nplt_client.errors import NpltError
from nplt_client.render.text import safe_line
from nplt_protocol.messages import WATCHING, SessionChanged, SessionRow

_NAME_WIDTH = 24
_BUSY = ("running", "waiting")


class Elsewhere:
    def __init__(self, client: Client, alert: Callable[[str], None]) -> None:
        """`alert` notifies a person who looks at another window."""
        self._client = client
        self._alert = alert
        self._rows: dict[str, SessionRow] = {}
        """The conversations that need attention, the one of this chat too."""

    async def follow(self) -> None:
        """Watches until the connection is lost for good. An older server has nothing to watch."""
        if WATCHING not in self._client.welcome.features:
            return
        watch = self._client.watch()
        with suppress(NpltError):
            async for change in watch:
                self.take(change)

    def take(self, change: SessionChanged) -> None:
        before = self._rows.pop(change.session_id, None)
        row = change.row
        if row is None:
            return
        if row.state != "idle" or row.unread:
            self._rows[change.session_id] = row
        if row.session_id != self._client.session_id and (news := _news(before, row)):
            self._alert(f"{safe_line(row.name, _NAME_WIDTH)} {news}")

    @property
    def _others(self) -> list[SessionRow]:
        here = self._client.session_id
        return [row for row in self._rows.values() if row.session_id != here]

    @property
    def words(self) -> str:
        """The text for the status line: `2 running · 1 asks · 3 unread`, or nothing."""
        states = Counter(row.state for row in self._others)
        running = sum(states[state] for state in _BUSY)
        counts = (
            (running, "running"),
            (states["asking"], "asks" if states["asking"] == 1 else "ask"),
            (states["failed"], "failed"),
            (sum(bool(row.unread) for row in self._others), "unread"),
        )
        words = " · ".join(f"{count} {word}" for count, word in counts if count)
        return f"elsewhere {words}" if words else ""

    @property
    def next_id(self) -> str | None:
        """The conversation to go to next: one that asks, else one that failed, else one with
        unread answers; of several the one that has waited longest."""
        asking = [row for row in self._others if row.state == "asking"]
        failed = [row for row in self._others if row.state == "failed"]
        unread = [row for row in self._others if row.unread and row.state == "idle"]
        wanted = asking or failed or unread
        return min(wanted, key=lambda row: row.updated_at).session_id if wanted else None


def _news(before: SessionRow | None, row: SessionRow) -> str:
    """The alert that a person is shown after a change; empty if there is none."""
    if row.state == "asking" and (before is None or before.state != "asking"):
        return "waits for your decision"
    if before is None or before.state not in (*_BUSY, "asking"):
        return ""
    if row.state == "failed":
        return "failed"
    return "is done" if row.state == "idle" and row.unread else ""
