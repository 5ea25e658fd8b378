"""Runs one turn: from a prompt to its final answer.

`TurnRun` is the turn: its prompt, model, call number, output, results, usage, clock and
cancel scope. Its loop is context, model call, output entry, tools, results, again; bounded
in calls and in time:

    prompt → context → model → deltas → one output entry → tools → results → again

Every turn ends with one entry on disk: an answer, a partial answer, or a fault with the
reason. Cancelling closes the provider's stream at once; the output so far is kept as
interrupted. A turn that waits for an approval can be suspended, and resumed after a restart
of the server.

Retries and fallback are in `model_call`, repairs after a crash in `turn_queue`. Time spent
waiting for approvals does not count towards the turn's time limit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal, TypeVar

import anyio
from msgspec.structs import replace

from nplt_protocol import ErrorCode, RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import TurnFinished
from nplt_server import logs
from nplt_server.context.source import ContextView
from nplt_server.conversations.broadcast import TurnEvents
from nplt_server.conversations.model_call import ModelCall
from nplt_server.errors import (
    AnswerRejected,
    ProviderError,
    ProviderUnavailable,
    error_to_tell,
)
from nplt_server.providers.accumulator import ModelOutputAccumulator, usage_as_json
from nplt_server.providers.route import ModelRoute
from nplt_server.tools import ToolFailed
from nplt_storage.entries import (
    AttachmentEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    SentContext,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.search import SearchHit, SearchQuery

if TYPE_CHECKING:
    from nplt_server.conversations.conversation import Conversation

log = logging.getLogger(__name__)


class TurnClock:
    """Limits how long a turn takes, not counting the time it waits for approvals."""

    def __init__(self) -> None:
        self._scope: anyio.CancelScope | None = None
        self._seconds_left = math.inf
        self._stops = 0

    @property
    def is_stopped(self) -> bool:
        """Whether the turn waits for an approval or for a slot."""
        return bool(self._stops)

    def start(self, seconds: float) -> anyio.CancelScope:
        """A cancel scope that ends after so many seconds, not counting stops."""
        self._scope = anyio.CancelScope(deadline=monotonic() + seconds)
        return self._scope

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock. Stops may overlap: the clock goes on after the last one."""
        self._stops += 1
        if self._stops == 1 and self._scope is not None:
            self._seconds_left = self._scope.deadline - monotonic()
            self._scope.deadline = math.inf
        try:
            yield
        finally:
            self._stops -= 1
            if not self._stops and self._scope is not None:
                self._scope.deadline = monotonic() + self._seconds_left


class TurnSuspended(Exception):
    """The turn has not ended: it is resumed after the next start of the server."""


