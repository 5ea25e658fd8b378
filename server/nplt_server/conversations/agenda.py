"""What a conversation has before it: one turn at a time, in order of acceptance.

A chore (a clear, say) takes its place among the turns: it waits for those before
it and comes before those after it. Every turn that was accepted ends with exactly
one TURN_FINISHED, after its end is on disk. A prompt that is cancelled while it
waits ends beside the others; what comes after it begins when that end is on disk,
for a turn must find the same past at each of its calls.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeAlias

from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import ActiveTurn
from nplt_server.conversations.activity import Activity
from nplt_server.conversations.approvals import Approvals, TurnAsker
from nplt_server.conversations.audience import Audience
from nplt_server.conversations.chore import Chore
from nplt_server.conversations.desk import lay_desk
from nplt_server.conversations.ending import end_turn, fault_for
from nplt_server.conversations.household import Household, Seat
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.tool_host import TurnToolHost
from nplt_server.conversations.turn import Turn, TurnDesk, TurnLeft, TurnOutcome
from nplt_server.conversations.turn_events import turn_finished, turn_started
from nplt_server.conversations.turn_loop import run_turn
from nplt_server.conversations.voice import Voice
from nplt_server.conversations.writer import Writer
from nplt_server.errors import as_request_error, internal_error
from nplt_storage.facts.entries import FaultEntry

log = logging.getLogger(__name__)

Item: TypeAlias = Turn | Chore[Any]
"""Whatever a chore gives is between it and whoever asked."""
AgendaState = Literal["running", "waiting", "idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    turn: Turn
    voice: Voice


class Agenda:
    __slots__ = (
        "_activity",
        "_chore",
        "_emit",
        "_ending",
        "_house",
        "_is_at_work",
        "_ledger",
        "_mind",
        "_owed",
        "_running",
        "_waiting",
        "_write",
        "approvals",
    )

    def __init__(
        self,
        ledger: Ledger,
        *,
        household: Household,
        activity: Activity,
        mind: Callable[[], Mind],
        writer: Writer,
        audience: Audience,
    ) -> None:
        self._ledger = ledger
        self._house = household
        self._activity = activity
        self._mind = mind
        self._write = writer.record
        self._emit = audience.emit
        self.approvals = Approvals(ledger, writer=writer, audience=audience, household=household)
        self._waiting: list[Item] = []
        self._is_at_work = False
        self._owed: list[FaultEntry] = []
        self._running: _Running | None = None
        self._chore: Chore[Any] | None = None
        self._ending = Activity()
        """Ends that are being written beside what runs: of prompts that were cancelled
        while they waited, and debts."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def state(self) -> AgendaState:
        if self._running is not None and not self._running.turn.clock.stands_still:
            return "running"
        # For those before it, or for people.
        return "waiting" if self._running or self._waiting else "idle"

    @property
    def is_busy(self) -> bool:
        """Whether a turn or a chore runs or waits."""
        return self._is_at_work or bool(self._waiting)

    @property
    def running(self) -> Turn | None:
        return self._running.turn if self._running else None

    @property
    def voice(self) -> Voice | None:
        return self._running.voice if self._running else None

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(item.turn_id for item in self._waiting if isinstance(item, Turn))

    @property
    def active_turn(self) -> ActiveTurn | None:
        if self._running is None:
            return None
        turn, voice = self._running.turn, self._running.voice
        return ActiveTurn(
            turn_id=turn.turn_id, call=turn.call, offset=voice.offset, model=turn.model
        )

    def holds(self, turn_id: str) -> bool:
        running = self.running
        return turn_id in self.waiting or (running is not None and running.turn_id == turn_id)

    def add(self, item: Item) -> int:
        """Queues it and gives how many stand before it. Call `advance` after."""
        self._waiting.append(item)
        return len(self._waiting) - 1 + self._is_at_work

    def advance(self) -> None:
        if self._is_at_work or not self._waiting or self._house.draining:
            return  # what waits while the server shuts down runs after the next start
        item = self._waiting.pop(0)
        self._is_at_work = True
        if isinstance(item, Turn):
            turn = item
            turn.model = self._house.router.choose(
                turn.model, turn.prompt.model, self._ledger.history.model
            )
            self._running = _Running(
                turn=turn,
                voice=Voice(
                    self._emit,
                    note=self._ledger.say,
                    session_id=self._ledger.history.session_id,
                    turn_id=turn.turn_id,
                ),
            )
            self._start(lambda: self._run(turn))
        else:
            self._chore = item
            self._start(item.run)

    def cancel(self, turn_id: str, reason: str) -> bool:
        running = self.running
        if running is not None and running.turn_id == turn_id:
            already = running.cancel_called
            running.cancel(reason)
            return not already
        for item in self._waiting:
            if isinstance(item, Turn) and item.turn_id == turn_id:
                self._waiting.remove(item)
                item.cancel(reason)
                self._ending.begin()
                self._beside(partial(self._end_unstarted, item))
                return True
        return False

    def cancel_all(self, reason: str) -> None:
        for turn_id in self.waiting:
            self.cancel(turn_id, reason)
        if self._running is not None:
            self._running.turn.cancel(reason)

    def interrupt(self, reason: str) -> None:
        """The server stops: what runs ends now, unless it can be left as it is."""
        self.set_aside(reason)
        if self._running is not None and not self._running.turn.is_left:
            self._running.turn.cancel(reason)

    def set_aside(self, reason: str) -> None:
        """A turn that waits for people, and for nothing else, goes on waiting after the
        server was started anew."""
        running = self.running
        if running is not None and self.approvals.is_all_that_is_left(running.turn_id):
            running.leave(reason)

    def drop_chores(self, why: RequestError) -> None:
        """The one that runs, and those that wait."""
        chores = [item for item in self._waiting if isinstance(item, Chore)]
        self._waiting = [item for item in self._waiting if isinstance(item, Turn)]
        for chore in (self._chore, *chores):
            if chore is not None:
                chore.drop(why)

    def _start(self, work: Callable[[], Awaitable[None]]) -> None:
        async def then_the_next() -> None:
            try:
                await self._ending.quiet()
                await work()
            finally:
                self._is_at_work = False
                self._chore = None
                self.advance()

        self._beside(then_the_next)

    def _beside(self, work: Callable[[], Awaitable[None]]) -> None:
        async def counted() -> None:
            try:
                await work()
            finally:
                self._activity.end()

        self._activity.begin()
        self._house.spawn(counted)

    async def _run(self, turn: Turn) -> None:
        house = self._house
        seat = Seat(house.places, self._ledger.user)
        with turn.cancellable():
            await seat.take()
        house.counters.turns_started += 1
        self._emit(turn_started(self._ledger.session_id, turn))
        host = TurnToolHost(
            turn.turn_id, state=self._mind().state, ledger=self._ledger, household=house
        )
        try:
            await self.pay_debts()
            outcome = await run_turn(turn, self._desk(turn, host, seat))
        except TurnLeft:
            return
        except Exception as error:
            outcome = self._unrecorded(turn, error)
        finally:
            host.close()
            seat.give_back()
            self.approvals.drop(turn)
            self._running = None
        self._finish(turn, outcome)

    def _desk(self, turn: Turn, host: TurnToolHost, seat: Seat) -> TurnDesk:
        assert self._running is not None
        return lay_desk(
            turn,
            mind=self._mind(),
            host=host,
            asker=TurnAsker(turn, approvals=self.approvals, seat=seat),
            voice=self._running.voice,
            write=self._write,
        )

    @property
    def is_in_debt(self) -> bool:
        return bool(self._owed)

    def owe(self, fault: FaultEntry) -> None:
        self._owed.append(fault)

    async def pay_debts(self) -> None:
        """Ends that were told and could not be written are written now, before
        anything else is: a turn that is over must never be taken up again."""
        await self._ending.quiet()  # what another pays just now is not paid twice
        while self._owed:
            fault, history = self._owed[0], self._ledger.history
            self._ending.begin()
            try:
                await end_turn(fault, history, tools=self._house.tools, write=self._write)
            finally:
                self._ending.end()
            self._owed.remove(fault)

    async def _end_unstarted(self, turn: Turn) -> None:
        self._house.counters.turns_started += 1
        reason = turn.cancel_reason
        fault = fault_for(turn.turn_id, reason, code="cancelled", state="interrupted")
        error: JsonObject = {"code": "cancelled", "message": reason}
        try:
            seq = (await self._write(fault)).seq
            outcome = TurnOutcome(state="interrupted", seq=seq, usage={}, error=error)
        except Exception as problem:
            outcome = self._unrecorded(turn, problem)
        finally:
            self._ending.end()
        self._finish(turn, outcome)

    def _finish(self, turn: Turn, outcome: TurnOutcome) -> None:
        self._house.counters.turns_finished[outcome.state] += 1
        self._emit(turn_finished(self._ledger.session_id, turn, outcome))

    def _unrecorded(self, turn: Turn, error: Exception) -> TurnOutcome:
        """Its end could not even be written (a full disk, a bug): it is told
        all the same, so that nobody waits for ever, and the record owes it."""
        known = as_request_error(error)
        if known is None:
            log.error("a turn of %s failed", self._ledger.history.session_id, exc_info=error)
            known = internal_error()
        self.owe(fault_for(turn.turn_id, known.message, code=known.code, state="failed"))
        details: JsonObject = {"code": known.code, "message": known.message}
        head = self._ledger.history.head_seq
        return TurnOutcome(state="failed", seq=head, usage={}, error=details)
