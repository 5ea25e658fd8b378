"""Runs one turn: from a prompt to its final answer.

`TurnRun` is the turn. Its loop is bounded in calls and in time:

    context → model → deltas → one output entry → tools → one results entry → again

Every turn ends with one entry on disk: an answer, a partial answer, or a fault with the
reason. Cancelling closes the provider's stream at once; the output so far is stored as
interrupted. A turn that waits for an approval can be suspended, and resumed after a restart
of the server.

`model_caller` prepares the context, calls the model and recovers from failures; `recovery`
decides what becomes of a turn after a crash. Time spent waiting for approvals does not count
towards the turn's time limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import monotonic
from typing import Final, Literal, TypeVar

import anyio
from msgspec.structs import replace

from nplt_protocol import ErrorCode, RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import TurnFinished, TurnStarted, names_tool
from nplt_server import logs
from nplt_server.conversations.approvals import Approvals
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.conversations.later_prompts import LaterPrompts
from nplt_server.conversations.model_caller import CallOutcome, ModelCaller
from nplt_server.conversations.record import ConversationRecord
from nplt_server.conversations.services import Compressible, Services
from nplt_server.conversations.turn_events import STORAGE_SLOW_SECONDS, TurnEvents
from nplt_server.errors import (
    AnswerRejected,
    ProviderError,
    ProviderRefused,
    ProviderUnavailable,
    error_to_tell,
)
from nplt_server.tools import ToolFailed
from nplt_server.tools.client_tools import marked, results_skipped
from nplt_storage.entries import (
    AttachmentEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import (
    BadEntry,
    ConversationReadOnly,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.pages import PageQuery
from nplt_storage.search import SearchHit, SearchQuery

log = logging.getLogger(__name__)

_OWN_MESSAGES_MAX: Final = 20
"""How many hits may be messages of the running turn, which are not shown to its own search."""
_AROUND_BYTES_MAX: Final = 64 * 1024
_STORAGE_RETRY_SECONDS: Final = (0.1, 1.0)
"""The first and the longest pause before a write to an absent store is tried again."""

_Written = TypeVar("_Written")


class RunState(Enum):
    WAITING = "waiting"
    """The turn is in the queue."""
    RUNNING = "running"
    PAUSED = "paused"
    """Waiting for an approval, for a slot after one, or for the store. The clock is stopped."""
    SUSPENDED = "suspended"
    """Stopped without an end, to be resumed after the next start of the server."""
    OVER = "over"

    __hash__ = object.__hash__  # Enum's own is written in Python, and slow


class RunTransition(Enum):
    BEGIN = "its turn comes"
    CANCEL = "it is cancelled in the queue"
    PAUSE = "it asks for an approval, or waits for a slot after one or for the store"
    GO_ON = "it has its approval or slot, the store is back, or it is cancelled"
    SUSPEND = "the server stops while it waits for people and for nothing else"
    END = "it ends"

    __hash__ = object.__hash__


RUN_STATES: Final[Mapping[RunState, Mapping[RunTransition, RunState]]] = {
    RunState.WAITING: {RunTransition.BEGIN: RunState.RUNNING, RunTransition.CANCEL: RunState.OVER},
    RunState.RUNNING: {
        RunTransition.PAUSE: RunState.PAUSED,
        RunTransition.SUSPEND: RunState.SUSPENDED,  # resumed, and about to wait again
        RunTransition.END: RunState.OVER,
    },
    RunState.PAUSED: {
        RunTransition.GO_ON: RunState.RUNNING,
        RunTransition.SUSPEND: RunState.SUSPENDED,
    },
    RunState.SUSPENDED: {},
    RunState.OVER: {},
}
"""The states of a turn in this process. docs/architecture.md shows the same table."""


class TurnClock:
    """Limits how long a turn takes, not counting the time it waits for approvals."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._seconds_left = math.inf

    def start(self, seconds: float) -> anyio.CancelScope:
        """Returns a cancel scope that ends after that many seconds, not counting the time while the
        clock is stopped."""
        self._scope = anyio.CancelScope(deadline=monotonic() + seconds)
        return self._scope

    def stop(self) -> None:
        if self._scope is not None:
            self._seconds_left = self._scope.deadline - monotonic()
            self._scope.deadline = math.inf

    def go_on(self) -> None:
        if self._scope is not None:
            self._scope.deadline = monotonic() + self._seconds_left

    def add(self, seconds: float) -> None:
        """Adds to the time that is left."""
        if self._scope is not None:
            self._scope.deadline += seconds


