"""What a conversation has before it: one turn at a time, in order of acceptance.

A clear takes its place among the turns: it waits for those before it and comes
before those after it. Every turn that was accepted ends with exactly one
TURN_FINISHED, after its end is on disk.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from nplt_protocol.events import Event, TurnFinished, TurnStarted
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import ActiveTurn
from nplt_server import debug
from nplt_server.context.views import ContextView
from nplt_server.conversations.activity import Activity
from nplt_server.conversations.ending import end_turn, fault_for
from nplt_server.conversations.household import Household
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.tool_host import TurnToolHost
from nplt_server.conversations.turn import Turn, TurnDesk, TurnOutcome, run_turn
from nplt_server.conversations.voice import Voice
from nplt_server.deltas import UsageReport
from nplt_server.errors import as_request_error, internal_error
from nplt_storage.facts.entries import Entry, FaultEntry

log = logging.getLogger(__name__)

Chore = Callable[[], Awaitable[None]]
AgendaState = Literal["running", "waiting", "idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    turn: Turn
    voice: Voice


class Agenda:
    __slots__ = (
        "_activity",
        "_emit",
        "_house",
        "_is_busy",
        "_ledger",
        "_mind",
        "_owed",
        "_running",
        "_waiting",
        "_write",
    )

    def __init__(
        self,
        ledger: Ledger,
        *,
        household: Household,
        activity: Activity,
        mind: Callable[[], Mind],
        write: Callable[[Entry], Awaitable[Entry]],
        emit: Callable[[Event], None],
    ) -> None:
        self._ledger = ledger
        self._house = household
        self._activity = activity
        self._mind = mind
        self._write = write
        self._emit = emit
        self._waiting: list[Turn | Chore] = []
        self._is_busy = False
        self._owed: list[FaultEntry] = []
        self._running: _Running | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def state(self) -> AgendaState:
        if self._running is not None:
            return "running"
        return "waiting" if self._waiting else "idle"

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

    def add(self, item: Turn | Chore) -> int:
        """Queues it and gives how many stand before it. Call `advance` after."""
        self._waiting.append(item)
        return len(self._waiting) - 1 + self._is_busy

    def advance(self) -> None:
        if self._is_busy or not self._waiting or self._house.draining:
            return  # what waits while the server shuts down runs after the next start
        item = self._waiting.pop(0)
        self._is_busy = True
        if isinstance(item, Turn):
            turn = item
            turn.model = self._house.router.choose(turn.prompt.model, self._ledger.history.model)
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
            self._start(item)

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
                self._beside(partial(self._end_unstarted, item))
                return True
        return False

    def cancel_all(self, reason: str) -> None:
        for turn_id in self.waiting:
            self.cancel(turn_id, reason)
        if self._running is not None:
            self._running.turn.cancel(reason)

    def _start(self, chore: Chore) -> None:
        async def then_the_next() -> None:
            try:
                await chore()
            finally:
                self._is_busy = False
                self.advance()

        self._beside(then_the_next)

    def _beside(self, chore: Chore) -> None:
        async def counted() -> None:
            try:
                await chore()
            finally:
                self._activity.end()

        self._activity.begin()
        self._house.spawn(counted)

    async def _run(self, turn: Turn) -> None:
        house = self._house
        has_place = False
        with turn.cancellable():
            await house.places.take(self._ledger.user)
            has_place = True
        house.counters.turns_started += 1
        self._emit(
            TurnStarted(
                session_id=self._ledger.history.session_id,
                turn_id=turn.turn_id,
                seq=turn.prompt.seq,
                model=turn.model,
                message_id=turn.prompt.message_id,
            )
        )
        host = TurnToolHost(
            turn.turn_id, state=self._mind().state, ledger=self._ledger, household=house
        )
        try:
            outcome = await run_turn(turn, self._desk(turn, host))
        except Exception as error:
            outcome = self._unrecorded(turn, error)
        finally:
            host.close()
            if has_place:
                house.places.give_back(self._ledger.user)
        self._running = None
        self._finish(turn, outcome)

    def _desk(self, turn: Turn, host: TurnToolHost) -> TurnDesk:
        assert self._running is not None
        provider, invocation = self._house.router.route(turn.model)
        mind, counting = self._mind(), self._house.thinking.counting

        def billed(shown: ContextView, usage: UsageReport) -> None:
            counting.observe(turn.model, counted=shown.tokens, real=usage.input_tokens)
            debug.tokens("billed", model=turn.model, counted=shown.tokens, **usage.as_json())

        return TurnDesk(
            state=mind.state,
            provider=provider,
            invocation=invocation,
            tools=self._house.tools,
            host=host,
            voice=self._running.voice,
            limits=self._house.turn_limits,
            answer_tokens_max=self._house.thinking.facts(turn.model).answer_tokens,
            new_call_id=self._house.new_entry_id,
            prepare=partial(mind.prepare, turn.turn_id, turn.model),
            billed=billed,
            write=self._write,
            keep_blob=self._ledger.keep_blob,
        )

    @property
    def is_in_debt(self) -> bool:
        return bool(self._owed)

    def owe(self, fault: FaultEntry) -> None:
        self._owed.append(fault)

    async def pay_debts(self) -> None:
        """Ends that were told and could not be written are written now, before
        anything else is: a turn that is over must never be taken up again."""
        while self._owed:
            fault = self._owed[0]
            await end_turn(fault, self._ledger.history, tools=self._house.tools, write=self._write)
            if fault in self._owed:
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
        self._finish(turn, outcome)

    def _finish(self, turn: Turn, outcome: TurnOutcome) -> None:
        self._house.counters.turns_finished[outcome.state] += 1
        self._emit(
            TurnFinished(
                session_id=self._ledger.history.session_id,
                turn_id=turn.turn_id,
                state=outcome.state,
                seq=outcome.seq,
                usage=outcome.usage,
                error=outcome.error,
            )
        )

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
