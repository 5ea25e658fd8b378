"""Being in a conversation: which one, what is known of it, what comes from it.

Plain code without a screen. `follow` turns the server's events into changes and
lays them into the `gathering`; whoever draws takes them from there. While we
move, events wait: what comes after the move is told after what was read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from uuid import uuid4

from nplt_client.client import Client
from nplt_client.connection_states import ConnectionState
from nplt_client.errors import NpltError
from nplt_client.fullscreen.changes import ApprovalWanted, OfTurn
from nplt_client.fullscreen.company import Guest, guests_in, others
from nplt_client.fullscreen.course import Course
from nplt_client.fullscreen.gathering import Gathering
from nplt_client.fullscreen.retold import approval_in, retold, tokens_of
from nplt_client.fullscreen.safe_text import safe_line
from nplt_client.fullscreen.status import StatusFacts
from nplt_client.fullscreen.story import Story
from nplt_client.opening import COMMAND_NAME
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Attached, HistoryPage, Receipt

MESSAGES_PER_PAGE = 30


class Visit:
    def __init__(
        self, client: Client, *, model: str | None = None, program: str = COMMAND_NAME
    ) -> None:
        """`program`: what this client called itself when it connected."""
        self.client = client
        self.course = Course()
        self.gathering = Gathering()
        self.name = ""
        self.model = model or client.welcome.model
        self.others: tuple[str, ...] = ()
        self.context_percent: float | None = None
        self.cost = ""
        self.has_older = False
        self.is_stored = False
        """Whether there is something to come back to."""
        self.attachments: list[str] = []
        self.replace_from: int | None = None
        self._arrived: Attached | None = None
        self._asked_model = model
        self._me = Guest(user=safe_line(client.welcome.user), program=program)
        self._story = Story(client.started_here)
        self._feed = client.events()
        self._settled = asyncio.Event()
        self._approvals: list[ApprovalWanted] = []
        self._oldest_seq = 0

    # Listening

    async def follow(self) -> None:
        """Until the connection is gone for good; then its error."""
        async for event in self._feed:
            await self._settled.wait()
            session_id = getattr(event, "session_id", None)
            if session_id in (None, self.client.session_id):
                self.gathering.add(self._story.changes_of(event))

    # Moving

    async def come_to(self, id_or_name: str) -> None:
        """The first step, before anything is shown; events wait until it is."""
        self._arrived = await self.client.switch(id_or_name)

    async def move(self, going: Awaitable[object] | None) -> list[tuple[str, list[OfTurn]]]:
        """Goes there, and gives what stands there; None: where we are. A move that is
        refused changes nothing."""
        self._settled.clear()
        try:
            reached = await going if going is not None else self._arrived
            self.gathering.forget()
            self._story.start_over()
            return await self._look_around(reached if isinstance(reached, Attached) else None)
        finally:
            self._settled.set()

    async def _look_around(self, attached: Attached | None) -> list[tuple[str, list[OfTurn]]]:
        active = attached.active_turn if attached else None
        self.course.start_over(
            running=active.turn_id if active else None,
            waiting=attached.queue if attached else (),
        )
        self.meet(guests_in(attached.clients) if attached else ())
        if attached is not None and self._asked_model is None:
            self.model = safe_line(attached.model)
        self._approvals = [
            approval_in(one) for one in (attached.pending_approvals if attached else ())
        ]
        self.replace_from = None
        self.context_percent, self.cost = None, ""  # until it is weighed
        return await self.read_again()

    async def read_again(self) -> list[tuple[str, list[OfTurn]]]:
        """The newest messages, and what runs now as far as it was told."""
        page = await self.client.history(MESSAGES_PER_PAGE)
        self._learn(page)
        self.name = safe_line(page.name) if page.message_count else ""
        self.is_stored = self.is_stored or page.message_count > 0
        self.gathering.add(self._story.so_far())
        return retold(page.messages)

    async def older(self) -> list[tuple[str, list[OfTurn]]]:
        if not self.has_older:
            return []
        page = await self.client.history(MESSAGES_PER_PAGE, before=self._oldest_seq)
        self._learn(page)
        return retold(page.messages)

    def take_approvals(self) -> list[ApprovalWanted]:
        """Those that waited when we came."""
        taken, self._approvals = self._approvals, []
        return taken

    def forget_older_than(self, seq: int) -> None:
        """The screen has let go of what was above."""
        if seq:
            self._oldest_seq, self.has_older = seq, True

    def _learn(self, page: HistoryPage) -> None:
        self.has_older = page.page.has_more_before and bool(page.messages)
        self._oldest_seq = page.page.before

    async def weigh(self) -> None:
        """Name, tokens, share of the window, cost. Not known is not an error."""
        if not self.is_stored:
            return
        try:
            if not self.name:  # it got one from its first prompt
                page = await self.client.history(1)
                self.name = safe_line(page.name) if page.message_count else ""
            account = await self.client.usage()
        except NpltError:
            return
        self.course.bill(*tokens_of(account.billed))
        percent = account.occupancy.get("percent")
        self.context_percent = float(percent) if isinstance(percent, int | float) else None
        self.cost = _price(account.cost)

    # Speaking

    async def send(
        self,
        text: str,
        *,
        message_id: str,
        attachments: tuple[str, ...] = (),
        replace_from: int | None = None,
    ) -> Receipt:
        turn = self.client.ask(
            text,
            message_id=message_id,
            model=self._asked_model,
            attachments=attachments,
            replace_from=replace_from,
        )
        async with turn:  # what comes of it comes to the feed
            self.is_stored = True
            return turn.receipt

    def meet(self, guests: tuple[Guest, ...]) -> None:
        self.others = others(guests, self._me)

    def choose_model(self, model: str) -> None:
        self._asked_model = None
        self.model = safe_line(model)

    def facts(self, *, lag_seconds: float, connection: ConnectionState) -> StatusFacts:
        return StatusFacts(
            connection=connection,
            model=self.model,
            name=self.name,
            input_tokens=self.course.input_tokens,
            output_tokens=self.course.output_tokens,
            context_percent=self.context_percent,
            cost=self.cost,
            others=self.others,
            lag_seconds=lag_seconds,
            doing=self.course.doing,
            is_running=self.course.running is not None,
            waiting=len(self.course.waiting),
            attached=len(self.attachments),
        )


def new_message_id() -> str:
    return uuid4().hex


def _price(cost: JsonObject | None) -> str:
    amount = cost.get("amount") if cost else None
    if cost is None or amount in (None, 0):
        return ""
    shown = f"{amount:.4f}" if isinstance(amount, float) else str(amount)
    return safe_line(f"{shown} {cost.get('currency') or ''}")
