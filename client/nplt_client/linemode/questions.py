"""Tools that wait for a yes or a no, the oldest first.

`y`, `n` and `a` answer the oldest one, but only in a line that was begun when
that question stood there already: nobody allows a tool with a word that was
meant for the model. `/allow` and `/deny` always do.
"""

from __future__ import annotations

from nplt_client.approving import Verdict, verdict_in
from nplt_client.client import Client
from nplt_client.errors import NpltError, RequestRefused
from nplt_client.fullscreen.changes import ApprovalWanted


class Questions:
    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[str, ApprovalWanted] = {}
        self._seen_by_line: str | None = None

    @property
    def oldest(self) -> ApprovalWanted | None:
        return next(iter(self._waiting.values()), None)

    def add(self, wanted: ApprovalWanted) -> bool:
        """False: it is known."""
        is_new = wanted.approval_id not in self._waiting
        self._waiting.setdefault(wanted.approval_id, wanted)
        return is_new

    def settle(self, approval_id: str) -> ApprovalWanted | None:
        """Somebody decided, or its time is over; None: we did, or know nothing of it."""
        return self._waiting.pop(approval_id, None)

    def forget(self) -> None:
        self._waiting.clear()

    def line_begins(self) -> None:
        oldest = self.oldest
        self._seen_by_line = oldest.approval_id if oldest else None

    def answer_in(self, line: str) -> Verdict | None:
        oldest = self.oldest
        if oldest is None or oldest.approval_id != self._seen_by_line:
            return None
        return verdict_in(line)

    async def decide_oldest(self, *, allow: bool, remember: bool) -> ApprovalWanted:
        oldest = self.oldest
        if oldest is None:
            raise RequestRefused("No tool waits for an answer.", code="not_found")
        self._waiting.pop(oldest.approval_id)
        try:
            await self._client.approve(oldest.approval_id, allow=allow, remember=remember)
        except NpltError as error:
            if not isinstance(error, RequestRefused):  # that would be settled, in some way
                self._waiting = {oldest.approval_id: oldest, **self._waiting}
            raise
        return oldest
