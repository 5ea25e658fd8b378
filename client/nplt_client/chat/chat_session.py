"""A chat without its display: the conversation, its turns, its status, its beginning and end.

`ChatSession` is the state of one chat on one `Client`; a conversation outlives it.
`receive_events` turns events into changes, and `draw_changes` passes them to the display, a
`SessionView`, in order and one at a time. A lock excludes drawing during a switch of
conversations, and events wait during a switch, so that they are drawn after the history that
was read. `run_chat` connects, starts a server if none is running, and prints at the end how
to resume the conversation. Imports no toolkit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from time import monotonic
from typing import Final, TypeAlias, assert_never

from msgspec import Struct
from msgspec.structs import replace

from nplt_client.background import compare_versions, ensure_running
from nplt_client.chat import changes
from nplt_client.chat.approvals import Approvals, ApprovalWanted, approval_wanted
from nplt_client.chat.elsewhere import Elsewhere
from nplt_client.client import Client, connect
from nplt_client.errors import ConnectionLost, LimitExceeded, NpltError, RequestRefused, TimedOut
from nplt_client.render.reports import SHORT_ID_MIN
from nplt_client.render.terminal import print_remark, remark_if_silent
from nplt_client.render.text import safe_line, shorten, width_of
from nplt_client.settings import (
    COMMAND_NAME,
    LAST,
    Address,
    find_address,
    find_reconnect_seconds,
    find_server,
    find_token,
)
from nplt_client.wire.blocking import with_server
from nplt_client.wire.reconnect_policy import (
    ConnectionState,
    Offline,
    Online,
    Patience,
    Reconnecting,
)
from nplt_client.wire.wire_session import pending_approvals
from nplt_protocol import messages

MESSAGES_PER_PAGE = 30
_PAGES_BACK_MAX = 40
_ENDS_KEPT = 200
_RESTART_ATTEMPT = 2
_CHARACTERS_PER_TOKEN = 4
_MEASURE_SECONDS = 3.0
_MARK_SECONDS_MAX = 1.0


class TurnStatus:
    """The running turn, the waiting ones, and the tokens that were used."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self.running: str | None = None
        self.waiting: dict[str, changes.PromptShown] = {}
        """The prompts of queued turns, by turn, in order."""
        self.doing = ""
        self.stopping: str | None = None
        """The turn that was stopped here, and has not ended yet."""
        self.input_tokens = 0
        self.output_tokens = 0
        self._clock = clock
        self._began_at: float | None = None
        self._spoke_at: float | None = None
        self._characters = 0

    def start_over(self, *, running: str | None = None, waiting: tuple[str, ...] = ()) -> None:
        """Resets the turns, after a switch or when the conversation was read again."""
        self.running = running
        self.waiting = {
            turn_id: changes.PromptShown(turn_id=turn_id, text="", is_mine=False)
            for turn_id in waiting
        }
        self.doing, self.stopping = "", None
        self._began_at = None
        self.input_tokens = self.output_tokens = 0

    @property
    def seconds(self) -> float | None:
        """The age of the running turn; `None` if none runs, or if it began before we attached."""
        if self.running is None or self._began_at is None:
            return None
        return self._clock() - self._began_at

    @property
    def tokens_per_second(self) -> float | None:
        """An estimate, since the server counts tokens only at the end."""
        if self.running is None or self._spoke_at is None:
            return None
        seconds = self._clock() - self._spoke_at
        return self._characters / _CHARACTERS_PER_TOKEN / seconds if seconds >= 1 else None

    def apply(self, change: changes.Change) -> None:
        match change:
            case changes.PromptShown() if change.turn_id not in (self.running, *self.waiting):
                self.waiting[change.turn_id] = change
            case changes.TurnBegan():
                self.waiting.pop(change.turn_id, None)
                self.running = change.turn_id
                self.doing = ""
                self._began_at, self._spoke_at, self._characters = self._clock(), None, 0
            case changes.ActivityChanged() if change.turn_id == self.running:
                self.doing = change.words
            case changes.TextGrew(kind="answer") if change.turn_id == self.running:
                self.doing = ""
                self._spoke_at = self._clock() if self._spoke_at is None else self._spoke_at
                self._characters += len(change.piece)
            case changes.TurnEnded():
                self.waiting.pop(change.turn_id, None)
                if change.turn_id == self.running:
                    self.running = self.stopping = None
                    self.doing = ""
                self.input_tokens += change.input_tokens
                self.output_tokens += change.output_tokens
            case _:
                pass


