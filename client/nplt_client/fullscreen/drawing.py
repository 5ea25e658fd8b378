"""From changes to the screen. The one who draws; everybody else asks for it.

A lock keeps "all anew" (another conversation, a rollback) and "one more piece"
apart. After each round there is a pause, longer than the drawing took, in which
what arrives is gathered: keys are heard, however much there is to draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import assert_never

from nplt_client.errors import NpltError
from nplt_client.fullscreen.changes import (
    ApprovalSettled,
    ApprovalWanted,
    Change,
    Doing,
    ModelChanged,
    OutOfDate,
    PresenceChanged,
    PromptShown,
    ReasoningGrew,
    ReasoningStands,
    Renamed,
    TextGrew,
    TextStands,
    Told,
    ToolShown,
    TurnBegan,
    TurnEnded,
)
from nplt_client.fullscreen.safe_text import safe_line
from nplt_client.fullscreen.transcript import Transcript
from nplt_client.fullscreen.visit import Visit

FRAME_SECONDS = 1 / 30
RESTS_PER_WORK = 2


class Drawing:
    def __init__(
        self,
        visit: Visit,
        transcript: Transcript,
        *,
        ask_approval: Callable[[ApprovalWanted], None],
        settle_approval: Callable[[str], None],
        weigh: Callable[[], None],
        after: Callable[[], None],
    ) -> None:
        """`weigh` has it found out, beside us, what the conversation has used by now."""
        self._visit = visit
        self._transcript = transcript
        self._ask_approval = ask_approval
        self._settle_approval = settle_approval
        self._weigh = weigh
        self._after = after
        self._lock = asyncio.Lock()

    async def draw_on(self) -> None:
        while True:
            changes = await self._visit.gathering.take()
            begun = monotonic()
            async with self._lock:
                for change in changes:
                    self._visit.course.follow(change)
                    await self._draw(change)
                await self._let_go()
            self._transcript.tidy()
            self._after()
            if any(isinstance(change, TurnEnded) for change in changes):
                self._weigh()
            await _rest(begun)

    async def start_over(self, going: Awaitable[object] | None) -> None:
        async with self._lock:
            await self._transcript.start_over(await self._visit.move(going))
            self._transcript.has_older = self._visit.has_older
        for asked in self._visit.take_approvals():
            self._ask_approval(asked)
        self._weigh()
        self._after()

    async def read_again(self) -> None:
        async with self._lock:
            await self._read_again()

    async def show_older(self) -> bool:
        async with self._lock:
            turns = await self._visit.older()
            self._transcript.has_older = self._visit.has_older
            if turns:
                await self._transcript.add_older(turns)
        return bool(turns)

    async def _read_again(self) -> None:
        await self._transcript.start_over(await self._visit.read_again())
        self._transcript.has_older = self._visit.has_older

    async def _let_go(self) -> None:
        if await self._transcript.let_go():
            self._visit.forget_older_than(self._transcript.first_seq)

    async def _draw(self, change: Change) -> None:
        match change:
            case (
                PromptShown()
                | TurnBegan()
                | TextGrew()
                | TextStands()
                | ReasoningGrew()
                | ReasoningStands()
                | ToolShown()
                | TurnEnded()
            ):
                await self._transcript.apply(change)
                if isinstance(change, PromptShown) and change.turn_id in self._visit.course.waiting:
                    self._transcript.wait(change.turn_id, "… waiting for its turn")
            case Told():
                await self._transcript.tell(change)
            case ApprovalWanted():
                self._ask_approval(change)
            case ApprovalSettled():
                self._settle_approval(change.approval_id)
            case Renamed():
                self._visit.name = change.name
            case ModelChanged():
                self._visit.choose_model(change.model)
            case PresenceChanged():
                self._visit.meet(change.guests)
            case OutOfDate():
                await self._renew(change)
            case Doing():
                pass
            case _:
                assert_never(change)

    async def _renew(self, change: OutOfDate) -> None:
        try:
            await self._read_again()
        except NpltError as error:
            told = f"{change.why}, but they can't be read: {safe_line(error.message)}"
            await self._transcript.tell(Told(text=told, is_error=True))
        else:
            await self._transcript.tell(Told(text=change.why))


async def _rest(begun: float) -> None:
    """The widgets are arranged and painted while we sleep, and we wake the later for it:
    that is work too."""
    await asyncio.sleep(FRAME_SECONDS)
    await asyncio.sleep(max(0.0, monotonic() - begun - FRAME_SECONDS) * RESTS_PER_WORK)
