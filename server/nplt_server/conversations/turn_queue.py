"""Runs a conversation's turns and jobs one at a time, in order of acceptance.

A job (a clear, a compaction) takes its place among the turns.  Every accepted turn ends
with exactly one TURN_FINISHED, after its end is on disk. A prompt cancelled while it
waits ends without running; what follows begins when that end is on disk.

When a conversation is opened, what a stopped server left unfinished is resumed or ended. A
turn that had begun ends as interrupted and is never run again by itself; what it had said is
kept. A turn that waited for an approval goes on waiting. Prompts that only waited are run. If
nothing can be written now, the ends are written later.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeAlias, TypeVar

import anyio

from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import ActiveTurn, TurnFinished, TurnStarted
from nplt_server.conversations.approvals import is_open_question, last_words_of_step, why_denied
from nplt_server.conversations.tasks import Activity
from nplt_server.conversations.turn import TurnRun, TurnSuspended
from nplt_server.errors import error_to_tell
from nplt_storage.entries import (
    ApprovalEntry,
    DebugEntry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import StorageError

if TYPE_CHECKING:
    from nplt_server.conversations.conversation import Conversation

log = logging.getLogger(__name__)

_Given = TypeVar("_Given")


def call_guarded(callback: Callable[[_Given], None], value: _Given) -> None:
    """Calls the callback with a result. An exception in it is logged and ignored: the result
    is on disk, and the conversation goes on."""
    try:
        callback(value)
    except Exception:
        log.exception("an answer could not be handed over")


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedJob(Generic[_Given]):
    """Work that waits in the turn queue. Exactly one of `done` and `failed` is called, also
    if the job is dropped before it began or stopped half way."""

    work: Callable[[], Awaitable[_Given]]
    done: Callable[[_Given], None]
    failed: Callable[[Exception], None]
    _why_dropped: RequestError | None = None
    _scope: anyio.CancelScope | None = None
    """Once it has begun."""

    async def run(self) -> None:
        if self._why_dropped is not None:
            return  # `failed` was called already
        with anyio.CancelScope() as self._scope:
            try:
                given = await self.work()
            except Exception as error:
                call_guarded(self.failed, error)
            else:
                call_guarded(self.done, given)
        if self._scope.cancelled_caught and self._why_dropped is not None:
            call_guarded(self.failed, self._why_dropped)

    def drop(self, why: RequestError) -> None:
        """Stops the job at its next step. A write in progress is finished."""
        if self._why_dropped is not None:
            return
        self._why_dropped = why
        if self._scope is None:
            call_guarded(self.failed, why)
        else:
            self._scope.cancel()


QueueItem: TypeAlias = TurnRun | QueuedJob[Any]
"""A turn, or a job with any result type."""

TurnQueueState = Literal["running", "waiting", "idle"]

_STOPPED: Final = "the server stopped while it ran"
_INCOMPLETE: Final = "the server stopped before this answer was complete; ask again"
_SHUTDOWN: Final = "shutdown"
_WAIT: Final = "prompts wait for the next start"


class TurnQueue:
    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._services = conversation.services
        self.running: TurnRun | None = None
        self._waiting: list[QueueItem] = []
        self._working_on: QueueItem | None = None
        """The running turn, until its end is told; or a job."""
        self._owed: list[FaultEntry] = []
        self._ending = Activity()
        """Ends that are being written beside what runs: of prompts that were cancelled
        while they waited, and those that are owed."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def state(self) -> TurnQueueState:
        if self.running is not None and not self.running.clock.is_stopped:
            return "running"
        # For those before it, or for people.
        return "waiting" if self.running or self._waiting else "idle"

    @property
    def is_busy(self) -> bool:
        """Whether a turn or a job runs or waits."""
        return self._working_on is not None or bool(self._waiting)

    @property
    def waiting(self) -> tuple[str, ...]:
        return tuple(item.turn_id for item in self._waiting if isinstance(item, TurnRun))

    @property
    def active_turn(self) -> ActiveTurn | None:
        turn = self.running
        if turn is None:
            return None
        return ActiveTurn(
            turn_id=turn.turn_id,
            call=turn.call,
            offset=turn.events.offset("text"),
            model=turn.model,
        )

    def holds(self, turn_id: str) -> bool:
        running = self.running
        return turn_id in self.waiting or (running is not None and running.turn_id == turn_id)

    def add(self, item: QueueItem) -> int:
        """Queues it and gives how many stand before it. Call `advance` after."""
        self._waiting.append(item)
        return len(self._waiting) - 1 + (self._working_on is not None)

    def advance(self) -> None:
        is_ending = self._services.draining or self._conversation.is_leaving
        if self._working_on is not None or not self._waiting or is_ending:
            return  # what waits runs after the next start, or at the next owner
        item = self._working_on = self._waiting.pop(0)
        if isinstance(item, TurnRun):
            chosen = self._conversation.writer.model
            item.use_model(self._services.router.choose(item.model, item.prompt.model, chosen))
            self.running = item
        self._conversation.activity.begin()
        self._services.spawn(partial(self._work_on, item))

    def cancel(self, turn_id: str, reason: str) -> bool:
        running = self.running
        if running is not None and running.turn_id == turn_id:
            already = running.cancel_called
            running.cancel(reason)
            return not already
        for item in self._waiting:
            if isinstance(item, TurnRun) and item.turn_id == turn_id:
                self._waiting.remove(item)
                item.cancel(reason)
                self._ending.begin()
                self._conversation.activity.begin()
                self._services.spawn(partial(self._end_unstarted, item))
                return True
        return False

    def cancel_all(self, reason: str) -> None:
        running = (self.running.turn_id,) if self.running is not None else ()
        for turn_id in (*self.waiting, *running):
            self.cancel(turn_id, reason)

    def interrupt(self, reason: str) -> None:
        """The server stops: what runs ends now, unless it can be suspended."""
        self.suspend(reason)
        if self.running is not None and not self.running.is_suspended:
            self.running.cancel(reason)

    def suspend(self, reason: str) -> None:
        """A turn that waits for people, and for nothing else, goes on waiting after the
        server was started anew."""
        approvals, running = self._conversation.approvals, self.running
        if running is not None and approvals.is_all_that_is_left(running.turn_id):
            running.suspend(reason)

    def drop_jobs(self, why: RequestError) -> None:
        """The one that runs, and those that wait."""
        items = (self._working_on, *self._waiting)
        self._waiting = [item for item in self._waiting if isinstance(item, TurnRun)]
        for item in items:
            if isinstance(item, QueuedJob):
                item.drop(why)

    async def _work_on(self, item: QueueItem) -> None:
        try:
            if not self._ending.is_quiet:
                await self._ending.quiet()
            await (self._run(item) if isinstance(item, TurnRun) else item.run())
        finally:
            self._working_on = None
            self.advance()
            self._conversation.activity.end()

    async def _run(self, turn: TurnRun) -> None:
        if not turn.take_slot_now():
            with turn.cancellable(anyio.CancelScope()):
                await turn.take_slot()
        self._services.counters[self._conversation.user].turns_started += 1
        self._conversation.broadcast.emit(
            TurnStarted(
                session_id=self._conversation.session_id,
                turn_id=turn.turn_id,
                seq=turn.prompt.seq,
                model=turn.model,
                message_id=turn.prompt.message_id,
            )
        )
        try:
            if self.owes_ends:
                await self.write_owed()
            finished = await turn.run()
        except TurnSuspended:
            return
        except Exception as error:
            finished = self._unrecorded(turn, error)
        finally:
            turn.events.send_held()
            turn.tool_host.is_over = True
            turn.give_back_slot()
            if turn.asks_people:
                self._conversation.approvals.drop(turn)
            self.running = None
        self._tell(finished)

    # Ends that could not be written

    @property
    def owes_ends(self) -> bool:
        """Whether `write_owed` has anything to do."""
        return bool(self._owed) or not self._ending.is_quiet

    async def write_owed(self) -> None:
        """Ends that were told and could not be written are written now, before
        anything else is: a turn that is over must never be resumed."""
        if not self._ending.is_quiet:
            await self._ending.quiet()  # what is being written just now is not written twice
        while self._owed:
            fault = self._owed[0]
            self._ending.begin()
            try:
                await self._end_turn(fault)
            finally:
                self._ending.end()
            self._owed.remove(fault)

    async def _end_unstarted(self, turn: TurnRun) -> None:
        self._services.counters[self._conversation.user].turns_started += 1
        fault = FaultEntry(
            turn_id=turn.turn_id,
            content=turn.cancel_reason,
            code="cancelled",
            state="interrupted",
            never_began=True,
        )
        try:
            entry = await self._conversation.writer.append(fault)
            error: JsonObject = {"code": "cancelled", "message": turn.cancel_reason}
            finished = turn.finished("interrupted", entry.seq, error)
        except Exception as problem:
            finished = self._unrecorded(turn, problem)
        finally:
            self._ending.end()
            self._conversation.activity.end()
        self._tell(finished)

    def _tell(self, finished: TurnFinished) -> None:
        self._services.counters[self._conversation.user].turns_finished[finished.state] += 1
        self._conversation.broadcast.emit(finished)

    def _unrecorded(self, turn: TurnRun, error: Exception) -> TurnFinished:
        """Its end could not even be written (a full disk, a bug): it is told
        all the same, so that nobody waits for ever, and the record owes it."""
        known = error_to_tell(error, log, f"a turn of {self._conversation.session_id} failed")
        code, reason = known.code, known.message
        self._owed.append(
            FaultEntry(turn_id=turn.turn_id, content=reason, code=code, state="failed")
        )
        turn.usage = {}
        head_seq = self._conversation.history.head_seq
        return turn.finished("failed", head_seq, {"code": code, "message": reason})

    # What a stopped server left unfinished

    async def note_shutdown(self) -> None:
        """Before the server stops: ends that are owed are written, and what only waits
        is noted."""
        await self.write_owed()
        if waiting := self.waiting:
            note = DebugEntry(category=_SHUTDOWN, content=f"{len(waiting)} {_WAIT}")
            await self._conversation.writer.append(note)

    async def resume_unfinished(self) -> None:
        """A server that shuts down in good order leaves a note that all prompts only waited.
        Without it, whether the first had begun can't be told, so it counts as begun. The note
        is answered before the first is run, so that it counts for one start only."""
        conversation = self._conversation
        history, writer = conversation.history, conversation.writer
        said = writer.partial_answer
        unfinished = history.unfinished_turns()
        has_note = bool(unfinished) and self._has_shutdown_note()
        for place, prompt in enumerate(unfinished):
            turn_id = prompt.turn_id or ""
            is_running = history.turn_state(turn_id) == "running"
            has_spoken = said is not None and said.turn_id == turn_id and bool(said.text)
            if not (is_running or has_spoken or (place == 0 and not has_note)):
                self.add(TurnRun(conversation, prompt))
                continue
            waiting = self._resumed(prompt)
            if waiting is not None and not has_spoken:
                conversation.approvals.take_up(waiting)
                self.add(waiting)
                continue
            fault = FaultEntry(
                turn_id=turn_id, content=_INCOMPLETE, code="interrupted", state="interrupted"
            )
            try:
                if said is not None and has_spoken:
                    await writer.append(
                        ModelOutputEntry(
                            turn_id=turn_id,
                            call=said.call,
                            content=said.text,
                            reasoning=said.reasoning,
                            state="interrupted",
                            error={"code": "interrupted", "message": _INCOMPLETE},
                        )
                    )
                else:
                    await self._end_turn(fault)
            except StorageError as error:
                log.warning("%s: the end of a turn is owed: %s", history.session_id, error)
                self._owed.append(fault)
        if has_note and self._waiting:
            with suppress(StorageError):  # then its prompts may be run once more
                await writer.append(
                    DebugEntry(category=_SHUTDOWN, content="the prompts that waited run now")
                )
        self.advance()

    def _has_shutdown_note(self) -> bool:
        """Whether it is the last that was said of turns. A name, a clear or a summary may
        have come after it: that no turn wrote. An epoch begins right before a call."""
        for entry in reversed(self._conversation.history.entries):
            if isinstance(entry, DebugEntry) and entry.category == _SHUTDOWN:
                return entry.content.endswith(_WAIT)
            if entry.turn_id is not None or isinstance(entry, EpochEntry):
                return False
        return False

    def _resumed(self, prompt: ModelInputEntry) -> TurnRun | None:
        """A turn that waited for an approval when the server stopped; `None` if no approval is
        open any more. The record decides about each tool call of its last output:

            asked, not expired          still to be decided, under the same approval id
            asked, expired; denied      not run
            allowed; no approval entry  may have run: its outcome is unknown, and the server
                                        does not run it again
        """
        history, turn_id = self._conversation.history, prompt.turn_id or ""
        so_far = history.turn(turn_id)
        if so_far is None or so_far.unanswered is None or so_far.is_over:
            return None
        said = last_words_of_step(history, turn_id)
        now = self._services.clock()
        results = {
            tool_call.tool_call_id: self._result_by_record(tool_call, said, _STOPPED)
            for tool_call in so_far.open_tool_calls
            if not is_open_question(said.get(tool_call.tool_call_id), now)
        }
        if len(results) == len(so_far.open_tool_calls):
            return None
        turn, answer = TurnRun(self._conversation, prompt), so_far.unanswered
        who = answer.invocation
        turn.model = "" if who is None else f"{who.provider}/{who.model}"
        turn.call, turn.has_answer, turn.results = answer.call, True, results
        for entry in so_far.entries:
            usage = entry.usage if isinstance(entry, ModelOutputEntry) else None
            for name, tokens in (usage or {}).items():
                if isinstance(tokens, int):
                    turn.usage[name] = turn.usage.get(name, 0) + tokens
        return turn

    async def _end_turn(self, fault: FaultEntry) -> None:
        """Ends a turn that can't end by itself: its calls get results, then the fault."""
        history, writer = self._conversation.history, self._conversation.writer
        turn_id, why = fault.turn_id or "", fault.content
        if history.end_of_turn(turn_id) is not None:
            return
        if tool_calls := history.open_tool_calls(turn_id):
            said = last_words_of_step(history, turn_id)
            results = tuple(self._result_by_record(each, said, why) for each in tool_calls)
            await writer.append(
                ToolResultsEntry(turn_id=turn_id, results=results, execute_error=why)
            )
        await writer.append(fault)

    def _result_by_record(
        self, tool_call: ToolCallRequest, said: dict[str, ApprovalEntry], reason: str
    ) -> ToolCallResult:
        """Of a call whose result was lost, or never came."""
        last, tools = said.get(tool_call.tool_call_id), self._services.tools
        if last is None or last.state == "allowed":
            return tools.unknown(tool_call, reason)
        if last.state == "denied":
            return tools.skipped(tool_call, why_denied(last) or "")
        return tools.skipped(tool_call, f"not run: {reason}")