CANCELLED: Final = "cancelled"
"""The stop reason of a turn that was interrupted."""


class TurnSuspended(Exception):
    """The turn has not ended: it is resumed after the next start of the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InterruptedStep:
    """The state of a turn that was waiting for an approval when the server stopped. The output of
    `call` is in the record; `results` are those of its tool calls so far."""

    model: str
    call: int
    results: Mapping[str, ToolCallResult]
    usage: Mapping[str, int]


@dataclass(slots=True, eq=False, repr=False, kw_only=True)
class TurnRun:
    prompt: ModelInputEntry
    record: ConversationRecord
    context: ContextManager
    compressible: Compressible
    approvals: Approvals
    later: LaterPrompts
    services: Services
    resumed: InterruptedStep | None = None
    turn_id: str = field(init=False)
    events: TurnEvents = field(init=False)
    state: RunState = field(init=False, default=RunState.WAITING)
    call: int = field(init=False, default=0)
    cancel_called: bool = field(init=False, default=False)
    cancel_reason: str = field(init=False, default="cancelled")
    _cancel_code: str = field(init=False, default=CANCELLED)
    _clock: TurnClock = field(init=False, default_factory=TurnClock)
    _pauses: int = field(init=False, default=0)
    """The number of waits in progress: of tool calls for approvals, or of the turn for a slot."""
    caller: ModelCaller | None = field(init=False, default=None)
    """Set by `begin`. It has the model that answers."""
    tool_host: TurnToolHost = field(init=False)
    _results: dict[str, ToolCallResult] = field(init=False, default_factory=dict)
    """The results of the last output's tool calls so far, by the id of the call."""
    _asks_people: bool = field(init=False, default=False)
    _has_slot: bool = field(init=False, default=False)
    _scope: anyio.CancelScope | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        assert self.prompt.turn_id is not None
        self.turn_id = self.prompt.turn_id
        self.events = TurnEvents(self.record, self.turn_id)
        if self.resumed is not None:
            self.call = self.resumed.call
            self._asks_people = True
            self._results.update(self.resumed.results)

    @property
    def model(self) -> str | None:
        """The model that this turn calls. For a resumed turn that has not begun again, the model it
        had before the restart."""
        if self.caller is not None:
            return self.caller.model
        return None if self.resumed is None else self.resumed.model

    @property
    def usage(self) -> Mapping[str, int]:
        """The tokens that this turn has used, also before a restart."""
        if self.caller is not None:
            return self.caller.usage
        return {} if self.resumed is None else self.resumed.usage

    def begin(self, model: str) -> None:
        """Chooses the model, which is fixed once there is output."""
        self._take(RunTransition.BEGIN)
        self.tool_host = TurnToolHost(self)
        self.caller = ModelCaller(
            self.prompt,
            model,
            context=self.context,
            compressible=self.compressible,
            events=self.events,
            services=self.services,
        )
        if self.resumed is not None:
            self.caller.add_usage(self.resumed.usage)

    @property
    def is_at_work(self) -> bool:
        """Whether it runs and waits for nothing but models and tools."""
        return self.state is RunState.RUNNING and self._has_slot

    def _take(self, transition: RunTransition) -> None:
        self.state = RUN_STATES[self.state][transition]
        if self.record.user in self.record.changes.watched:
            self.record.note_state()

    @contextmanager
    def _paused(self) -> Iterator[None]:
        """Stops the clock. Pauses may overlap: the clock continues after the last one."""
        self._pauses += 1
        if self._pauses == 1 and self.state is RunState.RUNNING:
            self._take(RunTransition.PAUSE)
            self._clock.stop()
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses and self.state is RunState.PAUSED:
                self._take(RunTransition.GO_ON)
                self._clock.go_on()

    async def until_stored(self, write: Callable[[], Awaitable[_Written]]) -> _Written:
        """Repeats a write as long as the store that several servers share is away. That time does
        not count, and the clients are sent the reason. A full disk is an error, because it may stay
        full."""
        pause, longest = _STORAGE_RETRY_SECONDS
        is_announced = False
        while True:
            began = monotonic()
            try:
                return await write()
            except (StorageUnavailable, ConversationReadOnly) as error:
                record = self.record
                if record.lease is None or record.is_stale or record.is_closed:
                    raise
                if not is_announced:
                    self.events.announce_wait(f"waits for storage: {error}")
                is_announced = True
            self._clock.add(monotonic() - began)
            with self._paused():
                await anyio.sleep(pause)
            pause = min(pause * 2, longest)

    # Stopping it

    def cancel(self, reason: str, *, code: str = CANCELLED) -> None:
        if self.state is RunState.WAITING:
            self._take(RunTransition.CANCEL)
        self.cancel_called = True
        self.cancel_reason, self._cancel_code = reason, code
        if self._scope is not None:
            self._scope.cancel()

    def suspend(self, reason: str) -> None:
        """Stops the turn without an entry or event, if it waits for approvals and for nothing else.
        It is resumed after a restart."""
        if self.state is not RunState.SUSPENDED and self.approvals.suspend(self.turn_id):
            self._take(RunTransition.SUSPEND)
            self.cancel(reason)

    def _cancellable(self, scope: anyio.CancelScope) -> anyio.CancelScope:
        """Lets `cancel` cancel this scope, at once if `cancel` has been called already."""
        self._scope = scope
        if self.cancel_called:
            scope.cancel()
        return scope

    def why_stopped(self) -> str:
        """The reason written into the results of tools that were stopped."""
        is_over = self._scope is not None and self._scope.cancel_called
        return str(self._too_long) if is_over and not self.cancel_called else self.cancel_reason

    @property
    def _too_long(self) -> AnswerRejected:
        seconds = self.services.limits.turn_seconds_max
        return AnswerRejected(
            ErrorCode.PROVIDER_REFUSED,
            f"the answer was not complete within {seconds:g} s; ask for less at a time",
        )

    # Turn slots

    async def start(self) -> None:
        """Waits for a slot, and emits TURN_STARTED."""
        started = TurnStarted(
            session_id=self.record.session_id,
            turn_id=self.turn_id,
            seq=self.prompt.seq,
            model=self.model or "",
            message_id=self.prompt.message_id,
        )
        if not self._take_slot_now():
            with self._cancellable(anyio.CancelScope()):
                await self._take_slot()
        if self.record.user in self.record.changes.watched:
            self.record.note_state()
        self.record.broadcast.emit(started)

    def _take_slot_now(self) -> bool:
        """Takes a turn slot without waiting; False if none is free."""
        if not self._has_slot:
            self._has_slot = self.services.slots.take_now(self.record.user)
        return self._has_slot

    async def _take_slot(self) -> None:
        await self.services.slots.take(
            self.record.user,
            self.turn_id,
            on_wait=lambda why: self.events.send_status("waiting", f"waits for a slot: {why}"),
        )
        self._has_slot = True

    def _give_back_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self.services.slots.give_back(self.record.user, self.turn_id)

    # Running it

    async def run(self) -> TurnFinished:
        """Runs the turn until its last entry is on disk, or raises `TurnSuspended`."""
        seconds = self.services.limits.turn_seconds_max
        with self._cancellable(self._clock.start(seconds)):
            try:
                return await self._run_calls()
            except Exception as error:
                if isinstance(error, StorageError) and not isinstance(error, BadEntry):
                    raise  # nothing can be written now, so the turn can't be ended either
                put_off = await self._put_off(error)
                if put_off is not None:
                    return put_off
                return await self._end_early("failed", self._error_as_json(error), error)
        if self.state is RunState.SUSPENDED:
            raise TurnSuspended
        if not self.cancel_called:
            return await self._end_early("failed", self._error_as_json(self._too_long))
        cancelled: JsonObject = {"code": self._cancel_code, "message": self.cancel_reason}
        return await self._end_early("interrupted", cancelled)

    async def _run_calls(self) -> TurnFinished:
        """The loop: a call, then its tools, until a call returns an answer."""
        await self._skip_calls_of_clients()
        calls_max, first = self.services.limits.calls_max, self.call
        for call in range(first, calls_max):
            self.call = call
            if self.resumed is not None and call == first:
                self.events.begin_call(call)  # its output is in the record already
            else:
                output = await self._call_model()
                if output.rejected is not None:
                    continue
                if not output.tool_calls or output.awaits_client:
                    return self.finished("completed", output.seq, stop_reason=output.stop_reason)
                self._results = {}
            await self._execute_tools()
            results = await self._write_results(why_skipped=self.why_stopped())
            if results is not None and results.awaits_client:
                return self.finished("completed", results.seq, stop_reason="tool_calls")
        raise AnswerRejected(
            ErrorCode.PROVIDER_REFUSED,
            f"the model called tools in {calls_max} steps without an answer; ask it to go on",
        )

    async def _call_model(self) -> ModelOutputEntry:
        """Makes one model call and writes its output."""
        assert self.caller is not None
        if not self._take_slot_now():  # it was given back during the wait for an approval
            with self._paused():
                await self._take_slot()
        made = await self.until_stored(self._make_call)
        if self.events.held:
            await self._wait_until_sent()
        draft = made.entry(self.turn_id, self.call, self.services.new_entry_id)
        if self.prompt.tools:
            draft = marked(draft, self.prompt)
        if "schema" in self.prompt.options and not draft.tool_calls:
            draft = replace(draft, rejected=await self._why_rejected(draft))
        entry = await self.until_stored(lambda: self.context.state.append_model_output(draft))
        self.caller.take_outcome()
        if entry.rejected is not None:
            self.events.send_status(
                "retrying",
                f"the answer does not fit the schema ({entry.rejected}); the model is asked "
                "once to mend it",
            )
        return entry

    async def _make_call(self) -> CallOutcome:
        """The call fails for want of the store only before the model is called, or before any
        text was sent, so it may be made again."""
        assert self.caller is not None
        return await self.caller.call(self.call, answer_only=self._has_rejected)

    async def _wait_until_sent(self) -> None:
        """Waits until all text of the call was journaled and sent. A long wait does not count."""
        with anyio.move_on_after(STORAGE_SLOW_SECONDS):
            await self.events.wait_until_sent()
            return
        with self._paused():
            await self.events.wait_until_sent()

    @property
    def _has_rejected(self) -> bool:
        """Whether an answer in this turn did not fit the prompt's schema."""
        if "schema" not in self.prompt.options:
            return False
        turn = self.record.history.turn(self.turn_id)
        entries = turn.entries if turn is not None else ()
        return any(isinstance(entry, ModelOutputEntry) and entry.rejected for entry in entries)

    async def _why_rejected(self, answer: ModelOutputEntry) -> str | None:
        """Why the answer does not fit the schema of the prompt, if the model is to be asked
        for another one; that is done once in a turn."""
        schema = self.prompt.options.get("schema")
        if not isinstance(schema, dict):
            return None
        from nplt_server.providers.schemas import fault_of_answer

        fault = await fault_of_answer(schema, answer.content)
        if fault is not None and (self._has_rejected or answer.stop_reason == "refusal"):
            tries = ", and neither did the one before it" if self._has_rejected else ""
            raise AnswerRejected(
                ErrorCode.SCHEMA_MISMATCH,
                f"the model's answer does not fit the schema{tries}: {fault}; "
                "ask again, or choose another model",
            )
        return fault

    # Its tools

    async def _execute_tools(self) -> None:
        """Runs the tool calls of the last output concurrently; a failure is a result. A resumed
        turn does not repeat tool calls that have results. A tool call that was not approved
        before the turn was suspended gets no result."""
        waiting = self.record.history.open_tool_calls(self.turn_id)
        due = (each for each in waiting if each.tool_call_id not in self._results)
        await self.services.tools.run_all(tuple(each for each in due if not each.by_client), self)

    async def _skip_calls_of_clients(self) -> None:
        """Writes results for the calls with which an earlier turn ended, if its client has not
        brought any: models and their providers are never shown a call without its result."""
        for turn_id, turn in tuple(self.record.history.awaiting_client.items()):
            results = results_skipped(turn, self.services.tools)
            draft = ToolResultsEntry(turn_id=turn_id, results=results)
            await self.until_stored(partial(self.context.state.append_tool_results, draft))

    async def ask(self, tool_call: ToolCallRequest) -> str | None:
        """Asks people whether the tool call may run. Returns the reason if it may not. Meanwhile
        the turn's clock is stopped and its slot is free for other turns."""
        self._asks_people = True
        with self._paused():
            self._give_back_slot()
            try:
                return await self.until_stored(lambda: self.approvals.ask(self.turn_id, tool_call))
            except StorageError as error:
                log.warning(
                    "%s: an approval could not be requested: %s", self.record.session_id, error
                )
                return "not run: no one could be asked, because nothing can be stored now"

    def why_denied(self, tool_name: str) -> str | None:
        denied = self.prompt.options.get("deny_tools")
        names = denied if isinstance(denied, list) else ()
        if any(isinstance(each, str) and names_tool(each, tool_name) for each in names):
            return f"not run: {tool_name} is denied for this prompt"
        return None

    async def why_not_now(self) -> str | None:
        try:
            await self.until_stored(self.record.check_owned)
        except StorageError as error:
            return f"not run: {error}"
        return None

    def tool_started(self, tool_call: ToolCallRequest) -> None:
        self.events.tool_started(tool_call)

    def tool_finished(self, result: ToolCallResult) -> None:
        if self.state is RunState.SUSPENDED:
            return  # the tool was not run; the approval is requested again after the restart
        if logs.tools.on:
            logs.tools(
                "ran",
                turn=self.turn_id,
                tool=result.tool_name,
                status=result.status,
                seconds=result.duration,
                characters=len(result.result),
            )
        self._results[result.tool_call_id] = result
        server, services = result.tool_name.partition("__")[0], self.services
        source = server if server in services.mcp_servers.by_name else ""
        services.counters[self.record.user].tool_calls[source, result.status] += 1
        self.events.tool_finished(result)

    async def _write_results(
        self, *, why_skipped: str, execute_error: str | None = None
    ) -> ToolResultsEntry | None:
        """Writes one entry with the results of all open tool calls. A call without a result
        counts as skipped, unless its client is yet to run it. `execute_error`: why the turn ends
        before they have all run."""
        tool_calls = self.record.history.open_tool_calls(self.turn_id)
        if not tool_calls:
            return None
        tools = self.services.tools

        def missing(call: ToolCallRequest) -> ToolCallResult:
            is_left_to_client = call.by_client and execute_error is None
            return tools.pending(call) if is_left_to_client else tools.skipped(call, why_skipped)

        results = [self._results.get(each.tool_call_id) or missing(each) for each in tool_calls]
        stored = tuple([await self._keep_whole(result) for result in results])
        draft = ToolResultsEntry(
            turn_id=self.turn_id, call=self.call, results=stored, execute_error=execute_error
        )
        return await self.until_stored(lambda: self.context.state.append_tool_results(draft))

    async def _keep_whole(self, result: ToolCallResult) -> ToolCallResult:
        if len(result.result) * 4 <= self.services.limits.tool_result_bytes_max:
            return result
        with anyio.CancelScope(shield=True):
            return await self.until_stored(lambda: self.record.keep_whole(result))
        raise AssertionError("a shielded scope is not cancelled")

    # Ending it

    async def _put_off(self, error: Exception) -> TurnFinished | None:
        """Ends the turn and stores its prompt as one for later, if its model is rate-limited and
        nothing has come of it. `None` if the turn is to fail instead."""
        assert self.caller is not None
        seconds = self.caller.seconds_to_hold(error)
        if seconds is None or self.call:
            return None
        with anyio.CancelScope(shield=True):  # half of it would be a prompt that is run twice
            later = await self.until_stored(lambda: self.later.put_off(self.prompt, seconds))
            if later is None:
                return None
            reason = f"{error}; the prompt is held until {later.not_before:%Y-%m-%d %H:%M:%S} UTC"
            fault = FaultEntry(
                turn_id=self.turn_id,
                content=reason,
                code=ErrorCode.RATE_LIMITED,
                state="interrupted",
                never_began=True,
            )
            entry = await self.until_stored(lambda: self.record.append(fault))
            self.caller.take_outcome()
            known: JsonObject = {"code": ErrorCode.RATE_LIMITED, "message": reason}
            due: JsonObject = {"turn_id": later.turn_id, "due_at": later.not_before.isoformat()}
            end = self.finished("interrupted", entry.seq, known)
            return replace(end, stop_reason=None, later=due)
        raise AssertionError("a shielded scope is not cancelled")

    async def _end_early(
        self,
        state: Literal["interrupted", "failed"],
        error: JsonObject,
        cause: Exception | None = None,
    ) -> TurnFinished:
        """Ends the turn without a complete answer: writes a result for every open tool call,
        then what was sent of the answer or its reasoning, or else a fault."""
        code, reason = str(error["code"]), str(error["message"])
        with anyio.CancelScope(shield=True):
            await self._wait_until_sent()
        await self._write_results(why_skipped=reason, execute_error=reason)
        made = None if self.caller is None else self.caller.take_outcome()
        entry: Entry
        is_of_request = isinstance(cause, ProviderRefused) and cause.is_about_content
        has_thought = made is not None and bool(made.output.reasoning) and not is_of_request
        if made is not None and (made.output.text or has_thought):
            cut = replace(
                made.cut_entry(self.turn_id, self.call),
                state=state,
                error=error,
                stop_reason=CANCELLED if state == "interrupted" else made.output.stop_reason,
            )
            entry = await self.until_stored(lambda: self.context.state.append_model_output(cut))
        else:
            usage = None if made is None else made.usage
            vendor = error.get("vendor")
            fault = FaultEntry(
                turn_id=self.turn_id,
                content=reason,
                code=code,
                state=state,
                invocation=None if made is None or usage is None else made.invocation,
                usage=usage,
                of_request=is_of_request,
                vendor=vendor if isinstance(vendor, dict) else None,
            )
            entry = await self.until_stored(lambda: self.record.append(fault))
        return self.finished(state, entry.seq, error)

    def _error_as_json(self, error: Exception) -> JsonObject:
        known = error_to_tell(error, log, f"turn {self.turn_id} failed")
        fields: JsonObject = {"code": known.code, "message": known.message}
        if isinstance(error, ProviderUnavailable) and error.retry_after is not None:
            fields["retry_after"] = round(error.retry_after, 3)
        if isinstance(error, ProviderError) and error.vendor is not None:
            fields["vendor"] = error.vendor.as_json()
        return fields

    def finished(
        self,
        state: Literal["completed", "interrupted", "failed"],
        seq: int,
        error: JsonObject | None = None,
        *,
        stop_reason: str | None = None,
        with_usage: bool = True,
    ) -> TurnFinished:
        return TurnFinished(
            session_id=self.record.session_id,
            turn_id=self.turn_id,
            state=state,
            seq=seq,
            usage={**self.usage} if with_usage else {},
            error=error,
            model=self.model or None,
            stop_reason=CANCELLED if state == "interrupted" else stop_reason,
            fallback_from=None if self.caller is None else self.caller.fallback_from,
            cut=None if self.caller is None else self.caller.cut,
        )

    def close(self) -> None:
        """Called when the turn is over or suspended. Releases the slot and the approvals."""
        if self.state is not RunState.SUSPENDED:
            self._take(RunTransition.END)
        self._give_back_slot()
        self.tool_host.is_over = True
        if self._asks_people:
            self.approvals.drop(self.turn_id)


