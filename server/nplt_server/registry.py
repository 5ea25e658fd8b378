"""Which conversations are open, and who may enter them.

A conversation is opened when someone needs it and closed when nobody did for a
while. Fresh ids are reserved for a user without costing a file: the
conversation is stored with its first message, from whichever connection that
comes. What isn't yours is answered exactly like what isn't there.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.events import SessionEvent
from nplt_server.conversation import Conversation
from nplt_server.errors import no_such_conversation
from nplt_server.household import Household
from nplt_storage.catalog import ConversationRow

_IDLE_SECONDS_MAX = 60.0
_RESERVED_MAX = 10_000
_CANDIDATES_MAX = 20


class Registry:
    def __init__(self, household: Household) -> None:
        self._house = household
        self._open: dict[str, Conversation] = {}
        self._opening: dict[str, anyio.Lock] = {}
        self._reserved: OrderedDict[str, str] = OrderedDict()

    def __iter__(self) -> Iterator[Conversation]:
        return iter(tuple(self._open.values()))

    def fresh(self, user: str) -> Conversation:
        """A new conversation under a reserved id, not stored yet."""
        session_id = self._house.new_session_id()
        self._reserved[session_id] = user
        if len(self._reserved) > _RESERVED_MAX:
            self._reserved.popitem(last=False)
        return self._keep(Conversation(session_id, user=user, household=self._house))

    async def get(self, session_id: str, user: str) -> Conversation:
        """The open conversation; opened if need be."""
        conversation = self._open.get(session_id)
        if conversation is None:
            lock = self._opening.setdefault(session_id, anyio.Lock())
            async with lock:
                conversation = self._open.get(session_id) or await self._load(session_id, user)
            self._opening.pop(session_id, None)
        if conversation.user != user or conversation.deleted:
            raise no_such_conversation(session_id)
        conversation.used_at = anyio.current_time()
        return conversation

    def row(self, session_id: str, user: str) -> ConversationRow | None:
        """Its row in the catalogue; `None` while it is only reserved."""
        row = self._house.store.row(session_id)
        if row is not None and row.user == user:
            return row
        reserved = self._reserved.get(session_id) == user
        if row is None and reserved:
            return None
        raise no_such_conversation(session_id)

    def state_of(self, session_id: str) -> str:
        conversation = self._open.get(session_id)
        return conversation.state if conversation else "idle"

    def turn_holder(self, turn_id: str, user: str) -> Conversation | None:
        for conversation in self._open.values():
            if conversation.user == user and conversation.holds_turn(turn_id):
                return conversation
        return None

    def resolve(self, wanted: str, user: str) -> str:
        """Exact id, else exact name, else unique prefix of an id."""
        if self._reserved.get(wanted) == user:
            return wanted
        rows = self._house.store.rows(user)
        for matches in (
            [row for row in rows if row.session_id == wanted],
            [row for row in rows if row.name == wanted],
            [row for row in rows if wanted and row.session_id.startswith(wanted)],
        ):
            if len(matches) == 1:
                return matches[0].session_id
            if matches:
                raise _ambiguous(wanted, matches)
        raise no_such_conversation(wanted)

    async def delete(self, session_id: str, user: str) -> None:
        """To the trash; whoever is attached is told and finds a fresh one."""
        conversation = await self.get(session_id, user)
        conversation.deleted = True
        conversation.cancel_all("the conversation was deleted")
        await conversation.activity.quiet()
        was_stored = conversation.is_stored
        await conversation.close()
        if was_stored:
            await self._house.store.delete(session_id)
        self._open.pop(session_id, None)
        self._reserved.pop(session_id, None)
        conversation.emit(SessionEvent(session_id=session_id, event="deleted"))

    async def close_idle(self) -> None:
        now = anyio.current_time()
        for conversation in self:
            unused = not conversation.audience and not conversation.is_busy
            if unused and now - conversation.used_at > _IDLE_SECONDS_MAX:
                del self._open[conversation.session_id]
                await conversation.close()

    async def close_all(self) -> None:
        for conversation in self:
            await conversation.close()
        self._open.clear()

    def _keep(self, conversation: Conversation) -> Conversation:
        self._open[conversation.session_id] = conversation
        return conversation

    async def _load(self, session_id: str, user: str) -> Conversation:
        if self.row(session_id, user) is None:
            return self._keep(Conversation(session_id, user=user, household=self._house))
        record, history = await self._house.store.open(session_id)
        conversation = self._keep(
            Conversation(
                session_id, user=user, household=self._house, history=history, record=record
            )
        )
        await conversation.pick_up()
        return conversation


def _ambiguous(wanted: str, rows: list[ConversationRow]) -> RequestError:
    return RequestError(
        ErrorCode.AMBIGUOUS,
        f"{wanted!r} could be any of {len(rows)} conversations",
        field="session_id",
        details={
            "candidates": [
                {"session_id": row.session_id, "name": row.name} for row in rows[:_CANDIDATES_MAX]
            ]
        },
    )
