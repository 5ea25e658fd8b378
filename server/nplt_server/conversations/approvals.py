"""Asks people whether a tool may run, and remembers what they decided.

    asked ──someone decides──▶ allowed | denied
      └──no decision in time, or the turn is cancelled──▶ denied

The first decision counts. Questions and decisions are entries in the record, so they
survive a restart. If no connected client can decide, the call is denied at
once, unless the settings say that it waits.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain, islice
from typing import Final
from weakref import ref

import anyio
import orjson
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import Approval, ApprovalDecided, ApprovalRequest
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.services import Services
from nplt_server.tools import ToolPolicy
from nplt_storage.active_entries import is_in
from nplt_storage.codec import time_as_text
from nplt_storage.entries import ApprovalEntry, Entry, ForkedEntry, ToolCallRequest
from nplt_storage.errors import StorageError
from nplt_storage.history import ConversationHistory

log = logging.getLogger(__name__)


_LOOKED_BACK_MAX: Final = 1_000


def remembered_decisions(
    history: ConversationHistory, older: Sequence[Entry] = ()
) -> dict[str, ApprovalEntry]:
    """The decisions that hold for the whole conversation, by the name of the tool. Decisions
    from before the conversation was forked or imported do not count. `older`: entries that are
    needed and not in memory."""
    forks = (e.seq for e in chain(older, history.entries) if isinstance(e, ForkedEntry))
    begun_at = max(forks, default=0)
    return {
        entry.tool_name: entry
        for entry in chain(older, history.active)
        if isinstance(entry, ApprovalEntry) and entry.remember and entry.seq > begun_at
    }


def last_approvals_of_step(history: ConversationHistory, turn_id: str) -> dict[str, ApprovalEntry]:
    """The last approval entry of each tool call that has no result yet, by the call's id."""
    turn = history.turn(turn_id)
    if turn is None or turn.awaiting_results is None:
        return {}
    decisions: dict[str, ApprovalEntry] = {}
    for entry in reversed(history.entries):
        if entry.seq <= turn.awaiting_results.seq:
            break
        if isinstance(entry, ApprovalEntry) and entry.turn_id == turn_id:
            decisions.setdefault(entry.tool_call_id, entry)
    return decisions


def is_open_question(entry: ApprovalEntry | None, now: datetime) -> bool:
    if entry is None or entry.state != "asked":
        return False
    return entry.expires_at is not None and entry.expires_at > now


def _is_needed(entry: Entry, history: ConversationHistory) -> bool:
    """Whether `remembered_decisions` needs the entry, which is not in memory."""
    if isinstance(entry, ApprovalEntry) and entry.remember:
        return entry.seq < history.first_seq and not is_in(history.hidden, entry.seq)
    return isinstance(entry, ForkedEntry)


_WHY_DENIED: Final = {
    "nobody_there": "nobody is here who could be asked",
    "expired": "no decision came in time",
}


def why_denied(decision: ApprovalEntry) -> str | None:
    """Returns a sentence for the model; `None` if the call was allowed."""
    if decision.state == "allowed":
        return None
    tool, who = decision.tool_name, decision.decided_by
    if who is None:
        why = _WHY_DENIED.get(decision.reason or "", "it was not given")
        why_not = f"{tool} needs someone's approval, and {why}"
    elif decision.remember:
        why_not = f"{who} said no to {tool} in this conversation"
    else:
        why_not = f"{who} said no to this call of {tool}"
    return f"not run: {why_not}"


_WHOLE_CHARACTERS_MAX: Final = 6_000
_VALUE_CHARACTERS_MAX: Final = 1_000
_VALUES_MAX: Final = 16
_NAME_CHARACTERS_MAX: Final = 200


def question_event(
    session_id: str, asked: ApprovalEntry, tool_call: ToolCallRequest
) -> ApprovalRequest:
    assert asked.turn_id is not None
    assert asked.expires_at is not None
    size = len(tool_call.raw_arguments)
    is_cut = size > _WHOLE_CHARACTERS_MAX
    arguments: JsonObject = dict(tool_call.arguments or {})
    return ApprovalRequest(
        session_id=session_id,
        approval_id=asked.approval_id,
        turn_id=asked.turn_id,
        tool_name=asked.tool_name[:_NAME_CHARACTERS_MAX],
        arguments=_cut(arguments) if is_cut else arguments,
        expires_at=time_as_text(asked.expires_at),
        tool_call_id=asked.tool_call_id,
        truncated=True if is_cut else None,
        size=size if is_cut else None,
    )


def _cut(arguments: JsonObject) -> JsonObject:
    cut: JsonObject = {}
    for name, value in islice(arguments.items(), _VALUES_MAX):
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        is_long = len(text) > _VALUE_CHARACTERS_MAX
        cut[name[:_NAME_CHARACTERS_MAX]] = text[:_VALUE_CHARACTERS_MAX] + "…" if is_long else value
    return cut


