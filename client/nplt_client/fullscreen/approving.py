"""Approvals that wait for this person: asked one after the other, each once.

A question that was put off stays open until somebody answers it or its time is
over; `/allow` and `/deny` answer the oldest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from textual.events import Key, Paste

from nplt_client.client import Client
from nplt_client.errors import RequestRefused
from nplt_client.fullscreen.approval_screen import ApprovalScreen, Verdict
from nplt_client.fullscreen.changes import ApprovalWanted


class Window(Protocol):
    """What shows the question."""

    def open_approval(self, screen: ApprovalScreen) -> None: ...


class Approving:
    def __init__(
        self, client: Client, window: Window, type_on: Callable[[Key | Paste], None]
    ) -> None:
        """`type_on`: takes what was meant for the input."""
        self._client = client
        self._window = window
        self._type_on = type_on
        self._open: ApprovalScreen | None = None
        self._questions: dict[str, ApprovalWanted] = {}
        self._put_off: set[str] = set()

    def ask(self, wanted: ApprovalWanted) -> None:
        self._questions.setdefault(wanted.approval_id, wanted)
        self._show_next()

    def settle(self, approval_id: str) -> None:
        """Somebody decided, or its time is over."""
        self._questions.pop(approval_id, None)
        if self._open is not None and self._open.wanted.approval_id == approval_id:
            self._open.dismiss(None)

    def forget(self) -> None:
        """They belong to a conversation that was left."""
        for approval_id in list(self._questions):
            self.settle(approval_id)
        self._put_off.clear()

    async def decided(self, wanted: ApprovalWanted, verdict: Verdict | None) -> None:
        self._open = None
        self._put_off.add(wanted.approval_id)
        try:
            if verdict is not None:
                await self._client.approve(
                    wanted.approval_id, allow=verdict != "deny", remember=verdict == "always"
                )
                self._questions.pop(wanted.approval_id, None)
        finally:
            self._show_next()

    async def decide_oldest(self, *, allow: bool, remember: bool) -> None:
        oldest = next(iter(self._questions), None)
        if oldest is None:
            raise RequestRefused("No tool waits for an answer.", code="not_found")
        await self._client.approve(oldest, allow=allow, remember=remember)
        self.settle(oldest)

    def _show_next(self) -> None:
        if self._open is not None:
            return
        for approval_id, wanted in self._questions.items():
            if approval_id not in self._put_off:
                self._open = ApprovalScreen(wanted, self._type_on)
                self._window.open_approval(self._open)
                return