@dataclass(slots=True, eq=False, repr=False)
class TurnRun:
    conversation: Conversation
    prompt: ModelInputEntry
    turn_id: str = field(init=False)
    route: ModelRoute = field(init=False)
    events: TurnEvents = field(init=False)
    tool_host: TurnToolHost = field(init=False)
    clock: TurnClock = field(default_factory=TurnClock)
    model: str = ""
    """Chosen when the turn starts; fixed once there is output."""
    call: int = 0
    has_answer: bool = False
    """The turn is resumed after it waited for an approval: the output of call number
    `call` is written, and `results` holds the tool results so far."""
    results: dict[str, ToolCallResult] = field(default_factory=dict)
    usage: dict[str, int] = field(default_factory=dict)
    output: ModelOutputAccumulator | None = None
    view: ContextView | None = None
    """The context of the current call."""
    content_refused: bool = False
    """The provider refused the content of the request without naming a message."""
    asks_people: bool = False
    cancel_called: bool = False
    cancel_reason: str = "cancelled"
    is_suspended: bool = False
    """The server is stopping, and the turn is resumed after the next start."""
    _has_slot: bool = False
    _scope: anyio.CancelScope | None = None

    def __post_init__(self) -> None:
        assert self.prompt.turn_id is not None
        self.turn_id = self.prompt.turn_id
        self.events = TurnEvents(self.conversation, self.turn_id)
        self.tool_host = TurnToolHost(self)

    def use_model(self, model: str) -> None:
        self.model = model
        self.route = self.conversation.services.router.route_of(model)

    @property
    def invocation(self) -> ModelInvocationDescriptor:
        return self.route.invocation

    @property
    def has_rejected(self) -> bool:
        """Whether an answer of the turn did not fit the schema of the prompt."""
        if "schema" not in self.prompt.options:
            return False
        turn = self.conversation.history.turn(self.turn_id)
        entries = turn.entries if turn is not None else ()
        return any(isinstance(entry, ModelOutputEntry) and entry.rejected for entry in entries)

    # Stopping it

    def cancel(self, reason: str) -> None:
        self.cancel_called = True
        self.cancel_reason = reason
        if self._scope is not None:
            self._scope.cancel()

    def suspend(self, reason: str) -> None:
        """Stops the turn without an entry or event. It is resumed after a restart."""
        self.is_suspended = True
        self.cancel(reason)

    def cancellable(self, scope: anyio.CancelScope) -> anyio.CancelScope:
        """From now on `cancel` cancels this scope; at once if `cancel` was called before."""
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
        seconds = self.conversation.services.limits.turn_seconds_max
        return AnswerRejected(
            ErrorCode.PROVIDER_REFUSED,
            f"the answer was not complete within {seconds:g} s; ask for less at a time",
        )

    # Running it

    async def run(self) -> TurnFinished:
        """Runs the turn until its last entry is on disk, or raises `TurnSuspended`."""
        seconds = self.conversation.services.limits.turn_seconds_max
        with self.cancellable(self.clock.start(seconds)):
            try:
                return await self._run_steps()
            except Exception as error:
                if isinstance(error, StorageError) and not isinstance(error, BadEntry):
                    raise  # nothing can be written now, so the turn can't be ended either
                return await self._end_early("failed", error=self._error_as_json(error))
        if self.is_suspended:
            raise TurnSuspended
        if not self.cancel_called:
            return await self._end_early("failed", error=self._error_as_json(self._too_long))
        cancelled: JsonObject = {"code": "cancelled", "message": self.cancel_reason}
        return await self._end_early("interrupted", error=cancelled)

    async def _run_steps(self) -> TurnFinished:
        conversation, model_call = self.conversation, ModelCall(self)
        steps_max = conversation.services.limits.steps_max
        for call in range(self.call, steps_max):
            self.call = call
            self.events.begin_call(call)
            if self.has_answer:  # from before the restart
                self.has_answer = False
            else:
                if not self.take_slot_now():
                    with self.clock.stopped():
                        await self.take_slot()
                output = await conversation.call_model(model_call)
                if output.rejected is not None:
                    continue
                if not output.tool_calls:
                    return self.finished("completed", output.seq)
                self.results = {}
            await conversation.execute_tools(self)
            await self.write_results(why_skipped=self.why_stopped())
        raise AnswerRejected(
            ErrorCode.PROVIDER_REFUSED,
            f"the model called tools in {steps_max} steps without an answer; ask it to go on",
        )

    def take_slot_now(self) -> bool:
        """Takes a turn slot without waiting; False if none is free."""
        if not self._has_slot:
            conversation = self.conversation
            self._has_slot = conversation.services.slots.take_now(conversation.user)
        return self._has_slot

    async def take_slot(self) -> None:
        """Waits for a turn slot."""
        await self.conversation.services.slots.take(self.conversation.user, self.turn_id)
        self._has_slot = True

    def give_back_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self.conversation.services.slots.give_back(self.conversation.user, self.turn_id)

    async def _end_early(
        self, state: Literal["interrupted", "failed"], *, error: JsonObject
    ) -> TurnFinished:
        """Ends the turn without a complete answer: writes a result for every open tool call,
        then the partial answer or a fault."""
        code, reason = str(error["code"]), str(error["message"])
        with anyio.CancelScope(shield=True):
            await self.events.settled()
        await self.write_results(why_skipped=reason, execute_error=reason)
        output, self.output = self.output, None
        entry: Entry
        if output is not None and output.text:
            cut = output.entry(
                turn_id=self.turn_id,
                call=self.call,
                invocation=self.invocation,
                sent=self.sent,
            )
            cut = replace(cut, state=state, error=error)
            entry = await self.conversation.add_message(cut)
        else:
            usage = None if output is None else usage_as_json(output.usage)
            vendor = error.get("vendor")
            fault = FaultEntry(
                turn_id=self.turn_id,
                content=reason,
                code=code,
                state=state,
                invocation=None if usage is None else self.invocation,
                usage=usage,
                of_request=self.content_refused,
                vendor=vendor if isinstance(vendor, dict) else None,
            )
            entry = await self.conversation.writer.append(fault)
        return self.finished(state, entry.seq, error)

    def _error_as_json(self, error: Exception) -> JsonObject:
        known = error_to_tell(error, log, f"turn {self.turn_id} failed")
        fields: JsonObject = {"code": known.code, "message": known.message}
        if isinstance(error, ProviderUnavailable) and error.retry_after is not None:
            fields["retry_after"] = round(error.retry_after, 3)
        if isinstance(error, ProviderError) and error.vendor is not None:
            fields["vendor"] = error.vendor.as_json()
        return fields

    @property
    def sent(self) -> SentContext | None:
        return self.view.sent if self.view is not None else None

    # Its tools

    async def ask(self, tool_call: ToolCallRequest) -> str | None:
        """Asks people whether the tool call may run, and gives why not. Meanwhile the turn's
        clock is stopped and its slot is free for other turns."""
        self.asks_people = True
        with self.clock.stopped():
            self.give_back_slot()
            return await self.conversation.approvals.ask(self, tool_call)

    async def why_not_now(self) -> str | None:
        try:
            await self.conversation.writer.check_owned()
        except StorageError as error:
            return f"not run: {error}"
        return None

    def tool_started(self, tool_call: ToolCallRequest) -> None:
        self.events.tool_started(tool_call)

    def tool_finished(self, result: ToolCallResult) -> None:
        if self.is_suspended:
            return  # the tool was not run; the approval is asked for again after the restart
        if logs.tools.on:
            logs.tools(
                "ran",
                turn=self.turn_id,
                tool=result.tool_name,
                status=result.status,
                seconds=result.duration,
                characters=len(result.result),
            )
        self.results[result.tool_call_id] = result
        self.events.tool_finished(result)

    async def write_results(self, *, why_skipped: str, execute_error: str | None = None) -> None:
        """Writes one entry with the results of all open tool calls. A call without a result
        counts as skipped. `execute_error`: why the turn ends while they are executed."""
        conversation = self.conversation
        tool_calls = conversation.history.open_tool_calls(self.turn_id)
        if not tool_calls:
            return
        tools = conversation.services.tools
        results = [
            self.results.get(tool_call.tool_call_id) or tools.skipped(tool_call, why_skipped)
            for tool_call in tool_calls
        ]
        kept = tuple([await self._keep_whole(result) for result in results])
        draft = ToolResultsEntry(
            turn_id=self.turn_id, call=self.call, results=kept, execute_error=execute_error
        )
        await conversation.add_message(draft)

    async def _keep_whole(self, result: ToolCallResult) -> ToolCallResult:
        """Stores a result over the size limit as a blob; the entry holds its beginning."""
        bytes_max = self.conversation.services.limits.tool_result_bytes_max
        if len(result.result) * 4 <= bytes_max:
            return result
        data = result.result.encode()
        if len(data) <= bytes_max:
            return result
        beginning, blob = data[:bytes_max].decode(errors="ignore"), None
        with anyio.CancelScope(shield=True):
            blob = await (await self.conversation.writer.open()).keep_blob(data)
        return replace(result, result=beginning, blob=blob)

    def finished(
        self,
        state: Literal["completed", "interrupted", "failed"],
        seq: int,
        error: JsonObject | None = None,
    ) -> TurnFinished:
        return TurnFinished(
            session_id=self.conversation.session_id,
            turn_id=self.turn_id,
            state=state,
            seq=seq,
            usage={**self.usage},
            error=error,
            model=self.model or None,
        )