@dataclass(slots=True, kw_only=True, eq=False)
class _Question:
    asked: ApprovalEntry
    event: ApprovalRequest
    decision: ApprovalEntry | None = None
    is_being_decided: bool = False
    """Its decision is being written."""
    decided: anyio.Event = field(default_factory=anyio.Event)


class Approvals:
    def __init__(self, record: ConversationRecord, services: Services) -> None:
        self._record = record
        self._services = services
        self._open: dict[str, _Question] = {}
        self.next_question: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when a question is opened; replaced then."""
        self._suspended_turn: str | None = None
        """The turn whose questions stay open although it stops: they are asked again after
        the next start of the server."""
        self._older: tuple[ref[ConversationHistory], list[Entry]] | None = None
        """The entries that `remembered_decisions` needs and that this history does not hold,
        once they were read. The reference is weak, so that a history whose text was erased
        is freed."""

    # What is known

    @property
    def pending(self) -> tuple[ApprovalRequest, ...]:
        return tuple(question.event for question in self._open.values())

    def as_reason_to_wait(self) -> RequestError:
        """Refuses a request that can't be carried out before the open questions are decided."""
        tools = ", ".join(dict.fromkeys(each.event.tool_name for each in self._open.values()))
        return RequestError(
            ErrorCode.BUSY,
            f"an answer waits for an approval ({tools}): allow or deny it, or cancel the answer, "
            "then try again",
            retry_after=1.0,
        )

    def holds(self, approval_id: str) -> bool:
        return approval_id in self._open

    def knows(self, approval_id: str) -> bool:
        return self.holds(approval_id) or self._last_word(approval_id) is not None

    async def remembered(self) -> dict[str, ToolPolicy]:
        """The policies that remembered decisions set, by the name of the tool."""
        return {
            tool_name: "allow" if decision.state == "allowed" else "deny"
            for tool_name, decision in (await self._remembered()).items()
        }

    async def _remembered(self) -> dict[str, ApprovalEntry]:
        while not (history := self._record.history).holds_all:
            if self._older is not None and self._older[0]() is history:
                return remembered_decisions(history, self._older[1])
            older: list[Entry] = []
            async for batch in self._record.profile.store.entries(history.session_id):
                older += [entry for entry in batch if _is_needed(entry, history)]
            self._older = (ref(history), older)  # which may have been read again meanwhile
        return remembered_decisions(history)

    def suspend(self, turn_id: str) -> bool:
        """Keeps the questions of the turn open although it is about to stop, if it waits for
        people and for nothing else; says whether it does."""
        if any(each.is_being_decided for each in self._open.values()):
            return False
        last = last_approvals_of_step(self._record.history, turn_id)
        tool_calls = self._record.history.open_tool_calls(turn_id)
        words = [last.get(each.tool_call_id) for each in tool_calls if not each.by_client]
        never_begun = all(word is not None and word.state != "allowed" for word in words)
        only_waits = never_begun and any(word and self.holds(word.approval_id) for word in words)
        if only_waits:
            self._suspended_turn = turn_id
        return only_waits

    # Asking

    async def ask(self, turn_id: str, tool_call: ToolCallRequest) -> str | None:
        """Asks people whether the tool call may run. Gives why it may not, or `None`. Raises
        `StorageError` if the question or its decision can't be stored."""
        remembered = (await self._remembered()).get(tool_call.tool_name)
        return why_denied(remembered or await self._decision_on(turn_id, tool_call))

    async def _decision_on(self, turn_id: str, tool_call: ToolCallRequest) -> ApprovalEntry:
        before = last_approvals_of_step(self._record.history, turn_id).get(tool_call.tool_call_id)
        if before is not None and before.state != "asked":
            return before  # asked before a restart, decided since
        question = None
        if before is not None:  # asked before a restart, or its decision could not be stored
            question = self._open.get(before.approval_id) or self._open_question(before, tool_call)
        if question is None:
            draft = ApprovalEntry(
                turn_id=turn_id,
                approval_id=self._services.new_entry_id(),
                tool_call_id=tool_call.tool_call_id,
                tool_name=tool_call.tool_name,
                state="asked",
            )
            if not self._someone_can_decide:
                denied = replace(draft, state="denied", reason="nobody_there")
                decision = await self._record.append(denied)
                self._announce(decision)
                return decision
            seconds = timedelta(seconds=self._services.limits.approval_seconds_max)
            draft = replace(draft, expires_at=self._services.clock() + seconds)
            asked = await self._record.append(draft)
            question = self._open_question(asked, tool_call)
            self._record.broadcast.emit(question.event)
        return await self._await_decision(question)

    @property
    def _someone_can_decide(self) -> bool:
        """Whether an attached client may decide, or one that watches the user's conversations
        learns of the question. Otherwise it waits only if the settings say so."""
        record = self._record
        return (
            self._services.approvals.wait_when_alone
            or record.user in record.changes.watched
            or any(one.can_decide for one in record.broadcast.clients)
        )

    async def _await_decision(self, question: _Question) -> ApprovalEntry:
        try:
            expires_at = question.asked.expires_at
            assert expires_at is not None
            with anyio.move_on_after((expires_at - self._services.clock()).total_seconds()):
                await question.decided.wait()
            return question.decision or await self._close(question, "expired")
        except anyio.get_cancelled_exc_class():
            if question.asked.turn_id != self._suspended_turn:
                with suppress(StorageError):  # the turn's end will say it
                    await self._close(question, "cancelled")
            raise
        finally:
            self._open.pop(question.asked.approval_id, None)

    def _open_question(self, asked: ApprovalEntry, tool_call: ToolCallRequest) -> _Question:
        event = question_event(self._record.session_id, asked, tool_call)
        question = self._open[asked.approval_id] = _Question(asked=asked, event=event)
        self.next_question.set_result(None)
        self.next_question = asyncio.get_running_loop().create_future()
        return question

    def reopen(self, turn_id: str, decided: Container[str]) -> None:
        """Opens the questions that were asked before a restart; not those of tool calls that
        are decided."""
        last = last_approvals_of_step(self._record.history, turn_id)
        for tool_call in self._record.history.open_tool_calls(turn_id):
            asked = last.get(tool_call.tool_call_id)
            if asked is not None and tool_call.tool_call_id not in decided:
                self._open_question(asked, tool_call)

    def drop(self, turn_id: str) -> None:
        """Forgets the questions of a turn that is over."""
        for question in tuple(self._open.values()):
            if question.asked.turn_id == turn_id:
                del self._open[question.asked.approval_id]

    # Deciding

    async def decide(self, approval: Approval, *, by: str) -> ApprovalDecided:
        """Takes a person's decision and returns the one that holds: the first."""
        question = self._open.get(approval.approval_id)
        if question is not None:
            fields = {
                "state": "allowed" if approval.decision == "allow" else "denied",
                "expires_at": None,
                "decided_by": by,
                "remember": approval.remember,
            }
            counts = await self._decide(question, replace(question.asked, **fields))
            if counts and approval.remember:  # it also decides the other questions about that tool
                for other in tuple(self._open.values()):
                    if other.asked.tool_name == question.asked.tool_name:
                        await self._decide(other, replace(other.asked, **fields))
        decision = question.decision if question else self._last_word(approval.approval_id)
        if decision is None and question is None:
            raise no_such_question(approval.approval_id)
        if decision is None or (decision.state == "asked" and self._services.draining):
            raise RequestError(
                ErrorCode.SHUTTING_DOWN, "the server is shutting down; decide when it is back"
            )
        return _as_reply(decision)

    async def _close(self, question: _Question, reason: str) -> ApprovalEntry:
        """Denies the question for this reason, unless somebody has decided it meanwhile."""
        draft = replace(question.asked, state="denied", expires_at=None, reason=reason)
        await self._decide(question, draft)
        assert question.decision is not None
        return question.decision

    async def _decide(self, question: _Question, draft: ApprovalEntry) -> bool:
        """Writes the decision, unless there is one; says whether it was written."""
        async with self._record.exclusive():
            is_open = self._open.get(draft.approval_id) is question
            if not is_open or question.decision is not None:
                return False
            question.is_being_decided = True
            try:
                question.decision = await self._record.append(draft)
            finally:
                question.is_being_decided = False
            self._open.pop(draft.approval_id, None)
        self._announce(question.decision)
        question.decided.set()
        return True

    def _announce(self, decision: ApprovalEntry) -> None:
        reply = _as_reply(decision)
        details: JsonObject = {
            "approval_id": reply.approval_id,
            "decision": reply.decision,
            "decided_by": reply.decided_by,
            "tool_name": decision.tool_name,
            "turn_id": decision.turn_id,
            "remember": decision.remember,
        }
        if decision.reason is not None:
            details["reason"] = decision.reason
        self._record.broadcast.announce("approval", details)

    def _last_word(self, approval_id: str) -> ApprovalEntry | None:
        """Searches the newest entries only: anyone may ask for any id at any time."""
        for entry in islice(reversed(self._record.history.entries), _LOOKED_BACK_MAX):
            if isinstance(entry, ApprovalEntry) and entry.approval_id == approval_id:
                return entry
        return None


def no_such_question(approval_id: str) -> RequestError:
    return RequestError(
        ErrorCode.NOT_FOUND,
        f"no tool call waits under {approval_id!r}; it may be decided or expired already",
        field="approval_id",
    )


def _as_reply(decision: ApprovalEntry) -> ApprovalDecided:
    """A question without a decision is a no."""
    return ApprovalDecided(
        approval_id=decision.approval_id,
        decision="allow" if decision.state == "allowed" else "deny",
        decided_by=decision.decided_by,
    )