Reached: TypeAlias = messages.Attached | messages.SessionCreated | messages.SessionDeleted
"""The reply to a switch. After a deletion the session is in a new conversation."""


class _SentPrompt:
    """A prompt of ours that has no receipt yet, or is not drawn as a turn yet."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.turn_id: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """The receipt sets it; a refusal of the prompt cancels it."""
        self.is_taken_back = False


class SessionView:
    """The interface by which a session draws, one call at a time. Every chat implements it."""

    async def show(self, turns: changes.Turns, *, has_moved: bool) -> None:
        """Shows a conversation from scratch."""

    async def show_again(self, turns: changes.Turns) -> None:
        """Shows the same conversation again, after a lag or a rollback."""

    async def show_older(self, turns: changes.Turns) -> None: ...

    async def draw(self, change: changes.Change) -> None: ...

    async def drawn(self) -> None:
        """Called after all changes that had arrived were drawn."""

    async def pause(self, began: float) -> None:
        """Waits before the next round of drawing. The current one started at `began`."""

    def connection_changed(self, state: ConnectionState) -> None: ...

    def prompts_redacted(self, message_ids: Collection[str]) -> None:
        """The server names prompts of ours that were redacted."""

    @property
    def is_looked_at(self) -> bool:
        """Whether a person sees what is drawn, as far as is known."""
        return True

    def alert(self, words: str) -> None:
        """Notifies a person who looks at another window."""


class ChatSession:
    display: SessionView
    """The display sets it when it is made; nothing is drawn before."""

    def __init__(
        self,
        client: Client,
        *,
        exact_answers: bool = False,
        shows_history: bool = True,
        background: Address | None = None,
    ) -> None:
        """`shows_history`: whether earlier messages are read on entering a conversation.
        `background`: the address of the server, if it runs in the background and may be
        restarted."""
        self.client = client
        self.turn_status = TurnStatus()
        self.change_queue = changes.ChangeQueue()
        self.approvals = Approvals(client)
        self.name = ""
        self.names: tuple[str, ...] = ()
        """The names of all conversations, as `refresh_names` read them."""
        self.is_new = True
        """Whether the last switch created the conversation."""
        self.others: tuple[str, ...] = ()
        self.elsewhere = Elsewhere(client, lambda words: self.display.alert(words))
        self.context_percent: float | None = None
        self.cost = ""
        self.has_older = False
        self.is_stored = False
        """Whether the server has stored the conversation, so that it can be resumed."""
        self.background = background
        self.is_server_stopping = False
        """Whether the server announced that it shuts down. Then it is not restarted."""
        self.restarting: asyncio.Task[None] | None = None
        self.attachments: list[str] = []
        self.replace_from: int | None = None
        self.replaced_attachments: tuple[str, ...] = ()
        """The attachments of the replaced message, which are sent with the new one."""
        self._sent_files: dict[str, tuple[str, ...]] = {}
        """The attachments of queued prompts, by turn, for `take_back_queued`."""
        self._sent: dict[str, _SentPrompt] = {}
        """Our prompts by message id, until they are drawn as turns."""
        self._taken_back: set[str] = set()
        """Turns that were cancelled in the queue; their end may be received twice."""
        self._arrived: messages.Attached | None = None
        self._shows_history = shows_history
        self._me = changes.Participant(user=safe_line(client.welcome.user), program=COMMAND_NAME)
        self._translator = changes.EventTranslator(client.started_here, exact_answers=exact_answers)
        self._feed = client.events()
        self._settled = asyncio.Event()
        self._lock = asyncio.Lock()
        self._oldest_seq = 0
        self._expected: set[str] = set()
        self._ends: dict[str, changes.TurnEnded] = {}
        self._turn_ended = asyncio.Event()
        self._end_seqs: dict[str, int] = {}
        """The last entries of turns whose end is not drawn yet."""
        self._shown_seq = self._seen_seq = self._read_seq = 0
        """The last entry that is shown, and the last one that the server knows was seen."""
        self._marking: asyncio.Task[None] | None = None
        self._lost: NpltError | None = None
        self.lag_seconds = 0.0
        self._pinged_at: float | None = None
        """The time of the first ping that has no reply."""
        self._state: ConnectionState = Online()
        self._state_since = 0.0

    @property
    def model(self) -> str:
        """The model that answers next in this conversation."""
        return safe_line(self.client.model)

    async def receive_events(self) -> None:
        """Receives until the connection is lost for good; then raises its error."""
        self._forget_prompts(self.client.welcome.redacted)
        try:
            async for event in self._feed:
                await self._settled.wait()
                kind = event.event if isinstance(event, messages.SessionEvent) else ""
                if kind == "shutdown":
                    self.is_server_stopping = True
                if isinstance(event, messages.SessionEvent) and kind == "redacted":
                    named = event.details.get("message_ids")
                    self._forget_prompts(named if isinstance(named, list) else ())
                if getattr(event, "session_id", None) not in (None, self.client.session_id):
                    continue
                new_changes = self._translator.changes_of(event)
                if isinstance(event, messages.TurnFinished):
                    self._end_seqs[event.turn_id] = event.seq
                if kind in self._expected:
                    self._expected.discard(kind)
                    new_changes = _without_notice(new_changes)
                self.change_queue.add(new_changes)
        except NpltError as error:
            self._lost = error
            self._turn_ended.set()
            raise

    def _forget_prompts(self, message_ids: Iterable[object]) -> None:
        self.display.prompts_redacted({one for one in message_ids if isinstance(one, str)})

    @contextmanager
    def expecting(self, event: str) -> Iterator[None]:
        """Wraps a command that causes this event, so that no notice of it is shown."""
        self._expected.add(event)
        try:
            yield
        except NpltError:
            self._expected.discard(event)
            raise

    # The server in the background

    def connection_changed(self, state: ConnectionState) -> None:
        self.display.connection_changed(state)
        if isinstance(state, Online):
            self.is_server_stopping = False
            self._forget_prompts(self.client.welcome.redacted)
        # The first attempt is made without a restart: someone else may be starting the server.
        is_due = isinstance(state, Reconnecting) and state.attempt == _RESTART_ATTEMPT
        if is_due and self.background is not None and not self.is_server_stopping:
            self.restarting = asyncio.ensure_future(self.restart_server(self.background))

    async def end(self) -> None:
        """Stops what runs in the background. A mark that is being sent is waited for."""
        if self.restarting is not None:
            self.restarting.cancel()
        if self._marking is not None:
            await asyncio.wait((self._marking,), timeout=_MARK_SECONDS_MAX)

    async def restart_server(self, address: Address) -> None:
        """Starts a background server that was lost, and reconnects to it at once."""
        remarks: list[str] = []
        try:
            found = await asyncio.to_thread(ensure_running, address, tell=remarks.append)
        except NpltError as error:
            remarks.append(f"the server can't be started again: {error.message}")
        else:
            if isinstance(self.client.connection, Reconnecting):
                self.client.reconnect_now(found)
        self.change_queue.add([changes.NoticeShown(text=safe_line(words)) for words in remarks])

    # Drawing

    async def draw_changes(self) -> None:
        while True:
            await self.change_queue.wait()
            began = monotonic()
            await self.draw_waiting()
            await self.display.pause(began)

    async def draw_waiting(self) -> None:
        """Draws all changes that have arrived."""
        async with self._lock:
            new_changes = self.change_queue.take()
            for change in new_changes:
                await self._draw(change)
            await self.display.drawn()
        self._note_ends(new_changes)

    async def _draw(self, change: changes.Change) -> None:
        change = self._note_taken_back(change)
        alert = ""
        if isinstance(change, ApprovalWanted):
            alert = f"{change.tool_name} waits for your decision"
        elif isinstance(change, changes.TurnEnded) and self.client.started_here(change.turn_id):
            # The end may be received twice, but only the first time the turn still runs here.
            alert = "the answer is done" if change.turn_id == self.turn_status.running else ""
        self.turn_status.apply(change)
        match change:
            case changes.Renamed():
                self.name = change.name
            case changes.PresenceChanged():
                self.others = changes.other_participants(change.participants, self._me)
            case ApprovalWanted():
                if not self.approvals.add(change):
                    return
            case changes.ApprovalSettled():
                wanted = self.approvals.settle(change.approval_id)
                if wanted is None:  # it was decided here
                    return
                change = replace(change, tool_name=wanted.tool_name)
            case changes.TranscriptOutdated():
                await self._renew(change)
                return
            case _:
                pass
        await self.display.draw(change)
        if alert:
            self.display.alert(alert)

    def _note_taken_back(self, change: changes.Change) -> changes.Change:
        """Marks the end of a turn that was cancelled in the queue."""
        match change:
            case changes.PromptShown():
                sent = self._sent.pop(change.message_id or "", None)
                if sent is not None and sent.is_taken_back:
                    self._taken_back.add(change.turn_id)
            case changes.TurnBegan():
                self._taken_back.discard(change.turn_id)
            case changes.TurnEnded():
                if change.turn_id in self.turn_status.waiting:
                    self._taken_back.add(change.turn_id)
                return replace(change, has_begun=change.turn_id not in self._taken_back)
            case _:
                pass
        return change

    async def _renew(self, change: changes.TranscriptOutdated) -> None:
        try:
            turns = await self._read()
        except NpltError as error:
            why = change.why or "some messages were taken back"
            why = f"{why}, but they can't be read: {safe_line(error.message)}"
            await self.display.draw(changes.NoticeShown(text=why, is_error=True))
            return
        await self.display.show_again(turns)
        if change.why:
            await self.display.draw(changes.NoticeShown(text=change.why))
        for _, turn_changes in turns:
            self._note_ends(turn_changes)

    def _note_ends(self, new_changes: Sequence[changes.Change]) -> None:
        for change in new_changes:
            if isinstance(change, changes.TurnEnded):
                self._ends.setdefault(change.turn_id, change)
                self._turn_ended.set()
                self._note_shown(self._end_seqs.pop(change.turn_id, 0))
        while len(self._ends) > _ENDS_KEPT:
            del self._ends[next(iter(self._ends))]

    # What the person has seen

    def _note_shown(self, seq: int) -> None:
        self._shown_seq = max(self._shown_seq, seq)
        self.mark_seen()

    def mark_seen(self) -> None:
        """Notes at the server that what is shown was seen, if a person looks at it."""
        is_due = self._shown_seq > self._seen_seq and self.display.is_looked_at
        is_marking = self._marking is not None and not self._marking.done()
        if is_due and not is_marking and messages.WATCHING in self.client.welcome.features:
            self._marking = asyncio.ensure_future(self._send_marks())

    async def _send_marks(self) -> None:
        session_id = self.client.session_id
        while self._seen_seq < (seq := self._shown_seq):
            try:
                await self.client.seen(seq, session_id)
            except NpltError:
                return  # the next end of a turn tries again
            if session_id != self.client.session_id:
                return
            self._seen_seq = seq

    async def wait_for_turn_end(self, turn_id: str) -> changes.TurnEnded:
        """Waits until the turn has ended and all of it is drawn."""
        while turn_id not in self._ends:
            if self._lost is not None:
                raise self._lost
            self._turn_ended.clear()
            await self._turn_ended.wait()
        return self._ends[turn_id]

    # Moving

    async def start_in(
        self, id_or_name: str, *, create: bool = False, history: str | None = None
    ) -> None:
        """Switches before anything is shown. Events wait until `move` shows the conversation."""
        self._arrived = await self.client.switch(id_or_name, create=create, history=history)

    async def move(self, going: Awaitable[Reached] | None = None, *, name: str = "") -> None:
        """Shows the conversation that `going` switches to, or by default the current one. A
        refused switch changes nothing. `name` is the name of a new conversation."""
        async with self._lock:
            self._settled.clear()
            try:
                reached = await going if going is not None else self._arrived
                attached = reached if isinstance(reached, messages.Attached) else None
                if reached is not None:
                    self.is_stored = not isinstance(reached, messages.SessionDeleted)
                self.change_queue.clear()
                self._translator.start_over()
                turns = await self._enter(attached)
                self.name = self.name or safe_line(name)
            finally:
                self._settled.set()
            await self.display.show(turns, has_moved=going is not None)
            self._note_shown(self._read_seq)
            for request in pending_approvals(attached) if attached else ():
                await self._draw(approval_wanted(request))
            await self.display.drawn()

    async def _enter(self, attached: messages.Attached | None) -> changes.Turns:
        """Reads the conversation; without `attached` it is new."""
        active = attached.active_turn if attached else None
        self.is_new = attached is None
        self.turn_status.start_over(
            running=active.turn_id if active else None,
            waiting=attached.queue if attached else (),
        )
        self.approvals.start_over()
        participants = changes.parse_participants(attached.clients) if attached else ()
        self.others = changes.other_participants(participants, self._me)
        self.replace_from = None
        self.context_percent, self.cost = None, ""  # until `refresh_usage`
        self.name = safe_line(attached.name) if attached else ""
        self._shown_seq = self._seen_seq = self._read_seq = 0
        self._end_seqs.clear()
        return await self._read() if self._shows_history else ()

    async def read_again(self) -> None:
        async with self._lock:
            await self.display.show_again(await self._read())
            await self.display.drawn()

    async def show_older(self) -> bool:
        """Reads a page of older messages. Returns False if there are none."""
        async with self._lock:
            if not self.has_older:
                return False
            page = await self.client.history(MESSAGES_PER_PAGE, before=self._oldest_seq)
            self._take_edges(page)
            turns = changes.changes_from_history(page.messages)
            if turns:
                await self.display.show_older(turns)
        return bool(turns)

    async def show_back_to(self, seq: int) -> bool:
        """Reads older messages until that one is shown. Returns False if it is too old."""
        for _ in range(_PAGES_BACK_MAX):
            if not self.has_older or self._oldest_seq <= seq:
                return True
            if not await self.show_older():
                break
        return self._oldest_seq <= seq

    def forget_older_than(self, seq: int) -> None:
        """Notes that the display has dropped older messages; they can be read again."""
        if seq:
            self._oldest_seq, self.has_older = seq, True

    async def _read(self) -> changes.Turns:
        """Reads the newest messages. The text of the running turn is queued as changes."""
        page = await self.client.history(MESSAGES_PER_PAGE)
        self._take_edges(page)
        self.name = safe_line(page.name) if page.message_count else ""
        self.is_stored = self.is_stored or page.message_count > 0
        self.change_queue.add(self._translator.so_far())
        turns = changes.changes_from_history(page.messages)
        waiting = self.turn_status.waiting
        for turn_id, turn_changes in turns:
            prompts = [one for one in turn_changes if isinstance(one, changes.PromptShown)]
            if prompts and turn_id in waiting:
                waiting[turn_id] = prompts[-1]
        return turns

    def _take_edges(self, page: messages.HistoryPage) -> None:
        if not page.page.has_more_after:
            self._read_seq = page.head_seq
        self.has_older = page.page.has_more_before and bool(page.messages)
        self._oldest_seq = page.page.before

    async def refresh_usage(self) -> None:
        """Reads name, tokens, share of the window and cost. A failure leaves them as they are."""
        if not self.is_stored:
            return
        status = self.turn_status
        try:
            if not self.name:  # the server names it after its first prompt
                page = await self.client.history(1)
                self.name = safe_line(page.name) if page.message_count else ""
            account = await self.client.usage()
        except NpltError:
            return
        status.input_tokens, status.output_tokens = changes.tokens_of(account.billed)
        # The same figure as in /context; an older server gives only that of the last call.
        percent = account.estimate.get("percent", account.occupancy.get("percent"))
        self.context_percent = float(percent) if isinstance(percent, int | float) else None
        cost = account.cost or {}
        amount = cost.get("amount") if cost.get("amount") != "0" else None
        shown = f"{amount:.4f}" if isinstance(amount, float) else str(amount)
        self.cost = safe_line(f"{shown} {cost.get('currency') or ''}") if amount else ""

    async def refresh_names(self) -> None:
        """Reads the names of the conversations, newest first, for completion."""
        with suppress(NpltError):
            rows = [row async for row in self.client.sessions()]
            named = (row.name for row in rows if row.name and not row.is_current)
            self.names = tuple(dict.fromkeys(named))

    # Asking

    async def send(
        self, text: str, message_id: str, *, continues: bool = False, cut: bool = False
    ) -> messages.Receipt:
        """Sends a prompt as soon as there is a connection. It may be sent several times, with
        the same `message_id`, so it runs once. A refusal is raised."""
        attachments, self.attachments = tuple(self.attachments), []
        replace_from, self.replace_from = self.replace_from, None
        unsent = (attachments, replace_from)
        if replace_from is not None:
            attachments = (*self.replaced_attachments, *attachments)
        sent = self._sent[message_id] = _SentPrompt(text)
        receipt: messages.Receipt | None = None
        try:
            with nullcontext() if replace_from is None else self.expecting("rolled_back"):
                while receipt is None:
                    turn = self.client.ask(
                        text,
                        message_id=message_id,
                        attachments=attachments,
                        replace_from=replace_from,
                        continues=continues,
                        options={"cut": True} if cut else None,
                    )
                    try:
                        async with turn:  # the feed has its events too
                            self.is_stored = True
                            receipt = turn.receipt
                    except (ConnectionLost, TimedOut):
                        if receipt is None and isinstance(self.client.connection, Offline):
                            raise
        except BaseException as error:
            self._sent.pop(message_id, None)
            sent.turn_id.cancel()
            if isinstance(error, NpltError):  # it may be sent again
                self.attachments = [*unsent[0], *self.attachments]
            if isinstance(error, LimitExceeded):  # in another form
                self.replace_from = unsent[1]
            raise
        if attachments and receipt.position:
            self._sent_files[receipt.turn_id] = attachments
        if sent.is_taken_back:
            self._taken_back.add(receipt.turn_id)
        if not sent.turn_id.done():
            sent.turn_id.set_result(receipt.turn_id)
        return receipt

    def take_back_queued(self) -> tuple[str, Awaitable[object]] | None:
        """Returns the text of our last prompt that is queued (or has no receipt yet while a turn
        runs), and an awaitable that cancels it at the server; `None` if there is none."""
        if not isinstance(self.client.connection, Online):
            return None
        sent = [one for one in self._sent.values() if not one.is_taken_back]
        if sent and self.turn_status.running is not None:
            sent[-1].is_taken_back = True
            return sent[-1].text, self._cancel_sent(sent[-1])
        if not (queued := self.queued):
            return None
        turn_id = queued[-1]
        self._taken_back.add(turn_id)
        return self.turn_status.waiting[turn_id].text, self._cancel_queued(turn_id)

    async def _cancel_sent(self, sent: _SentPrompt) -> None:
        with suppress(asyncio.CancelledError):  # the prompt was refused
            await self._cancel_queued(await asyncio.shield(sent.turn_id))

    async def _cancel_queued(self, turn_id: str) -> None:
        self.attachments.extend(self._sent_files.pop(turn_id, ()))
        await self.client.cancel(turn_id)

    @property
    def is_sending(self) -> bool:
        """Whether a prompt of ours has no receipt yet."""
        return any(not one.is_taken_back for one in self._sent.values())

    @property
    def has_queued(self) -> bool:
        return bool(self.queued) or (self.is_sending and self.turn_status.running is not None)

    @property
    def queued(self) -> list[str]:
        """Our queued turns, the oldest first, without those taken back."""
        waiting = self.turn_status.waiting.items()
        return [one for one, prompt in waiting if prompt.is_mine and one not in self._taken_back]

    @property
    def connection(self) -> ConnectionState:
        """The client's state; `Reconnecting` has the remaining seconds."""
        state = self.client.connection
        if state is not self._state:
            self._state, self._state_since = state, monotonic()
        if isinstance(state, Reconnecting):
            left = max(0.0, state.in_seconds - (monotonic() - self._state_since))
            return replace(state, in_seconds=left)
        return state

    async def watch_connection(self) -> None:
        """Measures the lag as long as the chat runs."""
        while True:
            await self._measure_lag()
            await asyncio.sleep(_MEASURE_SECONDS)

    async def _measure_lag(self) -> None:
        if not isinstance(self.client.connection, Online):
            self._pinged_at = None
            return
        if self._pinged_at is None:
            self._pinged_at = monotonic()
        sent = monotonic()
        with suppress(NpltError):  # the state of the connection shows the failure
            await self.client.ping()
            self.lag_seconds = monotonic() - sent
            self._pinged_at = None

    @property
    def silent_seconds(self) -> float:
        """How long the server has not replied to a ping."""
        return 0.0 if self._pinged_at is None else monotonic() - self._pinged_at

    @property
    def is_silent(self) -> bool:
        """Whether the server is connected, but hangs."""
        return self.silent_seconds >= SILENT_SECONDS_SHOWN


