"""The one who prints: changes come from the visit and go to the paper, in order.

A lock keeps "to another conversation" and "one more piece" apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import assert_never

from nplt_client.errors import NpltError
from nplt_client.fullscreen.changes import (
    ApprovalSettled,
    ApprovalWanted,
    Change,
    Doing,
    ModelChanged,
    OfTurn,
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
from nplt_client.fullscreen.visit import Visit
from nplt_client.linemode.paper import Paper
from nplt_client.linemode.questions import Questions
from nplt_client.linemode.telling import Telling

TURNS_SHOWN_ON_ARRIVAL = 3


class Printing:
    def __init__(
        self,
        visit: Visit,
        paper: Paper,
        *,
        telling: Telling,
        questions: Questions,
        weigh: Callable[[], None],
        redraw: Callable[[], None],
    ) -> None:
        """`weigh` has it found out, beside us, what the conversation has used by now."""
        self._visit = visit
        self._paper = paper
        self._telling = telling
        self._questions = questions
        self._weigh = weigh
        self._redraw = redraw
        self._lock = asyncio.Lock()

    async def print_on(self) -> None:
        while True:
            changes = await self._visit.gathering.take()
            async with self._lock:
                for change in changes:
                    self._visit.course.follow(change)
                    await self._print(change)
                self._paper.flush()
            if any(isinstance(change, TurnEnded) for change in changes):
                self._weigh()
            self._redraw()

    async def go(self, going: Awaitable[object] | None) -> None:
        """To another conversation; None: where we are."""
        async with self._lock:
            turns = await self._visit.move(going)
            self._questions.forget()
            if going is not None:
                self._paper.remark(f"· in {self._visit.name or 'a new conversation'}")
            self._telling.start_over()
            self._catch_up(turns[-TURNS_SHOWN_ON_ARRIVAL:])
            for asked in self._visit.take_approvals():
                self._ask(asked)
            self._paper.flush()
        self._weigh()

    async def catch_up(self) -> None:
        """With what we were not told."""
        turns = await self._visit.read_again()
        known = [place for place, (turn_id, _) in enumerate(turns) if self._telling.knows(turn_id)]
        self._catch_up(turns[known[0] if known else 0 :])
        self._paper.flush()

    def _catch_up(self, turns: list[tuple[str, list[OfTurn]]]) -> None:
        self._telling.catch_up(turns, self._visit.course.waiting)

    async def _print(self, change: Change) -> None:
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
                self._telling.apply(change)
            case Told():
                self._paper.remark(f"· {change.text}", is_error=change.is_error)
            case ApprovalWanted():
                self._ask(change)
            case ApprovalSettled():
                if settled := self._questions.settle(change.approval_id):
                    self._paper.remark(f"· {settled.tool_name}: decided elsewhere, or too late")
            case Renamed():
                self._visit.name = change.name
                self._paper.remark(f"· this conversation is now called {change.name!r}")
            case ModelChanged():
                self._visit.choose_model(change.model)
                self._paper.remark(f"· the model is now {change.model}")
            case PresenceChanged():
                self._visit.meet(change.guests)
            case OutOfDate():
                await self._renew(change)
            case Doing():
                pass
            case _:
                assert_never(change)

    def _ask(self, wanted: ApprovalWanted) -> None:
        if self._questions.add(wanted):
            self._paper.listing(f"{wanted.tool_name} wants to be run with\n{wanted.arguments}")

    async def _renew(self, change: OutOfDate) -> None:
        self._paper.remark(f"· {change.why}")
        try:
            await self.catch_up()
        except NpltError as error:
            self._paper.remark(f"· and can't be read: {safe_line(error.message)}", is_error=True)
