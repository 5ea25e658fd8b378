"""One conversation: its record, its context, its turn queue, its subscribers.

`Conversation` accepts prompts: a prompt is checked, written to disk and queued; then its
receipt is sent, and its entry to all subscribers. Turns belong to the conversation, not to a
connection: a client that leaves stops nothing. The turn itself is in `turn`; here are the
steps it is made of: one model call, the tools of one answer, the token check. Other
changes (rename, fork, redact, compact) are in `operations`.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, TypeAlias, TypeVar, overload

from msgspec.structs import replace

from nplt_protocol.codec import to_object
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import Attached, Prompt, Receipt, SessionEvent, UsageAccount
from nplt_server import logs
from nplt_server.context.source import CallBudget
from nplt_server.conversations.approvals import Approvals
from nplt_server.conversations.broadcast import (
    CLIENTS_MAX,
    NO_CLIENT,
    Broadcast,
    ConnectedClient,
    entry_event,
)
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.conversations.context_report import usage_of
from nplt_server.conversations.model_call import ModelCall
from nplt_server.conversations.record_writer import EntryT, RecordWriter
from nplt_server.conversations.services import Activity, OverThreshold, Services
from nplt_server.conversations.turn import TurnRun
from nplt_server.conversations.turn_queue import QueuedJob, TurnQueue, call_guarded
from nplt_server.histories import HistoryProfile
from nplt_storage.entries import (
    AttachmentEntry,
    ClearEntry,
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    Role,
    RollbackEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.errors import StorageError, WrittenElsewhere
from nplt_storage.history import (
    ConversationHistory,
    NotInReach,
    SentBefore,
    is_in,
    sent_before,
)
from nplt_storage.messages import ChatMessage
from nplt_storage.rows import NEW_NAME, ConversationRow
from nplt_storage.store import Opened

log = logging.getLogger(__name__)

ATTACHMENTS_MAX = 32

_Given = TypeVar("_Given")
_DraftT = TypeVar("_DraftT", RollbackEntry, RollbackEntry | None)
MessageEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | ToolResultsEntry


class Conversation:
    __slots__ = (
        "_context",
        "_not_begun",
        "activity",
        "approvals",
        "broadcast",
        "deleted",
        "is_leaving",
        "queue",
        "services",
        "session_id",
        "used_at",
        "user",
        "writer",
    )

    writer: RecordWriter
    queue: TurnQueue
    approvals: Approvals

    def __init__(
        self,
        session_id: str,
        *,
        user: str,
        services: Services,
        profile: HistoryProfile,
        opened: Opened | None = None,
        model: str | None = None,
    ) -> None:
        """`model`: one that was chosen before anything was stored.

        Most connections stand in a new conversation in which nothing is said. So that those
        cost little, record, queue and approvals are made when they are first used."""
        self.session_id = session_id
        self.user = user
        self.services = services
        self.deleted = False
        self.is_leaving = False
        """Another server is to have it: no further turn begins here."""
        self.used_at = monotonic()
        self.activity = Activity(part_of=services.activity)
        self.broadcast = Broadcast(services.limits.message_bytes_max)
        self._not_begun: tuple[HistoryProfile, str | None] | None = (profile, model)
        """Until its record is needed: where it will be kept, and the model."""
        if opened is not None:
            self._not_begun = None
            self.writer = RecordWriter(self, profile, opened)
        self._context: ContextManager | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Called for a part that is not there yet, and once only."""
            match name:
                case "writer":
                    assert self._not_begun is not None
                    (profile, model), self._not_begun = self._not_begun, None
                    self.writer = RecordWriter(self, profile, model=model)
                case "queue":
                    self.queue = TurnQueue(self)
                case "approvals":
                    self.approvals = Approvals(self)
                case _:
                    raise AttributeError(name)
            return getattr(self, name)

    # Its state

    @property
    def has_begun(self) -> bool:
        """Whether its record was asked for, and not only its name."""
        return self._not_begun is None

    @property
    def history(self) -> ConversationHistory:
        return self.writer.history

    @property
    def row(self) -> ConversationRow | None:
        return self.writer.row

    @property
    def name(self) -> str:
        return self.row.name if self.row else NEW_NAME

    @property
    def model(self) -> str:
        """The model that answers the next turn."""
        chosen = self._not_begun[1] if self._not_begun else self.writer.model
        return self.services.router.choose(chosen)

    @property
    def context(self) -> ContextManager:
        if self._context is None:
            self._context = ContextManager(self)
        return self._context

    @property
    def is_busy(self) -> bool:
        # The ends of turns that could not be written yet; not to an outdated record.
        owes = self.queue.owes_ends and not self.writer.is_stale
        summarizes = self._context is not None and self._context.is_summarizing
        return bool(len(self.queue)) or owes or summarizes or not self.activity.is_quiet

    @property
    def is_unused(self) -> bool:
        return not self.broadcast and not self.is_busy

    def snapshot(self, newcomer: ConnectedClient = NO_CLIENT) -> Attached:
        """For a client that attaches now."""
        return Attached(
            session_id=self.session_id,
            name=self.name,
            model=self.model,
            head_seq=self.history.head_seq,
            active_turn=self.queue.active_turn,
            queue=self.queue.waiting,
            pending_approvals=tuple(map(to_object, self.approvals.pending)),
            clients=tuple(
                client.as_json()
                for client in (*self.broadcast.clients[: CLIENTS_MAX - 1], newcomer)
            ),
        )

    # Prompts and jobs

    async def accept(self, prompt: Prompt, *, receipt: Callable[[Receipt], None]) -> None:
        """Returns when the prompt is on disk; the receipt is given before any event.

        A prompt that replaces an earlier one (`replace_from`) is two entries, the rollback
        and itself, with no other in between; if the prompt can't be written, the rollback
        is rolled back. A `message_id` that was sent before gets its receipt again.
        """
        model = self.services.router.wished(model=prompt.model, role=prompt.role)
        self.check_open()
        if self.queue.owes_ends:
            await self.queue.write_owed()
        async with self.writer.exclusive():
            self.check_open()
            if prompt.message_id:
                earlier = await self._earlier_prompt(prompt.message_id)
                if earlier is not None:
                    call_guarded(receipt, self._second_receipt(prompt, earlier))
                    return
            if prompt.attachments:
                await self._check_attachments(prompt.attachments)
            rollback = None
            if prompt.replace_from is not None:
                self.check_at_rest()
                rollback = await rollback_before(self.writer, prompt.replace_from)
                self.check_at_rest()
            self.check_open()
            self._check_room()
            if rollback is not None:
                rollback = await self.writer.append(rollback, with_event=False)
            try:
                entry = await self._write_prompt(prompt, model)
            except Exception:
                if rollback is not None:
                    self.entry_written(rollback)
                    try:
                        redo = await self.writer.compute(self.history.redo)
                        await self.writer.append(redo)
                    except StorageError as error:
                        log.warning("%s: entry %d stays: %s", self.session_id, rollback.seq, error)
                raise
            ahead = self.queue.add(TurnRun(self, entry))
            # Its task is there before the receipt is queued for sending, so that the receipt
            # and the turn's first events leave in one write.
            self.queue.advance()
            call_guarded(receipt, self._first_receipt(entry, ahead=ahead))
            if rollback is not None:
                self.entry_written(rollback)
                self.announce_rollback(rollback)
            self.entry_written(entry)
            if self.deleted:  # it was on its way while the conversation was deleted
                self.cancel(entry.turn_id or "", "the conversation was deleted")

    async def _earlier_prompt(self, message_id: str) -> SentBefore | None:
        """The prompt that was sent with the same `message_id` before. Of a long conversation
        only the end is in memory; earlier prompts are looked up in the store."""
        history = self.history
        prompt = history.prompt_by_message_id(message_id)
        if prompt is None:
            if history.holds_all:
                return None
            return await self.writer.profile.store.prompt_by_message_id(self.session_id, message_id)
        turn_id = prompt.turn_id or ""
        state = history.turn_state(turn_id)
        if state is None:  # rolled back: the end of its turn is still in the record
            return sent_before(entry for entry in history.entries if entry.seq >= prompt.seq)
        return SentBefore(seq=prompt.seq, turn_id=turn_id, state=state, text=prompt.content)

    def _write_prompt(self, prompt: Prompt, model: str | None) -> Awaitable[ModelInputEntry]:
        """`model`: the model that the prompt names, or that has its role. It is written into
        the entry, so that the same model answers after a restart."""
        self.check_open()
        role: JsonObject = {} if prompt.role is None else {"role": prompt.role}
        draft = ModelInputEntry(
            turn_id=self.services.new_entry_id(),
            content=prompt.text,
            message_id=prompt.message_id,
            model=model,
            attachments=prompt.attachments,
            options=prompt.options,
            metadata={**prompt.metadata, **role},
        )
        return self.context.state.append_model_input(draft, with_event=False)

    def announce_rollback(self, entry: RollbackEntry) -> None:
        told: JsonObject = {"to_seq": entry.to_seq, "head_seq": entry.seq}
        if entry.turns:
            told["turns"] = list(entry.turns)
        if entry.redo:
            told["redo"] = True
        self.announce("rolled_back", told)

    def add_job(
        self,
        work: Callable[[], Awaitable[_Given]],
        *,
        done: Callable[[_Given], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Queues work among the turns: it waits for those before it, and those after it wait."""
        self.check_open()
        self._check_room()
        self.queue.add(QueuedJob(work=work, done=done, failed=failed))
        self.queue.advance()

    def cancel(self, turn_id: str, reason: str = "cancelled") -> bool:
        self._check_not_given_away()
        return self.queue.cancel(turn_id, reason)

    def _first_receipt(self, prompt: ModelInputEntry, *, ahead: int) -> Receipt:
        return Receipt(
            turn_id=prompt.turn_id or "",
            session_id=self.session_id,
            seq=prompt.seq,
            message_id=prompt.message_id,
            position=ahead,
            state="waiting" if ahead else "running",
            model=self.services.router.choose(prompt.model, self.writer.model),
        )

    def _second_receipt(self, prompt: Prompt, known: SentBefore) -> Receipt:
        """The same receipt again, with the state the turn is in by now."""
        if known.text not in (None, prompt.text):
            raise RequestError(
                ErrorCode.CONFLICT,
                "this message_id was used before with another text; use a new one",
                field="message_id",
            )
        turn_id, running, waiting = known.turn_id, self.queue.running, self.queue.waiting
        is_running = running is not None and running.turn_id == turn_id
        return Receipt(
            turn_id=turn_id,
            session_id=self.session_id,
            seq=known.seq,
            message_id=prompt.message_id,
            position=waiting.index(turn_id) + 1 if turn_id in waiting else 0,
            state="running" if is_running else known.state,
            duplicate=True,
        )

    # The steps of a turn

    async def call_model(self, call: ModelCall) -> ModelOutputEntry:
        """Makes one model call: prepares the context, checks its tokens, calls the model and
        writes its output."""
        turn, output = call.turn, await call.run()
        await turn.events.settled()
        draft = output.entry(
            turn_id=turn.turn_id,
            call=turn.call,
            invocation=turn.invocation,
            new_call_id=self.services.new_entry_id,
            sent=turn.sent,
        )
        rejected = None
        if "schema" in turn.prompt.options and not draft.tool_calls:
            rejected = await call.check_answer(draft)
            draft = replace(draft, rejected=rejected)
        entry = await self.add_message(draft)
        turn.output = None
        if rejected is not None:
            turn.events.thought(
                "retrying",
                f"the answer does not fit the schema ({rejected}); the model is asked once to "
                "mend it",
            )
        return entry

    async def execute_tools(self, turn: TurnRun) -> dict[str, ToolCallResult]:
        """Runs the tool calls of the turn's last output concurrently; a failure is a result.
        Tool calls for which a resumed turn has results are not run again."""
        waiting = self.history.open_tool_calls(turn.turn_id)
        await self.execute_tool(
            turn, *(each for each in waiting if each.tool_call_id not in turn.results)
        )
        return turn.results

    async def execute_tool(self, turn: TurnRun, *tool_calls: ToolCallRequest) -> None:
        """Runs one tool call, or several at once. A turn that is suspended before one was
        approved has no result of it."""
        await self.services.tools.run_all(tool_calls, turn)

    async def check_tokens(self, turn_id: str, call_budget: CallBudget) -> bool:
        """Before a call: begins a new epoch if one is due, and says whether it did.

        Tokens are counted by the local tokenizer (by characters ÷ 2.5 where there is
        none), corrected by what the provider reported for earlier calls. Over the
        threshold, the compression listener is called.
        """
        draft = await self.context.due_epoch(turn_id, call_budget)
        if draft is None:
            return False
        if draft.reason == "budget":
            event = OverThreshold(session_id=self.session_id, turn_id=turn_id, draft=draft)
            try:
                await self.services.context.on_compression(event, self.context)
            except Exception:
                log.exception("%s: compression failed; the turn goes on", self.session_id)
        else:
            await self.context.begin_epoch(draft)
        return True

    def update_token_usage(self, turn: TurnRun) -> None:
        """Adds the usage of the last call, answered or not. A provider's later report
        replaces its earlier one."""
        if turn.output is None or turn.output.usage is None:
            return
        usage = turn.output.usage
        for name, tokens in usage.as_json().items():
            turn.usage[name] = turn.usage.get(name, 0) + tokens
        if usage.estimated:
            turn.usage["estimated"] = True
        elif turn.view is not None:
            counted = turn.view.tokens
            self.services.context.learn(turn.model, counted=counted, real=usage.input_tokens)
            if logs.tokens.on:
                logs.tokens("billed", model=turn.model, counted=counted, **usage.as_json())

    async def get_token_usage(self) -> UsageAccount:
        """What was billed, how full the window is, and what the next call would take."""
        await self.context.ready()
        return await self.context.compute(partial(usage_of, self, self.model))

    # Messages

    @overload
    def add_message(self, draft: ModelInputEntry) -> Awaitable[ModelInputEntry]: ...
    @overload
    def add_message(self, draft: ModelOutputEntry) -> Awaitable[ModelOutputEntry]: ...
    @overload
    def add_message(self, draft: ToolResultsEntry) -> Awaitable[ToolResultsEntry]: ...
    def add_message(self, draft: MessageEntry) -> Awaitable[MessageEntry]:
        """Checked and on disk when it returns; `BadEntry` if it is refused."""
        state = self.context.state
        match draft:
            case ModelInputEntry():
                return state.append_model_input(draft)
            case ModelOutputEntry():
                return state.append_model_output(draft)
            case ToolResultsEntry():
                return state.append_tool_results(draft)

    def get_messages(self) -> list[ChatMessage]:
        """Copies, oldest first."""
        return self.get_recent_messages(sys.maxsize)

    def get_recent_messages(self, n: int) -> list[ChatMessage]:
        return self.history.recent(n)

    def get_messages_by_role(self, role: Role) -> list[ChatMessage]:
        return self.history.by_role(role)

    async def clear_messages(self) -> int:
        """The system message stays; what was said is no longer shown to models. Gives the
        last seq that is cleared."""
        through = 0
        if self.writer.is_stored:
            through = (await self.append_entry(ClearEntry())).seq - 1
        self.announce("cleared", {"cleared_through_seq": through})
        return through

    # Other entries, and events

    async def append_entry(self, draft: EntryT) -> EntryT:
        """Writes an entry that is no message, and sends its event."""
        self.check_open()
        return await self.writer.append(draft)

    def announce(self, what: str, details: JsonObject) -> None:
        self.broadcast.emit(SessionEvent(session_id=self.session_id, event=what, details=details))

    def entry_written(self, entry: Entry) -> None:
        """Sends the event of an entry that is on disk."""
        self.used_at = monotonic()
        if self._context is not None and self.services.context.namer is not None:
            self._context.namer.entry_written(entry)
        if self.broadcast:
            bytes_max = self.services.limits.message_bytes_max
            self.broadcast.emit(entry_event(self.session_id, entry, bytes_max))

    # Opening and ending

    def delete(self, reason: str) -> None:
        """Accepts nothing more and ends the turns that run or wait."""
        self.deleted = True
        self.queue.cancel_all(reason)
        self._drop_jobs(RequestError(ErrorCode.NOT_FOUND, reason, field="session_id"))

    def interrupt(self, reason: str, code: ErrorCode = ErrorCode.SHUTTING_DOWN) -> None:
        """The server stops, or another one is to have it: what runs ends now. Turns that wait
        are kept for later, jobs are not: nobody would hear of them."""
        self.queue.interrupt(reason)
        self._drop_jobs(RequestError(code, reason))

    def _drop_jobs(self, why: RequestError) -> None:
        self.queue.drop_jobs(why)
        if self._context is not None:
            self._context.stop_summarizing()

    # Checks

    def check_at_rest(self) -> None:
        if self.queue.is_busy:
            raise RequestError(
                ErrorCode.BUSY,
                f"{'An answer' if self.queue.active_turn else 'Another request'} is still "
                "running. Cancel it, or wait until it has ended.",
                retry_after=1.0,
            )

    def check_open(self) -> None:
        if self.deleted:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                f"this conversation was deleted; to bring it back: nplt undelete {self.session_id}",
                field="session_id",
            )
        if self.services.draining:
            raise RequestError(
                ErrorCode.SHUTTING_DOWN, "the server is shutting down; try again later"
            )
        if self.is_leaving:
            self._check_not_given_away()

    def _check_not_given_away(self) -> None:
        """Raises if the conversation was given to another server, so that the request is relayed
        there."""
        if self.is_leaving and self.writer.is_stale:
            raise WrittenElsewhere("another server is to have it")

    def _check_room(self) -> None:
        waiting_max = self.services.limits.waiting_prompts_max
        if len(self.queue) >= waiting_max:
            raise RequestError(
                ErrorCode.BUSY,
                f"{waiting_max} requests wait here already; try again when one is answered",
                retry_after=1.0,
            )

    async def _check_attachments(self, wanted: tuple[str, ...]) -> None:
        if len(wanted) > ATTACHMENTS_MAX:
            most = (
                f"a prompt takes at most {ATTACHMENTS_MAX} files; send the others with another one"
            )
            raise RequestError(ErrorCode.TOO_LARGE, most, field="attachments")
        held = (entry for entry in self.history.entries if isinstance(entry, AttachmentEntry))
        there = {entry.file_id for entry in held if entry.redacted_at is None}
        for file_id in wanted:
            # An older attachment entry may not be in memory; its file is looked up instead.
            if file_id not in there and not await self.services.files.has(self.session_id, file_id):
                raise RequestError(
                    ErrorCode.NOT_FOUND,
                    f"there is no file {file_id!r} in this conversation; send it first",
                    field="attachments",
                )


async def drafted_rollback(
    writer: RecordWriter, draft: Callable[[ConversationHistory, bool], _DraftT]
) -> _DraftT:
    """`draft` is given a history, and whether to say all of it (`in_full`). An open
    conversation has only its newest entries in memory; for a rollback that concerns others
    the whole record is read."""
    history = writer.history
    try:
        return await writer.compute(partial(draft, history, False))
    except NotInReach:
        pass  # the seq lies before the entries in memory
    entries: list[Entry] = []
    async for batch in writer.profile.store.entries(history.session_id):
        entries += batch

    def draft_from_all() -> _DraftT:
        whole = ConversationHistory(history.session_id, entries)
        entries.clear()  # freed in the thread too
        return draft(whole, True)

    return await writer.compute(draft_from_all, entries=len(entries))


async def rollback_before(writer: RecordWriter, replaced_seq: int) -> RollbackEntry | None:
    """A draft of the rollback of that entry's turn and of those after it; `None` if they are
    rolled back already, by an earlier attempt of the same request."""
    history = writer.history
    if replaced_seq > history.head_seq:
        raise RequestError(
            ErrorCode.NOT_FOUND, f"there is no entry {replaced_seq} here", field="replace_from"
        )
    base = replaced_seq - 1  # the newest active entry below it
    for first, last in reversed(history.hidden):
        if first <= base <= last:
            base = first - 1
    if is_in(history.hidden, replaced_seq) and base != replaced_seq - 1:
        raise RequestError(
            ErrorCode.CONFLICT,
            f"what stood before entry {replaced_seq} was taken back meanwhile",
            field="replace_from",
        )

    def draft(history: ConversationHistory, in_full: bool) -> RollbackEntry | None:
        turns = history.turns_from(replaced_seq)
        return history.rollback_turns(turns, in_full=in_full) if turns else None

    return await drafted_rollback(writer, draft)