def _without_notice(new_changes: Iterable[changes.Change]) -> Iterator[changes.Change]:
    """Leaves out notices of events that our own command caused."""
    for change in new_changes:
        if isinstance(change, changes.TranscriptOutdated):
            yield replace(change, why="")
        elif not isinstance(change, changes.NoticeShown):
            yield change


LAG_SECONDS_SHOWN = 0.5
SILENT_SECONDS_SHOWN = 3.0
_APART = " · "
_NAME_WIDTHS = ((40, 30), (30, 16), (20, 10), (14, 8))
"""Widths of the model's and the conversation's name. The first pair with which everything
fits is used."""


def status_line(session: ChatSession, width: int) -> str:
    match connection := session.connection:
        case Online() if session.is_silent:
            words = f"◌ no answer{'' if width < 60 else ' for'} {session.silent_seconds:.0f} s"
        case Online():
            words = "● online"
        case Offline():
            words = "○ offline"
        case Reconnecting():
            soon = f" in {connection.in_seconds:.0f} s" if connection.in_seconds >= 1 else ""
            words = f"◌ reconnecting{soon} (attempt {connection.attempt})"
        case _:
            assert_never(connection)
    parts: list[str] = []
    for name_widths in _NAME_WIDTHS:
        parts = list(_status_parts(session, *name_widths, is_short=width < 60))
        if width_of(_APART.join([words, *parts])) <= width:
            break
    for part in parts:
        if width_of(words + _APART + part) > width:
            break
        words += _APART + part
    return words


