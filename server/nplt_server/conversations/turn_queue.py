"""Runs a conversation's turns and jobs one at a time, in order of acceptance.

A job (a clear, a compaction) is queued among the turns. Every accepted turn ends with exactly
one TURN_FINISHED, sent when its end is on disk. A prompt cancelled while it waits ends without
running; the next turn or job begins when that end is on disk.

If the store that several servers share is away, the turn waits for it (`TurnRun.until_stored`),
and so do those behind it. If the end of a turn can't be written for another reason (a full disk),
TURN_FINISHED is sent anyway. The end is written later, as soon as there is room and before any
other entry; no further turn begins before that. A turn whose conversation another server has taken
over ends without an event: its end is the other server's to write and to send. When a conversation
is opened, the turns that a stopped server left unfinished are resumed or ended (`recovery`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import ActiveTurn, TurnFinished
from nplt_server.conversations import recovery
from nplt_server.conversations.approvals import Approvals
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.conversations.later_prompts import LaterPrompts
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.services import Services
from nplt_server.conversations.summarizer import ConversationNamer, Summarizer
from nplt_server.conversations.turn import InterruptedStep, RunState, TurnRun, TurnSuspended
from nplt_server.errors import error_to_tell
from nplt_server.request_id import request_id
from nplt_server.tasks import Activity, call_guarded
from nplt_storage.entries import FaultEntry, ModelInputEntry
from nplt_storage.errors import StorageError
from nplt_storage.rows import INTERRUPTED

log = logging.getLogger(__name__)

_RETRY_SECONDS: Final = (0.25, 10.0)
"""The first and the longest pause before an unwritten end is tried again."""

_SETTLE_SECONDS_MAX: Final = 5.0

_Given = TypeVar("_Given")


@dataclass(slots=True, kw_only=True, eq=False)
class QueuedJob(Generic[_Given]):
    """Work that waits in the turn queue. Exactly one of `done` and `failed` is called, even if
    the job is dropped before it begins or stopped halfway."""

    work: Callable[[], Awaitable[_Given]]
    done: Callable[[_Given], None]
    failed: Callable[[Exception], None]
    _why_dropped: RequestError | None = None
    _scope: anyio.CancelScope | None = None
    """The scope of the work, once it has begun."""

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

TurnQueueState = Literal["running", "asking", "waiting", "idle"]


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class TurnQueue:
    record: ConversationRecord
    context: ContextManager
    summarizer: Summarizer
    namer: ConversationNamer
    approvals: Approvals
    later: LaterPrompts
    services: Services
    running: TurnRun | None = field(init=False, default=None)
    is_blocked: bool = field(init=False, default=False)
    """No further turn begins, because another server will get the conversation."""
    _waiting: list[QueueItem] = field(init=False, default_factory=list)
    _working_on: QueueItem | None = field(init=False, default=None)
    """The running turn, until its end has been sent, or the running job."""
    unwritten_ends: list[FaultEntry] = field(init=False, default_factory=list)
    """Ends of turns that have been sent but could not be written."""
    _ending: Activity = field(init=False, default_factory=Activity)
    """Counts the ends being written while another turn or job may run: of prompts cancelled while
    they waited, and of earlier turns."""

    _is_retrying: bool = field(init=False, default=False)
    """Whether a task tries to write the unwritten ends."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def state(self) -> TurnQueueState:
        if self.approvals.pending:
            return "asking"
        if self.running is not None and self.running.is_at_work:
            return "running"
        # A queued turn waits for those before it, a paused one for a slot or for the store.
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
            model=turn.model or "",
        )

    def holds(self, turn_id: str) -> bool:
        running = self.running
        return turn_id in self.waiting or (running is not None and running.turn_id == turn_id)

    def add_prompt(self, prompt: ModelInputEntry, resumed: InterruptedStep | None = None) -> int:
        """Queues the turn of a stored prompt, as `add`."""
        return self.add(
            TurnRun(
                prompt=prompt,
                record=self.record,
                context=self.context,
                compressible=self.summarizer,
                approvals=self.approvals,
                later=self.later,
                services=self.services,
                resumed=resumed,
            )
        )

    def add_job(self, job: QueuedJob[Any]) -> None:
        """Queues the job. It is refused if an approval is requested while it waits."""
        self.add(job)
        question = self.approvals.next_question
        question.remove_done_callback(self._refuse_waiting_jobs)  # added for an earlier job
        question.add_done_callback(self._refuse_waiting_jobs)

    def add(self, item: QueueItem) -> int:
        """Queues the item and returns how many are before it. Call `advance` afterwards."""
        self._waiting.append(item)
        return len(self._waiting) - 1 + (self._working_on is not None)

    def advance(self) -> None:
        is_ending = self.services.draining or self.is_blocked or self.record.staleness.done()
        if self._working_on is not None or not self._waiting or is_ending:
            return  # the queue is run after the next start, or by the next owner
        item = self._working_on = self._waiting.pop(0)
        if isinstance(item, TurnRun):
            before = None if item.resumed is None else item.resumed.model
            choose, chosen = self.services.router.choose, self.record.model
            item.begin(choose(before, item.prompt.model, chosen))
            self.running = item
        self.record.activity.begin()
        self.services.spawn(partial(self._work_on, item))

    def block(self) -> None:
        self.is_blocked = True

    def unblock(self) -> None:
        self.is_blocked = False

    # Stopping

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
                self.record.activity.begin()
                self.services.spawn(partial(self._end_unstarted, item))
                return True
        return False

    def cancel_all(self, reason: str) -> None:
        running = (self.running.turn_id,) if self.running is not None else ()
        for turn_id in (*self.waiting, *running):
            self.cancel(turn_id, reason)

    def _cancel_stale(self, stale: asyncio.Future[str]) -> None:
        if self.running is not None:
            self.running.cancel(stale.result())

    def interrupt(self, reason: str) -> None:
        """The server stops: the running turn ends now, unless it can be suspended."""
        self.suspend(reason)
        if self.running is not None and self.running.state is not RunState.SUSPENDED:
            self.running.cancel(reason, code=INTERRUPTED)

    def suspend(self, reason: str) -> None:
        """Suspends the running turn if it waits for approvals and for nothing else. It keeps
        waiting for them after the next start of the server."""
        if self.running is not None:
            self.running.suspend(reason)

    def drop_jobs(self, why: RequestError) -> None:
        """Drops the running job and the waiting ones."""
        items = (self._working_on, *self._waiting)
        self._waiting = [item for item in self._waiting if isinstance(item, TurnRun)]
        for item in items:
            if isinstance(item, QueuedJob):
                item.drop(why)

    def _refuse_waiting_jobs(self, _: asyncio.Future[None]) -> None:
        """Refuses the waiting jobs, because an approval was requested, which may take long."""
        waiting = [item for item in self._waiting if isinstance(item, QueuedJob)]
        self._waiting = [item for item in self._waiting if isinstance(item, TurnRun)]
        for job in waiting:
            job.drop(self.approvals.as_reason_to_wait())

    # Running

    async def _work_on(self, item: QueueItem) -> None:
        request_id.set(item.turn_id if isinstance(item, TurnRun) else "")
        try:
            if not self._ending.is_quiet:
                await self._ending.quiet()
            await (self._run(item) if isinstance(item, TurnRun) else self._run_job(item))
        finally:
            self._working_on = None
            self.advance()
            self.record.activity.end()

    async def _run_job(self, job: QueuedJob[Any]) -> None:
        try:
            await self.settle()
        except RequestError as error:
            job.drop(error)
        else:
            await job.run()

    async def _run(self, turn: TurnRun) -> None:
        finished: TurnFinished | None
        began_at, counters = monotonic(), self.services.counters[self.record.user]
        stale = self.record.staleness
        if not stale.done():
            stale.add_done_callback(self._cancel_stale)
        try:
            if self.unwritten_ends:
                await self._write_ends_first()
            await turn.start()
            counters.turns_started += 1
            finished = await turn.run()
        except TurnSuspended:
            return
        except Exception as error:
            finished = await self._end_failed(turn, error)
        finally:
            stale.remove_done_callback(self._cancel_stale)
            turn.close()
            self.running = None
            if self.record.user in self.record.changes.watched:
                self.record.note_state()
        if finished is not None:
            counters.turn_seconds.add(monotonic() - began_at)
            self.namer.turn_ended()
            self._emit(finished)

    def _emit(self, finished: TurnFinished) -> None:
        counters = self.services.counters[self.record.user]
        counters.turns_finished[finished.model or "", finished.state] += 1
        if finished.error is not None and finished.state == "failed":
            code, model = finished.error["code"], finished.model or "no model"
            log.warning("%s: a turn of %s failed: %s", self.record.session_id, model, code)
        self.record.broadcast.emit(finished)

    async def _end_unstarted(self, turn: TurnRun) -> None:
        self.services.counters[self.record.user].turns_started += 1
        fault = FaultEntry(
            turn_id=turn.turn_id,
            content=turn.cancel_reason,
            code="cancelled",
            state="interrupted",
            never_began=True,
        )
        finished: TurnFinished | None
        try:
            entry = await turn.until_stored(lambda: self.record.append(fault))
            error: JsonObject = {"code": "cancelled", "message": turn.cancel_reason}
            finished = turn.finished("interrupted", entry.seq, error)
        except Exception as problem:
            finished = None if self.record.is_stale else self._unwritten(turn, problem)
        finally:
            self._ending.end()
            self.record.activity.end()
        if finished is not None:
            self._emit(finished)

    # Ends that could not be written

    async def _end_failed(self, turn: TurnRun, error: Exception) -> TurnFinished | None:
        """Ends a turn that could not end by itself. Returns its event, or `None` if its end is
        another server's to write."""
        finished = None if self.record.is_stale else self._unwritten(turn, error)
        if finished is not None and self.record.lease is not None:
            with suppress(StorageError):
                await turn.until_stored(self.write_ends)
        return None if self.record.is_stale else finished

    def _unwritten(self, turn: TurnRun, error: Exception) -> TurnFinished:
        """The event for a turn whose end could not be written (a full disk, a bug). It is sent
        anyway, so that no client waits for ever; the entry is written later."""
        known = error_to_tell(error, log, f"a turn of {self.record.session_id} failed")
        code, reason = known.code, known.message
        self._write_later(
            FaultEntry(turn_id=turn.turn_id, content=reason, code=code, state="failed")
        )
        head_seq = self.record.history.head_seq
        return turn.finished(
            "failed", head_seq, {"code": code, "message": reason}, with_usage=False
        )

    async def write_ends(self) -> None:
        """Writes the ends that were sent but could not be written. This comes before any other
        write, because a turn that is over must never be resumed."""
        if not self._ending.is_quiet:
            await self._ending.quiet()  # so that no end is written twice
        while self.unwritten_ends:
            fault = self.unwritten_ends[0]
            self._ending.begin()
            try:
                await recovery.end_turn(self.record, self.services.tools, fault)
            finally:
                self._ending.end()
            self.unwritten_ends.remove(fault)

    async def _write_ends_first(self) -> None:
        """Writes the missing ends before a turn begins, however long that takes: what was sent
        must be true when the turn runs."""
        pause, longest = _RETRY_SECONDS
        while True:
            try:
                return await self.write_ends()
            except StorageError:
                if self.record.is_closed or self.record.is_stale:
                    raise
            await anyio.sleep(pause)
            pause = min(pause * 2, longest)

    async def settle(self) -> None:
        """Writes the missing ends of turns, for an operation that needs them; raises `busy` if
        that is not possible."""
        if not self.unwritten_ends and self._ending.is_quiet:
            return
        try:
            with anyio.fail_after(_SETTLE_SECONDS_MAX):
                await self.write_ends()
        except (StorageError, TimeoutError) as error:
            raise RequestError(
                ErrorCode.BUSY,
                f"the end of the last turn can't be written yet: {error or 'the storage is away'}. "
                "It is tried again; then this can be done.",
                retry_after=_RETRY_SECONDS[-1],
            ) from error

    def _write_later(self, fault: FaultEntry) -> None:
        self.unwritten_ends.append(fault)
        if not self._is_retrying:
            self._is_retrying = True
            self.services.spawn(self._retry_ends)

    async def _retry_ends(self) -> None:
        """Tries to write the missing ends, with growing pauses, until the record is closed."""
        pause, longest = _RETRY_SECONDS
        try:
            while self.unwritten_ends and not (self.record.is_closed or self.record.is_stale):
                await anyio.sleep(pause)
                pause = min(pause * 2, longest)
                with suppress(StorageError, RequestError):
                    await self.write_ends()
        finally:
            self._is_retrying = False

    # Before the server stops, and after its next start

    async def note_shutdown(self) -> None:
        """Writes the missing ends, and a note of the prompts that are only waiting."""
        await self.write_ends()
        if (waiting := self.waiting) and self.running is None:
            await self.record.append(recovery.shutdown_note(len(waiting)))

    async def resume_unfinished(self) -> None:
        """Resumes or ends the turns that a stopped server left unfinished."""
        record, tools = self.record, self.services.tools
        has_note = recovery.has_shutdown_note(record.history)
        for each in tuple(recovery.unfinished_prompts(record, tools, self.services.clock())):
            turn_id = each.prompt.turn_id or ""
            if not each.is_interrupted:
                if each.step is not None:
                    self.approvals.reopen(turn_id, each.step.results)
                self.add_prompt(await record.with_tools(each.prompt), each.step)
                continue
            try:
                await recovery.end_turn(record, tools, recovery.interruption(turn_id))
            except StorageError as error:
                log.warning("%s: the end of a turn is missing: %s", record.session_id, error)
                self._write_later(recovery.interruption(turn_id))
        if has_note and self._waiting:
            with suppress(StorageError):  # if it fails, the prompts may be run a second time
                await record.append(recovery.shutdown_note_used())
        self.advance()
