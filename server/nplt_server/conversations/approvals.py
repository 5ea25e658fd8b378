"""People are asked whether a tool may be run, and the first answer counts.

    asked ──someone answers──▶ allowed | denied
      └──nobody in time, or the turn is cancelled──▶ denied

Question and answer are entries of the record, written by its one writer: so there
is one decision, everyone hears it in the same order, and a question outlives the
connection it was asked on, and the server. Who is not there when it is asked finds
it when they come; where nobody is there who could answer, it is denied at once,
unless it is to wait.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final
from weakref import ref

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.events import ApprovalRequest, SessionEvent
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import ApprovalDecided
from nplt_protocol.requests import Approval
from nplt_server.conversations.approval_facts import (
    NOTHING_FAR_BACK,
    FarBack,
    last_word_on,
    last_words_of_step,
    permission_by,
    remembered_decisions,
)
from nplt_server.conversations.audience import Audience
from nplt_server.conversations.household import Household, Seat
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.questions import question_event
from nplt_server.conversations.turn import Turn
from nplt_server.conversations.writer import Writer
from nplt_server.tools.asking import Permission
from nplt_server.tools.base import ToolPolicy
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.errors import StorageError
from nplt_storage.facts.entries import ApprovalEntry, ApprovalState
from nplt_storage.facts.tool_calls import ToolCallRequest

log = logging.getLogger(__name__)

_STATES: Final[dict[str, ApprovalState]] = {"allow": "allowed", "deny": "denied"}


@dataclass(slots=True, kw_only=True, eq=False)
class _Question:
    asked: ApprovalEntry
    event: ApprovalRequest
    decision: ApprovalEntry | None = None
    answered: anyio.Event = field(default_factory=anyio.Event)


class Approvals:
    __slots__ = ("_audience", "_far", "_house", "_ledger", "_open", "_writer")

    def __init__(
        self, ledger: Ledger, *, writer: Writer, audience: Audience, household: Household
    ) -> None:
        self._ledger = ledger
        self._writer = writer
        self._audience = audience
        self._house = household
        self._open: dict[str, _Question] = {}
        self._far: tuple[ref[ConversationHistory], FarBack] | None = None
        """Of that history, once someone needed it. Not held by it: when words were
        erased, the history that has them goes."""

    # What is known

    @property
    def pending(self) -> tuple[ApprovalRequest, ...]:
        return tuple(question.event for question in self._open.values())

    def holds(self, approval_id: str) -> bool:
        return approval_id in self._open

    def knows(self, approval_id: str) -> bool:
        return self.holds(approval_id) or self._last_word(approval_id) is not None

    async def remembered(self) -> dict[str, ToolPolicy]:
        """What holds here, instead of asking, by the name of the tool."""
        return {
            tool_name: "allow" if decision.state == "allowed" else "deny"
            for tool_name, decision in (await self._remembered()).items()
        }

    async def _remembered(self) -> dict[str, ApprovalEntry]:
        while (far := self._far_back(self._ledger.history)) is None:
            history, far = self._ledger.history, NOTHING_FAR_BACK
            async for batch in self._ledger.profile.store.entries(history.session_id):
                far = far.with_batch(batch, history)
            self._far = (ref(history), far)  # which may have been read again meanwhile
        return remembered_decisions(self._ledger.history, far)

    def _far_back(self, history: ConversationHistory) -> FarBack | None:
        if history.holds_all:
            return NOTHING_FAR_BACK
        return self._far[1] if self._far is not None and self._far[0]() is history else None

    def is_all_that_is_left(self, turn_id: str) -> bool:
        """Whether nothing of a turn's step was begun: it waits for people, and for
        nothing else."""
        said = last_words_of_step(self._ledger.history, turn_id)
        calls = self._ledger.history.open_calls(turn_id)
        words = [said.get(call.tool_call_id) for call in calls]
        never_begun = all(word is not None and word.state != "allowed" for word in words)
        return never_begun and any(word and self.holds(word.approval_id) for word in words)

    # Asking

    async def ask(self, turn: Turn, call: ToolCallRequest) -> Permission:
        try:
            remembered = (await self._remembered()).get(call.tool_name)
            return permission_by(remembered or await self._decision_on(turn, call))
        except StorageError as error:
            log.warning("%s: nobody could be asked: %s", self._ledger.session_id, error)
            why_not = "not run: nobody could be asked, for nothing can be written down now"
            return Permission(allowed=False, why_not=why_not)

    async def _decision_on(self, turn: Turn, call: ToolCallRequest) -> ApprovalEntry:
        before = last_words_of_step(self._ledger.history, turn.turn_id).get(call.tool_call_id)
        if before is not None and before.state != "asked":
            return before  # asked in an earlier life of the server, decided in this one
        question = self._open.get(before.approval_id) if before else None
        if question is None and self._is_alone:
            return await self._deny_at_once(turn, call)
        return await self._answer_to(question or await self._put(turn, call), turn)

    async def _answer_to(self, question: _Question, turn: Turn) -> ApprovalEntry:
        try:
            with anyio.move_on_after(self._seconds_left(question)):
                await question.answered.wait()
            return question.decision or await self._close(question, "expired")
        except anyio.get_cancelled_exc_class():
            if not turn.is_left:
                with suppress(StorageError):  # the turn's end will say it
                    await self._close(question, "cancelled")
            raise
        finally:
            self._open.pop(question.asked.approval_id, None)

    @property
    def _is_alone(self) -> bool:
        if self._house.approvals.wait_when_alone:
            return False
        return not any(guest.can_decide for guest in self._audience.guests)

    def _seconds_left(self, question: _Question) -> float:
        assert question.asked.expires_at is not None
        return (question.asked.expires_at - self._house.clock()).total_seconds()

    async def _put(self, turn: Turn, call: ToolCallRequest) -> _Question:
        questions: list[_Question] = []
        seconds = self._house.approvals.seconds_max
        draft = replace(
            self._draft(turn, call, "asked"),
            expires_at=self._house.clock() + timedelta(seconds=seconds),
        )

        def stored(entry: object) -> None:
            assert isinstance(entry, ApprovalEntry)
            questions.append(self._open_question(entry, call))
            self._audience.emit(questions[0].event)

        await self._writer.record_prepared(lambda: draft, stored)
        return questions[0]

    def _open_question(self, asked: ApprovalEntry, call: ToolCallRequest) -> _Question:
        event = question_event(self._ledger.session_id, asked, call)
        question = self._open[asked.approval_id] = _Question(asked=asked, event=event)
        return question

    def take_up(self, turn: Turn) -> None:
        """What an earlier life of the server asked can be answered again, from now on."""
        said = last_words_of_step(self._ledger.history, turn.turn_id)
        for call in self._ledger.history.open_calls(turn.turn_id):
            asked = said.get(call.tool_call_id)
            if asked is not None and call.tool_call_id not in turn.results:
                self._open_question(asked, call)

    def drop(self, turn: Turn) -> None:
        """The turn is over: whatever it did not come to ask about any more."""
        for question in tuple(self._open.values()):
            if question.asked.turn_id == turn.turn_id:
                del self._open[question.asked.approval_id]

    async def _deny_at_once(self, turn: Turn, call: ToolCallRequest) -> ApprovalEntry:
        draft = replace(self._draft(turn, call, "denied"), reason="nobody_there")
        entry = await self._writer.record_prepared(lambda: draft, self._announce)
        assert isinstance(entry, ApprovalEntry)
        return entry

    def _draft(self, turn: Turn, call: ToolCallRequest, state: ApprovalState) -> ApprovalEntry:
        return ApprovalEntry(
            turn_id=turn.turn_id,
            approval_id=self._house.new_entry_id(),
            tool_call_id=call.tool_call_id,
            tool_name=call.tool_name,
            state=state,
        )

    # Deciding

    async def decide(self, answer: Approval, *, by: str) -> ApprovalDecided:
        """Whatever is decided in the end, by whoever was first."""
        question = self._open.get(answer.approval_id)
        if question is not None:
            counts = await self._settle(question, _answered(question, answer, by))
            if counts and answer.remember:
                await self._settle_alike(question.asked.tool_name, answer, by=by)
        decision = question.decision if question else self._last_word(answer.approval_id)
        if decision is None and question is None:
            raise no_such_question(answer.approval_id)
        if decision is None or (decision.state == "asked" and self._house.draining):
            raise RequestError(
                ErrorCode.SHUTTING_DOWN, "the server is shutting down; answer when it is back"
            )
        return _as_reply(decision)

    async def _settle_alike(self, tool_name: str, answer: Approval, *, by: str) -> None:
        """What is remembered answers the other questions about that tool, too."""
        for question in tuple(self._open.values()):
            if question.asked.tool_name == tool_name:
                await self._settle(question, _answered(question, answer, by))

    async def _close(self, question: _Question, reason: str) -> ApprovalEntry:
        """Nobody decided; unless someone did meanwhile."""
        draft = replace(_decided(question), state="denied", reason=reason)
        await self._settle(question, draft)
        assert question.decision is not None
        return question.decision

    async def _settle(self, question: _Question, draft: ApprovalEntry) -> bool:
        """Whether it was this that decided it."""

        def prepare() -> ApprovalEntry | None:
            is_open = self._open.get(draft.approval_id) is question
            return draft if is_open and question.decision is None else None

        def stored(entry: object) -> None:
            assert isinstance(entry, ApprovalEntry)
            question.decision = entry
            self._open.pop(entry.approval_id, None)
            self._announce(entry)
            question.answered.set()

        return await self._writer.record_prepared(prepare, stored) is not None

    def _announce(self, decision: object) -> None:
        assert isinstance(decision, ApprovalEntry)
        said = _as_reply(decision)
        details: JsonObject = {
            "approval_id": said.approval_id,
            "decision": said.decision,
            "decided_by": said.decided_by,
            "tool_name": decision.tool_name,
            "turn_id": decision.turn_id,
            "remember": decision.remember,
        }
        if decision.reason is not None:
            details["reason"] = decision.reason
        session_id = self._ledger.session_id
        self._audience.emit(SessionEvent(session_id=session_id, event="approval", details=details))

    def _last_word(self, approval_id: str) -> ApprovalEntry | None:
        return last_word_on(self._ledger.history, approval_id)


class TurnAsker:
    """Asks about the calls of one turn. While it waits for people, neither does its
    clock run nor does it keep another turn from running."""

    __slots__ = ("_approvals", "_seat", "_turn")

    def __init__(self, turn: Turn, *, approvals: Approvals, seat: Seat) -> None:
        self._turn = turn
        self._approvals = approvals
        self._seat = seat

    async def ask(self, call: ToolCallRequest) -> Permission:
        with self._turn.clock.stopped():
            self._seat.give_back()
            return await self._approvals.ask(self._turn, call)

    async def sit_down(self) -> None:
        await self._seat.take()


def no_such_question(approval_id: str) -> RequestError:
    return RequestError(
        ErrorCode.NOT_FOUND, f"nothing was asked under {approval_id!r}", field="approval_id"
    )


def _answered(question: _Question, answer: Approval, by: str) -> ApprovalEntry:
    state = _STATES[answer.decision]
    return replace(_decided(question), state=state, decided_by=by, remember=answer.remember)


def _decided(question: _Question) -> ApprovalEntry:
    asked = question.asked
    return ApprovalEntry(
        turn_id=asked.turn_id,
        approval_id=asked.approval_id,
        tool_call_id=asked.tool_call_id,
        tool_name=asked.tool_name,
        state="denied",
    )


def _as_reply(decision: ApprovalEntry) -> ApprovalDecided:
    """A question that was never answered is a no."""
    return ApprovalDecided(
        approval_id=decision.approval_id,
        decision="allow" if decision.state == "allowed" else "deny",
        decided_by=decision.decided_by,
    )