def _status_parts(
    session: ChatSession, model_width: int, name_width: int, *, is_short: bool
) -> Iterator[str]:
    status, others = session.turn_status, session.others
    if session.approvals.oldest is not None:
        yield "waiting for you"
    elif status.running is not None:
        is_online = isinstance(session.client.connection, Online)
        can_stop = is_online and status.stopping is None
        yield _doing_words(status, is_short=is_short) + (" (Esc stops)" if can_stop else "")
    if status.waiting:
        yield f"{len(status.waiting)} waiting"
    if count := len(session.attachments):
        yield f"{count} {'file' if count == 1 else 'files'} attached"
    if session.lag_seconds >= LAG_SECONDS_SHOWN:
        yield f"lag {session.lag_seconds:.1f} s"
    yield safe_line(session.model, model_width)
    yield safe_line(session.name or "new conversation", name_width)
    if session.context_percent is not None:
        yield f"context {session.context_percent:.0f} %"
    if words := session.elsewhere.words:
        yield words
    if others:
        more = f" +{len(others) - 3}" if len(others) > 3 else ""
        yield f"with {', '.join(others[:3])}{more}"
    if status.input_tokens or status.output_tokens:
        yield f"{short_number(status.input_tokens)} in, {short_number(status.output_tokens)} out"
    if session.cost:
        yield safe_line(session.cost, 20)


