"""One conversation: its record, its context, its turn queue, its subscribers.

`Conversation` builds these parts and accepts prompts: a prompt is checked, written to disk and
queued; then its receipt is sent, and its entry to all subscribers. Turns belong to the
conversation, not to a connection: a client that leaves stops nothing. The turn itself is in
`turn`; other changes (rename, fork, redact, compact) are in `operations`.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Literal, TypeVar

from msgspec.structs import replace

from nplt_protocol.codec import to_object
from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import JsonObject
from nplt_protocol.messages import (
    Attach,
    Attached,
    GivenMessage,
    Prompt,
    Receipt,
    ToolResult,
    TurnPlace,
    UsageAccount,
)
from nplt_server.conversations.agent_state import AgentState, MessageEntry
from nplt_server.conversations.approvals import Approvals
from nplt_server.conversations.broadcast import CLIENTS_MAX, NO_CLIENT, Broadcast, ConnectedClient
from nplt_server.conversations.client_history import (
    Difference,
    compared,
    given_turns,
    with_messages,
)
from nplt_server.conversations.context_manager import ContextManager
from nplt_server.conversations.context_report import usage_of
from nplt_server.conversations.later_prompts import LaterPrompts
from nplt_server.conversations.model_caller import GO_ON
from nplt_server.conversations.prompt_size import SHORT_CHARACTERS_MAX, check_fits
from nplt_server.conversations.record import ConversationRecord, EntryT
from nplt_server.conversations.replay import missed_events
from nplt_server.conversations.services import Services
from nplt_server.conversations.summarizer import ConversationNamer, Summarizer
from nplt_server.conversations.turn_queue import QueuedJob, TurnQueue
from nplt_server.heap import free_in_slices
from nplt_server.histories import HistoryProfile
from nplt_server.tasks import Activity, call_guarded
from nplt_server.tools.client_tools import results_brought, stored_tools
from nplt_storage.active_entries import is_in
from nplt_storage.entries import (
    AttachmentEntry,
    ClearEntry,
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    Role,
    RollbackEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import StorageError, StorageUnavailable, WrittenElsewhere
from nplt_storage.history import ConversationHistory, NotInReach
from nplt_storage.messages import ChatMessage
from nplt_storage.rows import NEW_NAME, ConversationRow
from nplt_storage.sent_before import SentBefore, sent_before
from nplt_storage.store import Opened

log = logging.getLogger(__name__)

ATTACHMENTS_MAX = 32
_WHOLE_REASONS = (None, "end")
_SHOWN_CHARACTERS_MAX = 10_000
"""An event shows this much of an instruction; the entry has all of it."""

_Given = TypeVar("_Given")
_DraftT = TypeVar("_DraftT", RollbackEntry, RollbackEntry | None)


class FreshConversation:
    """A conversation that has not been used yet: an id, and the clients attached to it.

    Most connections never use the conversation they begin with, so it has neither record nor
    queue. `SessionManager.begin` turns it into a `Conversation` with the same subscribers.
    """

    __slots__ = ("broadcast", "chosen_model", "profile", "services", "session_id", "user")
    head_seq = 0

    def __init__(
        self,
        session_id: str,
        profile: HistoryProfile,
        services: Services,
        *,
        user: str,
        chosen_model: str | None = None,
    ) -> None:
        """`chosen_model`: the model that was chosen before the first entry."""
        self.session_id = session_id
        self.broadcast = Broadcast(
            session_id, services.limits.message_bytes_max, services.hooks or None
        )
        self.profile = profile
        self.services = services
        self.user = user
        self.chosen_model = chosen_model

    @property
    def model(self) -> str:
        return self.services.router.choose(self.chosen_model)

    @property
    def options(self) -> Mapping[str, str | int | float]:
        return {}


def _with_text(prompt: Prompt) -> Prompt:
    """Adds the text that a prompt without one means: the request to go on, or nothing if it only
    brings tool results."""
    if prompt.text.strip():
        return prompt
    return replace(prompt, text=GO_ON if prompt.continues else "")


def _send_past(send: Callable[[Receipt], None], receipt: Receipt) -> None:
    send(replace(receipt, past=True))


class ForkNeeded(Exception):
    """A client's list of messages leaves the record where it may not be rolled back. The rest of
    the list, `new`, belongs in a fork after entry `at_seq`, or in a new
    conversation if that is 0."""

    def __init__(self, at_seq: int, new: Sequence[GivenMessage]) -> None:
        super().__init__(at_seq)
        self.at_seq = at_seq
        self.new = tuple(new)


class Conversation:
    def __init__(self, fresh: FreshConversation, opened: Opened | None = None) -> None:
        """`opened`: the record, if the conversation is stored."""
        services = fresh.services
        self.session_id = fresh.session_id
        self.user = fresh.user
        self.services = services
        self.deleted = False
        self.broadcast = fresh.broadcast
        self.record = ConversationRecord(
            self.broadcast,
            fresh.profile,
            services,
            user=fresh.user,
            opened=opened,
            model=fresh.chosen_model,
        )
        self.state = AgentState(
            self.record,
            widgets=services.context.widgets(),
            policy=services.context.rules.policy,
        )
        self._last_tools: tuple[ConversationHistory, ModelInputEntry] | None = None
        """The last prompt whose tools were stored with it. A history that is read again may not
        have them any more."""
        self.context = ContextManager(self.record, self.state, services)
        self.summarizer = Summarizer(self.context, services)
        self.namer = ConversationNamer(self.record, services)
        self.approvals = Approvals(self.record, services)
        self.later = LaterPrompts(self.record, services)
        self.queue = TurnQueue(
            record=self.record,
            context=self.context,
            summarizer=self.summarizer,
            namer=self.namer,
            approvals=self.approvals,
            later=self.later,
            services=services,
        )

    # Its state

    @property
    def history(self) -> ConversationHistory:
        return self.record.history

    @property
    def head_seq(self) -> int:
        return self.record.history.head_seq

    @property
    def options(self) -> Mapping[str, str | int | float]:
        """The options for prompts that have none of their own."""
        return self.record.options

    @property
    def row(self) -> ConversationRow | None:
        return self.record.row

    @property
    def activity(self) -> Activity:
        return self.record.activity

    @property
    def name(self) -> str:
        return self.row.name if self.row else NEW_NAME

    @property
    def model(self) -> str:
        """The model for the next turn."""
        return self.services.router.choose(self.record.model)

    @property
    def used_at(self) -> float:
        """When the conversation was last written to, entered or left."""
        return self.record.used_at

    def touch(self) -> None:
        self.record.touch()

    @property
    def is_leaving(self) -> bool:
        """Whether another server is taking the conversation over."""
        return self.queue.is_blocked

    @property
    def is_busy(self) -> bool:
        # An unwritten end does not count if the record is stale: it can't be written there.
        has_ends = bool(self.queue.unwritten_ends) and not self.record.is_stale
        summarizes = self.summarizer.is_running or self.namer.is_running
        return bool(len(self.queue)) or has_ends or summarizes or not self.activity.is_quiet

    @property
    def is_unused(self) -> bool:
        return not self.broadcast and not self.is_busy

    def snapshot(self, newcomer: ConnectedClient = NO_CLIENT) -> Attached:
        """The state that a client gets when it attaches."""
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
            later=self.later.shown(),
        )

    def replay(self, cursor: Attach | None) -> tuple[bytes, bool]:
        """The frames that a client attaching now has missed, and whether it must resync."""
        running = None if self.queue.running is None else self.queue.running.events
        return missed_events(self.record, running, cursor)

    # Prompts and jobs

    async def accept(
        self, prompt: Prompt, *, receipt: Callable[[Receipt], None], compares: bool = True
    ) -> None:
        """Returns when the prompt is on disk. `receipt` is called before any event is sent.

        A prompt that replaces an earlier one (`replace_from`) is two entries, the rollback
        and itself, with no other in between; if the prompt can't be written, the rollback
        is rolled back. A prompt whose `message_id` was sent before gets its receipt again.
        """
        if prompt.not_before is not None:
            due_at = self.services.due_times.resolve(prompt.not_before)
            if due_at > self.services.due_times.now():
                await self._accept_later(prompt, due_at, receipt)
                return
            receipt = partial(_send_past, receipt)
        prompt = _with_text(prompt)
        self.check_open()
        draft = self._draft(prompt)
        if self.queue.unwritten_ends:
            await self.queue.write_ends()
        if len(prompt.text) > SHORT_CHARACTERS_MAX or prompt.attachments:
            await self._check_fits(prompt, draft)
        async with self.record.exclusive():
            self.check_open()
            for sent_as in (prompt.message_id, *prompt.earlier_ids):
                earlier = await self._earlier_prompt(sent_as) if sent_as else None
                if earlier is not None:
                    call_guarded(receipt, self._second_receipt(prompt, earlier))
                    return
            difference = None
            if compares and prompt.after is not None:
                await self._check_is_last(prompt.after, prompt.messages)
            elif compares and any(each.role == "assistant" for each in prompt.messages):
                difference = await self._compared(prompt)
            entry = await self._store(prompt, draft, difference)
            ahead = self.queue.add_prompt(entry)
            # Its task is there before the receipt is queued for sending, so that the receipt
            # and the turn's first events leave in one write.
            self.queue.advance()
            call_guarded(receipt, self._first_receipt(entry, ahead=ahead))
        if self.deleted:  # while the prompt was being written
            self.cancel(entry.turn_id or "", "the conversation was deleted")

    # Prompts for later

    async def _accept_later(
        self, prompt: Prompt, due_at: datetime, receipt: Callable[[Receipt], None]
    ) -> None:
        """Stores a prompt that runs when its time has come. No other prompt waits for it."""
        draft = self._draft(prompt)
        self.check_open()
        await self._check_attachments(prompt.attachments)
        async with self.record.exclusive():
            self.check_open()
            if prompt.message_id:
                earlier = await self._earlier_prompt(prompt.message_id) or self._cancelled_prompt(
                    prompt.message_id
                )
                if earlier is not None:
                    call_guarded(receipt, self._second_receipt(prompt, earlier))
                    return
            entry = await self.later.add(draft, due_at)
            call_guarded(
                receipt,
                Receipt(
                    turn_id=entry.turn_id or "",
                    session_id=self.session_id,
                    seq=entry.seq,
                    message_id=prompt.message_id,
                    position=0,
                    state="later",
                    model=self.services.router.choose(draft.model, self.record.model),
                    due_at=due_at.isoformat(),
                ),
            )
        if self.deleted:  # while it was being written
            self.services.due_times.forget(self.session_id)

    def _cancelled_prompt(self, message_id: str) -> SentBefore | None:
        entry = self.later.cancelled_entry(message_id)
        if entry is None:
            return None
        turn_id = entry.turn_id or ""
        return SentBefore(seq=entry.seq, turn_id=turn_id, state="interrupted", text=entry.content)

    async def begin_due(self, through: datetime) -> None:
        """Queues the prompts for later whose time is not after `through`."""
        self.check_open()
        if self.queue.unwritten_ends:
            await self.queue.write_ends()
        async with self.record.exclusive():
            due = [each for each in self.later if not each.held and each.due_at <= through]
            for each in sorted(due, key=lambda each: (each.due_at, each.seq)):
                self.check_open()
                draft = await self.later.draft(each)
                if draft is None:
                    await self.later.cancel(each.turn_id, "its text is gone")
                    continue
                entry = await self.record.append(self.state.draft_model_input(draft))
                self.queue.add_prompt(entry)
                self.queue.advance()
            self.later.note_due()

    async def cancel_later(self, turn_id: str, reason: str = "cancelled") -> bool:
        """Cancels a prompt for later. False if there is none of that turn."""
        self.check_open()
        async with self.record.exclusive():
            if not self.later.has(turn_id):
                return False
            await self.later.cancel(turn_id, reason)
        return True

    async def change_later(self, change: Literal["held", "released"]) -> None:
        """Holds the prompts for later, because the conversation is a copy, or releases them."""
        async with self.record.exclusive():
            self.check_open()
            await self.later.change_all(change)

    async def _check_fits(self, prompt: Prompt, draft: ModelInputEntry) -> None:
        may_be_cut = {**self.options, **prompt.options}.get("cut") is True
        if may_be_cut or self.services.on_too_long == "cut":
            return
        await self._check_attachments(prompt.attachments)
        model = self.services.router.choose(draft.model, self.record.model)
        try:
            await check_fits(draft, model, self.context, self.services)
        except RequestError:
            # A prompt that was stored before gets its receipt again.
            if not prompt.message_id or await self._earlier_prompt(prompt.message_id) is None:
                raise

    async def _store(
        self, prompt: Prompt, draft: ModelInputEntry, difference: Difference | None = None
    ) -> ModelInputEntry:
        """Writes the prompt, after what comes with it: a rollback, an instruction, tool results,
        and turns that the client had elsewhere. Called inside the exclusive section."""
        replace_from = prompt.replace_from
        given, results_seq = prompt.messages, None
        if difference is not None:
            replace_from, results_seq = difference.replace_from, difference.results_seq
            given = tuple(difference.new)
        attachments = (*prompt.attachments, *(one for each in given for one in each.attachments))
        await self._check_attachments(attachments)
        rollback = None
        if replace_from is not None:
            self.check_at_rest()
            rollback = await rollback_before(self.record, replace_from)
            self.check_at_rest()
        if prompt.continues:
            self.check_at_rest()
            draft = replace(draft, continues=self._unfinished_answer().seq)
        self.check_open()
        self._check_room()
        if rollback is not None:
            rollback = await self.record.append(rollback)
        try:
            if rollback is not None:
                self.check_open()
            if prompt.system is not None:
                await self.set_system(prompt.system)
            results = prompt.results
            if prompt.messages:
                tail = await self._store_given(given, draft)
                draft, results = with_messages(replace(draft, results_seq=results_seq), tail)
            if results:
                draft = replace(draft, results_seq=await self._store_results(results))
            draft = self.state.draft_model_input(draft)
            if draft.tools:
                return await self._append_with_tools(draft)
            return await self.record.append(draft)
        except Exception:
            if rollback is not None:
                await self._redo(rollback)
            raise

    async def _append_with_tools(self, draft: ModelInputEntry) -> ModelInputEntry:
        """Writes a prompt that brings tools. Clients send the same ones with each prompt, so these
        are stored once, and later prompts name that entry."""
        history, known = self.history, self._last_tools
        if known is not None and known[0] is history and known[1].tools == draft.tools:
            short = replace(draft, tools=(), tools_seq=known[1].seq)
            return replace(await self.record.append(short), tools=draft.tools)
        entry = await self.record.append(draft)
        self._last_tools = (self.history, entry)
        return entry

    async def _check_is_last(self, place: TurnPlace, new: Sequence[GivenMessage]) -> None:
        """Raises `ForkNeeded` if prompts came after that turn that were not taken back."""
        last_seq, hidden = 0, () if self.row is None else self.row.hidden
        is_over = False
        async for entry in self._entries_from(place.seq):
            is_prompt = isinstance(entry, ModelInputEntry)
            if entry.turn_id == place.turn_id and entry.redacted_at is None and not is_over:
                last_seq = entry.seq
                # The results that its client brings later are not what the turn ended with.
                if isinstance(entry, ModelOutputEntry | ToolResultsEntry):
                    is_over = entry.awaits_client
            elif not last_seq:
                break
            elif is_prompt and not is_in(hidden, entry.seq):
                raise ForkNeeded(last_seq, new)
        if not last_seq:
            gone = f"there is no turn {place.turn_id} in this conversation"
            raise RequestError(ErrorCode.NOT_FOUND, gone, field="after")

    async def _entries_from(self, seq: int) -> AsyncIterator[Entry]:
        entries = self.history.entries_after(seq - 1)
        if entries is not None:
            for entry in entries:
                yield entry
            return
        async for batch in self.record.profile.store.entries(self.session_id, after=seq - 1):
            for entry in batch:
                yield entry

    async def _compared(self, prompt: Prompt) -> Difference:
        """Finds what is new in the client's list of messages. Raises `ForkNeeded`."""
        try:
            entries: Sequence[Entry] = self.history.active
            if self.history.first_seq > 1:
                raise NotInReach(1)
        except NotInReach:  # only its end is in memory
            read: list[Entry] = []
            async for batch in self.record.profile.store.entries(self.session_id):
                read += batch
            whole = await self.record.compute(
                partial(ConversationHistory, self.session_id, read), entries=len(read)
            )
            entries = whole.active
        difference = await self.record.compute(
            partial(compared, prompt.messages, entries, client=prompt.client),
            entries=len(entries) + len(prompt.messages),
        )
        if difference.fork_at is not None:
            raise ForkNeeded(difference.fork_at, difference.new)
        return difference

    async def _store_given(
        self, given: Sequence[GivenMessage], draft: ModelInputEntry
    ) -> Sequence[GivenMessage]:
        """Writes the turns in the list that have their answers already, as turns of the client, and
        returns the messages after them."""
        ends = [place for place, each in enumerate(given) if each.role == "assistant"]
        last = ends[-1] + 1 if ends else 0
        for turn in given_turns(given[:last], draft, self.services.new_entry_id):
            for entry in turn.prompt, turn.output:
                await self.record.append(entry)
            if turn.results:
                await self._store_results(turn.results)
        return given[last:]

    async def _store_results(self, brought: Sequence[ToolResult]) -> int:
        """Writes the results and returns the seq of their entry. They may be there already, if an
        earlier attempt of the same request stored them, but not the prompt."""
        tools, ids = self.services.tools, {result.tool_call_id for result in brought}
        for turn_id, turn in tuple(self.history.awaiting_client.items()):
            if ids.isdisjoint(call.tool_call_id for call in turn.open_tool_calls):
                continue
            drafted = results_brought(turn, brought, tools)
            whole = tuple([await self.record.keep_whole(each) for each in drafted])
            draft = ToolResultsEntry(turn_id=turn_id, results=whole)
            return (await self.state.append_tool_results(draft)).seq
        for entry in reversed(self.history.active):
            if isinstance(entry, ModelInputEntry | ModelOutputEntry):
                break
            if isinstance(entry, ToolResultsEntry):
                if ids <= {result.tool_call_id for result in entry.results}:
                    return entry.seq
                break
        raise RequestError(
            ErrorCode.CONFLICT,
            "no tool call waits for these results; another prompt may have come before them",
            field="results",
        )

    async def set_system(self, instruction: str) -> None:
        """Takes effect with the next call, which begins a new epoch. Setting the same instruction
        again changes nothing, so the provider's prompt cache stays valid."""
        self.check_open()
        if await self.state.set_system_instruction(instruction):
            self.announce("system", {"system": instruction[:_SHOWN_CHARACTERS_MAX]})

    async def _redo(self, rollback: RollbackEntry) -> None:
        """Reverts a rollback, because the prompt that should follow it can't be written."""
        try:
            await self.record.append(await self.record.compute(self.history.redo))
        except StorageError as error:
            log.warning("%s: entry %d stays: %s", self.session_id, rollback.seq, error)

    async def _earlier_prompt(self, message_id: str) -> SentBefore | None:
        """The prompt that was sent with the same `message_id` before. Only the end of a long
        conversation is in memory; earlier prompts are looked up in the store."""
        history = self.history
        for later in self.later:
            if later.message_id == message_id:
                return SentBefore(seq=later.seq, turn_id=later.turn_id, state="waiting", text=None)
        prompt = history.prompt_by_message_id(message_id)
        if prompt is None:
            if history.holds_all:
                return None
            return await self.record.profile.store.prompt_by_message_id(self.session_id, message_id)
        turn_id = prompt.turn_id or ""
        state = history.turn_state(turn_id)
        if state is None:  # rolled back: the end of its turn is still in the record
            return sent_before(entry for entry in history.entries if entry.seq >= prompt.seq)
        return SentBefore(
            seq=prompt.seq,
            turn_id=turn_id,
            state=state,
            text=prompt.content,
            body_sha256=prompt.body_sha256,
        )

    def _draft(self, prompt: Prompt) -> ModelInputEntry:
        """The model that the prompt names, or the one for its role, is written into the entry, so
        that the same model answers after a restart."""
        model = self.services.router.wished(model=prompt.model, role=prompt.role)
        role: JsonObject = {} if prompt.role is None else {"role": prompt.role}
        return ModelInputEntry(
            turn_id=self.services.new_entry_id(),
            content=prompt.text,
            message_id=prompt.message_id,
            model=model,
            attachments=prompt.attachments,
            options=prompt.options,
            metadata={**prompt.metadata, **role},
            tools=stored_tools(prompt.tools) if prompt.tools else (),
            offer=prompt.offer,
            door=prompt.door,
            client=prompt.client,
            body_sha256=prompt.body_sha256,
        )

    def _unfinished_answer(self) -> ModelOutputEntry:
        """The last answer, if it is not whole and the model is still shown it."""
        for entry in reversed(self.history.active):
            match entry:
                case ModelOutputEntry() if entry.content.strip() and entry.ends_turn:
                    if entry.state != "completed" or entry.stop_reason not in _WHOLE_REASONS:
                        return entry
                    break
                case ModelInputEntry(continues=int()):
                    pass  # it was asked before, and failed before any text
                case ModelOutputEntry() if entry.state != "completed":
                    pass  # that was reasoning alone
                case ModelInputEntry() | ModelOutputEntry() | ToolResultsEntry() | ClearEntry():
                    break
                case _:
                    pass
        raise RequestError(
            ErrorCode.CONFLICT,
            "there is no answer to go on with: the last one is whole, or there is none",
            field="continue",
        )

    def add_job(
        self,
        work: Callable[[], Awaitable[_Given]],
        *,
        done: Callable[[_Given], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Queues work among the turns: it waits for those before it, and those after it wait. It
        does not wait for approvals: while one is pending, this raises `busy`."""
        self.check_open()
        if self.approvals.pending:
            raise self.approvals.as_reason_to_wait()
        self._check_room()
        self.queue.add_job(QueuedJob(work=work, done=done, failed=failed))
        self.queue.advance()

    def cancel(self, turn_id: str, reason: str = "cancelled") -> bool:
        self._check_not_given_away()
        return self.queue.cancel(turn_id, reason)

    def _first_receipt(self, prompt: ModelInputEntry, *, ahead: int) -> Receipt:
        running = self.queue.running
        if running is not None and running.prompt is prompt and running.caller is not None:
            model = running.caller.model
        else:
            model = self.services.router.choose(prompt.model, self.record.model)
        return Receipt(
            turn_id=prompt.turn_id or "",
            session_id=self.session_id,
            seq=prompt.seq,
            message_id=prompt.message_id,
            position=ahead,
            state="waiting" if ahead else "running",
            model=model,
        )

    def _second_receipt(self, prompt: Prompt, known: SentBefore) -> Receipt:
        """The same receipt again, with the turn's current state."""
        given, stored, what = prompt.text, known.text, "text"
        if prompt.body_sha256 is not None and known.body_sha256 is not None:
            given, stored, what = prompt.body_sha256, known.body_sha256, "request"
        if stored not in (None, given) and (what == "request" or not prompt.messages):
            raise RequestError(
                ErrorCode.CONFLICT,
                f"this message_id was used before with another {what}; use a new one",
                field="message_id",
            )
        turn_id, running, waiting = known.turn_id, self.queue.running, self.queue.waiting
        is_running = running is not None and running.turn_id == turn_id
        later = next((each for each in self.later if each.turn_id == turn_id), None)
        if later is not None:
            return Receipt(
                turn_id=turn_id,
                session_id=self.session_id,
                seq=known.seq,
                message_id=prompt.message_id,
                position=0,
                state="later",
                duplicate=True,
                due_at=later.due_at.isoformat(),
            )
        return Receipt(
            turn_id=turn_id,
            session_id=self.session_id,
            seq=known.seq,
            message_id=prompt.message_id,
            position=waiting.index(turn_id) + 1 if turn_id in waiting else 0,
            state="running" if is_running else known.state,
            duplicate=True,
        )

    # The interface of a conversation manager, for programs that embed the server: messages and
    # usage. Model calls, tools and token checks are in `TurnRun` and `ContextManager`; the turn
    # loop does not pass through here.

    async def get_token_usage(self) -> UsageAccount:
        """Reports the tokens billed, how full the window is, and the size of the next call."""
        await self.context.ready()
        return await self.context.compute(partial(usage_of, self.context, self.model))

    def add_message(self, draft: MessageEntry) -> Awaitable[MessageEntry]:
        """Checks the message and writes it to disk; raises `BadEntry` if it is refused."""
        return self.state.append(draft)

    def get_messages(self) -> list[ChatMessage]:
        """Copies, oldest first; after a clear, those that came since."""
        return self.history.messages

    def get_recent_messages(self, n: int) -> list[ChatMessage]:
        return self.history.recent(n)

    def get_messages_by_role(self, role: Role) -> list[ChatMessage]:
        return self.history.by_role(role)

    async def clear_messages(self) -> int:
        """Clears the conversation: models are no longer shown the messages so far. The system
        message stays. Returns the last cleared seq."""
        through = 0
        async with self.record.exclusive():  # else it may be closed to be read again
            if self.record.is_stored:
                through = (await self.append_entry(ClearEntry())).seq - 1
        self.announce("cleared", {"cleared_through_seq": through})
        return through

    # Other entries, and events

    async def append_entry(self, draft: EntryT) -> EntryT:
        """Writes an entry that is not a message, and sends its event."""
        self.check_open()
        return await self.record.append(draft)

    def announce(self, what: str, details: JsonObject) -> None:
        self.broadcast.announce(what, details)

    # Opening and ending

    def delete(self, reason: str) -> None:
        """Stops accepting requests, and ends the running and the waiting turns."""
        self.deleted = True
        self.queue.cancel_all(reason)
        self._drop_jobs(RequestError(ErrorCode.NOT_FOUND, reason, field="session_id"))

    def interrupt(self, reason: str, code: ErrorCode = ErrorCode.SHUTTING_DOWN) -> None:
        """The server stops, or another one takes the conversation over: the running turn ends now.
        Waiting turns stay for later; jobs are dropped, because their clients could not get a
        reply."""
        self.queue.interrupt(reason)
        self._drop_jobs(RequestError(code, reason))

    def _drop_jobs(self, why: RequestError) -> None:
        self.queue.drop_jobs(why)
        self.stop_summarizing()

    def stop_summarizing(self) -> None:
        self.summarizer.stop()
        self.namer.stop()

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
        if self.is_leaving and self.record.is_stale:
            raise WrittenElsewhere("another server is taking it over")

    def _check_room(self) -> None:
        waiting_max = self.services.limits.waiting_prompts_max
        if len(self.queue) >= waiting_max:
            raise RequestError(
                ErrorCode.BUSY,
                f"{'1 request waits' if waiting_max == 1 else f'{waiting_max} requests wait'} here "
                "already; try again when one is answered",
                retry_after=1.0,
            )

    async def _check_attachments(self, wanted: tuple[str, ...]) -> None:
        if not wanted:
            return
        if len(wanted) > ATTACHMENTS_MAX:
            most = (
                f"a prompt takes at most {ATTACHMENTS_MAX} files; send the others with another one"
            )
            raise RequestError(ErrorCode.TOO_LARGE, most, field="attachments")
        held = (entry for entry in self.history.entries if isinstance(entry, AttachmentEntry))
        names = {entry.file_id: entry.filename for entry in held if entry.redacted_at is None}
        for file_id in wanted:
            # An older attachment entry may not be in memory; its file is looked up in any case.
            try:
                is_here = await self.services.files.has(self.session_id, file_id)
            except StorageUnavailable as error:
                reason = f"the file {names.get(file_id, file_id)!r} can't be read now: {error}"
                raise RequestError(
                    ErrorCode.UNAVAILABLE, reason, field="attachments", retry_after=1.0
                ) from error
            if not is_here:
                missing = f"there is no file {file_id!r} in this conversation; send it first"
                if file_id in names:
                    missing = f"the file {names[file_id]!r} is not on this server; send it again"
                raise RequestError(ErrorCode.NOT_FOUND, missing, field="attachments")


async def drafted_rollback(
    record: ConversationRecord, draft: Callable[[ConversationHistory, bool], _DraftT]
) -> _DraftT:
    """Drafts a rollback. `draft` gets a history, and whether the rollback must name all hidden
    entries (`in_full`), because the history is read from the whole record. That is done only if
    the rollback concerns entries that are not in memory."""
    history = record.history
    try:
        return await record.compute(partial(draft, history, False))
    except NotInReach:
        pass  # the seq is before the entries in memory
    entries: list[Entry] = []
    async for batch in record.profile.store.entries(history.session_id):
        entries += batch

    def draft_from_all() -> _DraftT:
        made = draft(ConversationHistory(history.session_id, entries), True)
        free_in_slices(entries)  # the history is gone, so nothing else has them
        return made

    return await record.compute(draft_from_all, entries=len(entries))


async def rollback_before(record: ConversationRecord, replaced_seq: int) -> RollbackEntry | None:
    """Drafts the rollback of that entry's turn and the turns after it; `None` if they have been
    rolled back already, by an earlier attempt of the same request."""
    history = record.history
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

    return await drafted_rollback(record, draft)