_Changed = TypeVar("_Changed")


class TurnToolHost:
    """The tools' access to the conversation of one turn.

    A tool that could not be stopped may still run when the turn is over. Its changes are then
    refused.
    """

    __slots__ = (
        *("_prompt_seq", "_record", "_services", "_state"),
        *("is_over", "session_id", "turn_id", "user"),
    )

    def __init__(self, turn: TurnRun) -> None:
        self.turn_id = turn.turn_id
        self.session_id = turn.record.session_id
        self.user = turn.record.user
        self.is_over = False
        self._prompt_seq = turn.prompt.seq
        self._record = turn.record
        self._state = turn.context.state
        self._services = turn.services

    @property
    def notebook(self) -> str:
        return self._state.notebook

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        return await self._state.update_memory_notebook(self._in_time(change), turn_id=self.turn_id)

    def widget_state(self, name: str) -> JsonObject:
        return self._state.widget_state(name)

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        return await self._state.update_widget(name, self._in_time(change), turn_id=self.turn_id)

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        for entry in reversed(self._record.history.active):
            if isinstance(entry, ToolResultsEntry):
                for result in entry.results:
                    if result.tool_call_id == tool_call_id:
                        return result
        return None

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        return await self._record.profile.store.blob(self.session_id, blob_id, offset, length)

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        histories = self._services.histories
        # This turn's own messages hold the words too.
        more = limit + _OWN_MESSAGES_MAX
        ranked = SearchQuery(text=query, limit=more, ranked=True, first_in=self.session_id)
        try:
            hits = [*(await histories.search(self.user, ranked)).hits]
            if len(hits) < limit:
                some = await histories.search(self.user, replace(ranked, any_word=True))
                known = {(hit.session_id, hit.seq) for hit in hits}
                hits += [hit for hit in some.hits if (hit.session_id, hit.seq) not in known]
        except StorageError as error:
            raise ToolFailed(f"the search failed: {error}") from error
        own = (hit.session_id == self.session_id and hit.seq >= self._prompt_seq for hit in hits)
        return [hit for hit, is_own in zip(hits, own, strict=True) if not is_own][:limit]

    async def messages_around(self, session_id: str, seq: int, limit: int) -> Sequence[JsonObject]:
        found = await self._services.histories.find(session_id)
        if found is None or found.row.user != self.user:
            raise ToolFailed(f"there is no conversation {session_id[:80]!r}")
        query = PageQuery(around=seq, limit=limit, bytes_max=_AROUND_BYTES_MAX)
        try:
            return (await found.profile.store.page(session_id, query)).messages
        except StorageError as error:
            raise ToolFailed(f"the conversation can't be read: {error}") from error

    async def keep_file(self, filename: str, content_type: str, data: bytes) -> str:
        if self.is_over:
            raise ToolFailed("the turn is over")
        try:
            async with self._services.files.receive(self.session_id, size=len(data)) as upload:
                await upload.write(data)
                stored = await upload.finish()
            await self._record.append(
                AttachmentEntry(
                    file_id=stored.file_id,
                    filename=filename,
                    size=stored.size,
                    sha256=stored.sha256,
                    content_type=content_type,
                )
            )
            path = self._services.files.path_of(self.session_id, stored.file_id)
            await self._services.kept_files.keep(
                self.session_id, stored.file_id, path, size=stored.size
            )
        except (StorageError, RequestError) as error:
            raise ToolFailed("the file can't be stored") from error
        return stored.file_id

    def _in_time(self, change: Callable[[_Changed], _Changed]) -> Callable[[_Changed], _Changed]:
        """Wraps a change with a check that the turn is not over. The check runs when the
        change is written, not when it is requested."""

        def checked(before: _Changed) -> _Changed:
            if self.is_over:
                raise ToolFailed("the turn is over")
            return change(before)

        return checked