_SPINNER = "◐◓◑◒"
_SPINS_PER_SECOND = 1.5


def _doing_words(status: TurnStatus, *, is_short: bool) -> str:
    doing = "stopping" if status.stopping else shorten(status.doing, 30) or "answering"
    if (seconds := status.seconds) is None:
        return doing
    spinner = _SPINNER[int(seconds * _SPINS_PER_SECOND * len(_SPINNER)) % len(_SPINNER)]
    if is_short:
        return f"{spinner} {'stopping ' if status.stopping else ''}{seconds:.0f} s"
    speed = status.tokens_per_second
    return f"{spinner} {doing} {seconds:.0f} s" + (
        "" if speed is None else f", ~{speed:.0f} tokens/s"
    )


def short_number(tokens: int) -> str:
    if tokens < 1_000:
        return str(tokens)
    if tokens < 1_000_000:
        return f"{tokens / 1_000:.1f}k"
    return f"{tokens / 1_000_000:.1f}M"


class ChatOptions(Struct, frozen=True, kw_only=True):
    server: str | None = None
    go_on: bool = False
    resume: str | None = None
    new: bool = False
    create: bool = False
    """Creates the conversation to resume if it does not exist."""
    history: str | None = None
    """The history of the server's settings that stores a new conversation."""
    model: str | None = None