_Changed = TypeVar("_Changed")


class TurnToolHost:
    """The tools' access to the conversation of one turn.

    A tool that could not be stopped may still run when the turn is over; its changes are
    then refused.
    """

    __slots__ = ("_conversation", "is_over", "session_id", "turn_id", "user")

    def __init__(self, turn: TurnRun) -> None:
        self.turn_id = turn.turn_id
        self.session_id = turn.conversation.session_id
        self.user = turn.conversation.user
        self.is_over = False
        self._conversation = turn.conversation

    @property
    def notebook(self) -> str:
        return self._conversation.context.state.notebook

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        state = self._conversation.context.state
        return await state.update_memory_notebook(self._in_time(change), turn_id=self.turn_id)

    def widget_state(self, name: str) -> JsonObject:
        return self._conversation.context.state.widget_state(name)

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        state = self._conversation.context.state
        return await state.update_widget(name, self._in_time(change), turn_id=self.turn_id)

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        for entry in reversed(self._conversation.history.active):
            if isinstance(entry, ToolResultsEntry):
                for result in entry.results:
                    if result.tool_call_id == tool_call_id:
                        return result
        return None

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        store = self._conversation.writer.profile.store
        return await store.blob(self.session_id, blob_id, offset, length)

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        histories = self._conversation.services.histories
        found = await histories.search(self.user, SearchQuery(text=query, limit=limit))
        return list(found.hits)

    async def keep_file(self, filename: str, content_type: str, data: bytes) -> str:
        if self.is_over:
            raise ToolFailed("the turn is over")
        files = self._conversation.services.files
        try:
            async with files.receive(self.session_id, size=len(data)) as upload:
                await upload.write(data)
                stored = await upload.finish()
            await self._conversation.append_entry(
                AttachmentEntry(
                    file_id=stored.file_id,
                    filename=filename,
                    size=stored.size,
                    sha256=stored.sha256,
                    content_type=content_type,
                )
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
