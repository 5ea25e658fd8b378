"""One conversation: its history, its queue of turns, its audience.

Sessions hand it work; its writer is the only one that writes, its agenda runs
one turn at a time. Turns belong to the conversation, not to a connection: a
client that leaves stops nothing. Nothing here knows about dialects or sockets;
what must reach clients goes through the audience or the callbacks handed in.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.events import SessionEvent
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Attached, Receipt
from nplt_protocol.requests import Attach, Prompt
from nplt_protocol.shapes import write
from nplt_server.conversations.acceptance import check_room
from nplt_server.conversations.activity import Activity
from nplt_server.conversations.agenda import Agenda, AgendaState
from nplt_server.conversations.audience import Audience
from nplt_server.conversations.chore import Chore
from nplt_server.conversations.household import Household
from nplt_server.conversations.intake import Intake
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.library import HistoryProfile
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.playback import Replay, entry_event, replay_of
from nplt_server.conversations.unfinished import pick_up, word_for_later
from nplt_server.conversations.writer import Writer
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.rows import NEW_NAME, ConversationRow
from nplt_storage.facts.entries import Entry, ModelInputEntry
from nplt_storage.store import Opened

_Given = TypeVar("_Given")


class Conversation:
    __slots__ = (
        "_agenda",
        "_house",
        "_ledger",
        "_mind",
        "_writer",
        "activity",
        "approvals",
        "audience",
        "deleted",
        "session_id",
        "used_at",
        "user",
    )

    def __init__(
        self,
        session_id: str,
        *,
        user: str,
        household: Household,
        profile: HistoryProfile,
        opened: Opened | None = None,
    ) -> None:
        self.session_id = session_id
        self.user = user
        self.audience = Audience(household.limits.message_bytes_max)
        self.deleted = False
        self.used_at = anyio.current_time()
        self._house = household
        self._ledger = Ledger(
            session_id,
            user=user,
            household=household,
            profile=profile,
            opened=opened,
            # Everyone is sent out, and comes in again to what another server wrote.
            outdated=lambda: self.announce("lagged", {"head_seq": self.history.head_seq}),
        )
        self.activity = Activity(part_of=household.activity)
        self._mind: Mind | None = None
        self._writer = Writer(
            self._ledger, spawn=household.spawn, activity=self.activity, tell=self._tell
        )
        self._agenda = Agenda(
            self._ledger,
            household=household,
            activity=self.activity,
            mind=lambda: self.mind,
            writer=self._writer,
            audience=self.audience,
        )
        self.approvals = self._agenda.approvals

    # What it is

    @property
    def history(self) -> ConversationHistory:
        return self._ledger.history

    @property
    def profile(self) -> HistoryProfile:
        return self._ledger.profile

    @property
    def is_stored(self) -> bool:
        return self._ledger.is_stored

    @property
    def is_stale(self) -> bool:
        return self._ledger.is_stale

    @property
    def row(self) -> ConversationRow | None:
        """As lists show it, up to the last entry; `None` while it is not stored."""
        return self._ledger.row

    @property
    def name(self) -> str:
        return self.row.name if self.row else NEW_NAME

    @property
    def model(self) -> str:
        """What answers the next turn."""
        return self._house.router.choose(self.history.model)

    @property
    def mind(self) -> Mind:
        if self._mind is None:
            self._mind = Mind(
                self._ledger,
                household=self._house,
                write=self._writer.record_prepared,
                announce=self.announce,
            )
        return self._mind

    @property
    def state(self) -> AgendaState:
        return self._agenda.state

    @property
    def has_work(self) -> bool:
        """Whether a turn or a chore runs or waits."""
        return self._agenda.is_busy

    @property
    def is_busy(self) -> bool:
        agenda = self._agenda
        # What is owed to an outdated record can't be paid through this one.
        owes = agenda.is_in_debt and not self.is_stale
        summarizes = self._mind is not None and self._mind.is_summarizing
        return bool(len(agenda)) or owes or summarizes or not self.activity.is_quiet

    @property
    def is_unused(self) -> bool:
        return not self.audience and not self.is_busy

    @property
    def prompts_waiting(self) -> int:
        return len(self._agenda.waiting)

    def holds_turn(self, turn_id: str) -> bool:
        return self._agenda.holds(turn_id)

    def snapshot(self, clients: tuple[JsonObject, ...] = ()) -> Attached:
        return Attached(
            session_id=self.session_id,
            name=self.name,
            model=self.model,
            head_seq=self.history.head_seq,
            active_turn=self._agenda.active_turn,
            queue=self._agenda.waiting,
            pending_approvals=tuple(map(write, self.approvals.pending)),
            clients=clients,
        )

    # What can be asked of it

    async def accept(self, prompt: Prompt, *, receipt: Callable[[Receipt], None]) -> None:
        """Returns when the prompt is on disk; the receipt is given before any event."""
        intake = Intake(
            prompt,
            receipt,
            ledger=self._ledger,
            agenda=self._agenda,
            household=self._house,
            mind=lambda: self.mind,
        )
        await intake.take_in(
            self._writer,
            check_open=self._check_open,
            announce=self.announce,
            accepted=self._accepted,
        )

    def _accepted(self, prompt: ModelInputEntry) -> None:
        if self.deleted:  # it was on its way while the conversation was deleted
            self.cancel(prompt.turn_id or "", "the conversation was deleted")

    def replay(self, cursor: Attach | None) -> Replay:
        """What a client that attaches now has missed, to be sent before anything
        new is said."""
        return replay_of(
            self.history,
            cursor,
            turn=self._agenda.running,
            voice=self._agenda.voice,
            limits=self._house.limits,
        )

    def cancel(self, turn_id: str, reason: str = "cancelled") -> bool:
        return self._agenda.cancel(turn_id, reason)

    def delete(self, reason: str) -> None:
        """Nothing more is accepted, and what runs or waits ends now."""
        self.deleted = True
        self._agenda.cancel_all(reason)
        self._drop_chores(RequestError(ErrorCode.NOT_FOUND, reason, field="session_id"))

    def interrupt(self, reason: str) -> None:
        """The server stops: what runs ends now. Turns that wait are kept for later,
        chores are not: nobody would hear of them."""
        self._agenda.interrupt(reason)
        self._drop_chores(RequestError(ErrorCode.SHUTTING_DOWN, reason))

    def set_aside(self, reason: str) -> None:
        self._agenda.set_aside(reason)

    def _drop_chores(self, why: RequestError) -> None:
        self._agenda.drop_chores(why)
        if self._mind is not None:
            self._mind.stop_summarizing()

    def queue(
        self,
        work: Callable[[], Awaitable[_Given]],
        *,
        done: Callable[[_Given], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """Waits for the turns before it; those that come later wait for it."""
        self._check_open()
        check_room(self._agenda, self._house.limits.waiting_prompts_max)
        self._agenda.add(Chore(work=work, done=done, failed=failed))
        self._agenda.advance()

    def check_model(self, model: str) -> str:
        return self._house.router.check(model)

    async def write_fact(self, draft: Entry) -> Entry:
        """A line of its own: on disk and told to everyone when it returns."""
        self._check_open()
        return await self._writer.record(draft)

    async def ensure_stored(self) -> None:
        await self._ledger.open()

    def announce(self, what: str, details: JsonObject) -> None:
        self.audience.emit(SessionEvent(session_id=self.session_id, event=what, details=details))

    async def leave_word(self) -> None:
        """Before the server stops: debts are paid, and what only waits is said to."""
        await self._agenda.pay_debts()
        if self._agenda.waiting:
            await self._writer.record(word_for_later(len(self._agenda.waiting)))

    async def close(self) -> None:
        await self._ledger.close()

    async def reopen(self) -> None:
        """It was closed to be deleted, and could not be."""
        await self._ledger.reopen()
        self.deleted = False

    async def pick_up(self) -> None:
        """What was left undone when the server stopped last."""
        await pick_up(
            self.history,
            self._agenda,
            said=self._ledger.said,
            tools=self._house.tools,
            now=self._house.clock(),
            write=self._writer.record,
        )

    def _tell(self, entry: Entry) -> None:
        self.used_at = anyio.current_time()
        if self._mind is not None:
            self._mind.hear(entry)
        if self.audience:
            bytes_max = self._house.limits.message_bytes_max
            self.audience.emit(entry_event(self.session_id, entry, bytes_max))

    # When it says no

    def _check_open(self) -> None:
        if self.deleted:
            raise RequestError(
                ErrorCode.NOT_FOUND, "this conversation was deleted", field="session_id"
            )
        if self._house.draining:
            raise RequestError(ErrorCode.SHUTTING_DOWN, "the server is shutting down")