Talk: TypeAlias = Callable[[ChatSession, str], Awaitable[tuple[int, str | None]]]
"""Runs the chat with a draft. Returns the exit code, and a draft if the chat goes on with it
on a new connection."""


def run_chat(
    options: ChatOptions,
    talk: Talk,
    *,
    give_up_seconds: float | None = None,
    exact_answers: bool = False,
    is_interactive: bool = True,
) -> int:
    """Connects and calls `talk` to run the chat, again for each new connection that it wants.

    `give_up_seconds` limits reconnecting; `None`: a person may wait without end.
    `is_interactive` shows earlier messages, and at the end how to resume the conversation.
    """
    patience = Patience(give_up_seconds=find_reconnect_seconds(give_up_seconds))

    async def talk_once(
        options: ChatOptions, address: Address, draft: str
    ) -> tuple[int, str | None, ChatSession]:
        """Returns the result of `talk`, and its session."""
        shown: ChatSession | None = None

        def connection_changed(state: ConnectionState) -> None:
            if shown is not None:
                shown.connection_changed(state)

        connecting = connect(
            address,
            token=find_token(None, address=address),
            client_name=COMMAND_NAME,
            history=options.history,
            features=(messages.REDACTED, messages.WATCHING, messages.LATER),
            reconnect=patience,
            on_connection=connection_changed,
        )
        async with AsyncExitStack() as stack:
            with remark_if_silent(address):
                client = await stack.enter_async_context(connecting)
            if address.is_default and find_server() is not None:
                compare_versions(client.welcome.server)
            session = ChatSession(
                client,
                exact_answers=exact_answers,
                shows_history=is_interactive,
                background=address if address.is_default else None,
            )
            await _enter_wanted(session, options, address)
            shown = session  # `talk` makes its display at once
            code, next_draft = await talk(session, draft)
            await session.end()
            return code, next_draft, session

    async def talk_on(options: ChatOptions, address: Address) -> int:
        code, draft, session = await talk_once(options, address, "")
        while draft is not None:
            session_id = session.client.session_id if session.is_stored else None
            if session_id is not None:  # the conversation has its model
                options = replace(options, model=None)
            options = replace(options, go_on=False, new=False, resume=session_id)
            code, draft, session = await talk_once(options, address, draft)
        if session.is_stored and is_interactive:
            print_remark(_farewell(session, options.server))
        return code

    return with_server(
        find_address(options.server), lambda address: asyncio.run(talk_on(options, address))
    )


def _farewell(session: ChatSession, server: str | None) -> str:
    """Says how to open the conversation again. The beginning of an id is enough."""
    called = f"to {safe_line(session.name, _NAME_WIDTH_MAX)!r} " if session.name else ""
    whole = session.client.session_id
    short = whole[:SHORT_ID_MIN] if re.fullmatch("[0-9a-f]{32}", whole) else whole
    at = f" {server}" if server else ""
    return f"come back {called}with: nplt chat{at} --resume {short}"


_NAME_WIDTH_MAX: Final = 40


async def _enter_wanted(session: ChatSession, options: ChatOptions, address: Address) -> None:
    if options.go_on:
        try:
            await session.start_in(LAST)
        except RequestRefused as error:
            if error.code != "not_found":
                raise
            print_remark("there is no conversation yet; this is a new one")
    elif (wanted := options.resume or address.session) is not None:
        await session.start_in(wanted, create=options.create, history=options.history)
    if options.model is not None:
        await session.client.switch_model(options.model)
