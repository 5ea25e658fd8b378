"""Which conversations are open, and who may enter them.

A conversation is opened when someone needs it and closed when nobody did for a
while, or when too many are open at once. Fresh ids are reserved for a user
without costing a file: the conversation is stored with its first message, from
whichever connection that comes. What isn't yours is answered exactly like what
isn't there.

    reserved ──first message──▶ open ◀──needed / unused──▶ closed
                                  └──────deleted──────▶ trash

Opening, closing, deleting and copying one conversation never overlap: a lock per id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import anyio

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.events import SessionEvent
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.household import Household
from nplt_server.conversations.library import Found, HistoryProfile
from nplt_server.errors import no_such_conversation
from nplt_storage.conversation.row_lists import RowQuery
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.errors import ConversationExists, ConversationNotFound

_UNUSED_SECONDS_MAX = 60.0
_UNUSED_MAX = 128
_RESERVED_MAX = 10_000
_CANDIDATES_MAX = 20


class _Reservation(NamedTuple):
    user: str
    profile: HistoryProfile


class Registry:
    def __init__(self, household: Household) -> None:
        self._house = household
        self._open: dict[str, Conversation] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._reserved: OrderedDict[str, _Reservation] = OrderedDict()

    def __iter__(self) -> Iterator[Conversation]:
        return iter(tuple(self._open.values()))

    # Getting in

    def fresh(self, user: str, history: str | None = None) -> Conversation:
        """A new conversation under a reserved id, not stored yet."""
        profile = self._house.library.profile(history)
        session_id = self._house.new_session_id()
        self._reserve(session_id, _Reservation(user, profile))
        return self._keep(self._unstored(session_id, user, profile))

    async def get(self, session_id: str, user: str) -> Conversation:
        """The open conversation; opened if need be."""
        conversation = self._open.get(session_id)
        if conversation is None or conversation.is_stale:
            async with self.alone_with(session_id):
                await self._put_away_stale(session_id)
                conversation = self._open.get(session_id) or await self._load(session_id, user)
        if conversation.deleted or conversation.user != user:
            raise no_such_conversation(session_id)
        conversation.used_at = anyio.current_time()
        return conversation

    async def find(self, session_id: str, user: str) -> Found | None:
        """Where it is kept, and its row; `None` while it is only reserved."""
        conversation = self._open.get(session_id)
        if conversation is not None and conversation.row is not None:
            found = Found(profile=conversation.profile, row=conversation.row)
        else:
            kept = await self._house.library.find(session_id)
            if kept is None:
                if not self._is_reserved(session_id, user):
                    raise no_such_conversation(session_id)
                return None
            found = kept
        if found.row.user != user:
            raise no_such_conversation(session_id)
        return found

    async def resolve(self, wanted: str, user: str) -> str:
        """Exact id, else exact name, else unique prefix of an id."""
        if self._is_reserved(wanted, user):
            return wanted
        found = await self._house.library.find(wanted)
        if found is not None and found.row.user == user:
            return wanted
        for query in (RowQuery(name_is=wanted), RowQuery(id_prefix=wanted)) if wanted else ():
            matches = await self._house.library.all_rows(user, query)
            if len(matches) == 1:
                return matches[0].session_id
            if matches:
                raise _ambiguous(wanted, matches)
        raise no_such_conversation(wanted)

    # Looking around

    def state_of(self, session_id: str) -> str:
        conversation = self._open.get(session_id)
        return conversation.state if conversation else "idle"

    def turn_holder(self, turn_id: str, user: str) -> Conversation | None:
        for conversation in self._open.values():
            if conversation.user == user and conversation.holds_turn(turn_id):
                return conversation
        return None

    # Going out

    def left(self, conversation: Conversation) -> None:
        """Its last listener may have gone: nothing is kept of a conversation in
        which nothing was said. Its id stays reserved."""
        is_ours = self._open.get(conversation.session_id) is conversation
        if is_ours and conversation.is_unused and not conversation.is_stored:
            del self._open[conversation.session_id]

    async def delete(self, session_id: str, user: str) -> None:
        """To the trash, also if it is damaged; whoever is attached is told and finds
        a fresh one."""
        async with self.alone_with(session_id):
            found = await self.find(session_id, user)
            conversation = self._open.get(session_id)
            if conversation is None:
                if found is not None:
                    await found.profile.store.delete(session_id)
            else:
                await self._delete_open(conversation)
            self._reserved.pop(session_id, None)
        if conversation is not None:
            conversation.audience.emit(SessionEvent(session_id=session_id, event="deleted"))

    async def undelete(self, session_id: str, user: str) -> None:
        """Out of the trash of whichever history has it there."""
        async with self.alone_with(session_id):
            if session_id in self._open or session_id in self._reserved:
                raise no_such_conversation(session_id)
            try:
                await self._house.library.undelete(session_id, user)
            except (ConversationNotFound, ConversationExists):
                # Another's that has the same id is none of this user's business.
                raise no_such_conversation(session_id) from None

    async def is_taken(self, session_id: str, user: str) -> bool:
        """By anybody, in any history, or reserved for a conversation yet to come; or by
        what someone other than that user deleted, and may want back."""
        library = self._house.library
        if session_id in self._open or session_id in self._reserved:
            return True
        if await library.find(session_id) is not None:
            return True
        return await library.is_trash_of_another(session_id, user)

    async def _delete_open(self, conversation: Conversation) -> None:
        session_id = conversation.session_id
        conversation.delete("the conversation was deleted")
        await conversation.activity.quiet()
        was_stored = conversation.is_stored
        await conversation.close()  # also if it isn't stored: nobody shall store it now
        if was_stored:
            try:
                await conversation.profile.store.delete(session_id)
            except Exception:
                # It is still there, and so are those who stand in it.
                await conversation.reopen()
                raise
        self._open.pop(session_id, None)

    async def close_unused(self) -> None:
        """Those unused for long, and the longest unused of too many."""
        now = anyio.current_time()
        unused = sorted(
            (each for each in self._open.values() if each.is_unused), key=lambda each: each.used_at
        )
        surplus = len(unused) - _UNUSED_MAX
        for place, conversation in enumerate(unused):
            if place < surplus or now - conversation.used_at > _UNUSED_SECONDS_MAX:
                await self._close(conversation)

    async def close_all(self) -> None:
        """Side by side: one that is slow keeps nobody else waiting."""
        async with anyio.create_task_group() as tasks:
            for conversation in self:
                tasks.start_soon(conversation.close)
        self._open.clear()

    async def _close(self, conversation: Conversation) -> None:
        async with self.alone_with(conversation.session_id):
            if conversation.is_unused:
                # First out of sight: who wants it now waits for the lock, and opens it anew.
                self._open.pop(conversation.session_id, None)
                await conversation.close()

    async def _put_away_stale(self, session_id: str) -> None:
        """Another server has written to it: whoever comes in now sees what it wrote."""
        conversation = self._open.get(session_id)
        if conversation is not None and conversation.is_stale:
            await conversation.activity.quiet()
            del self._open[session_id]
            await conversation.close()

    async def _load(self, session_id: str, user: str) -> Conversation:
        await self.make_room()
        found = await self.find(session_id, user)
        if found is None:
            profile = self._reserved[session_id].profile
            return self._keep(self._unstored(session_id, user, profile))
        opened = await found.profile.store.open(session_id)
        conversation = Conversation(
            session_id,
            user=user,
            household=self._house,
            profile=found.profile,
            opened=opened,
        )
        try:
            await conversation.pick_up()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await conversation.close()
            raise
        return self._keep(conversation)

    async def make_room(self) -> None:
        """Before one more is opened: each takes a file descriptor."""
        if len(self._open) > _UNUSED_MAX * 3 // 2:
            await self.close_unused()

    def _unstored(self, session_id: str, user: str, profile: HistoryProfile) -> Conversation:
        return Conversation(session_id, user=user, household=self._house, profile=profile)

    def _keep(self, conversation: Conversation) -> Conversation:
        self._open[conversation.session_id] = conversation
        return conversation

    def _is_reserved(self, session_id: str, user: str) -> bool:
        reservation = self._reserved.get(session_id)
        return reservation is not None and reservation.user == user

    def _reserve(self, session_id: str, reservation: _Reservation) -> None:
        self._reserved[session_id] = reservation
        for oldest in tuple(self._reserved)[: max(0, len(self._reserved) - _RESERVED_MAX)]:
            if oldest in self._open:
                self._reserved.move_to_end(oldest)
            else:
                del self._reserved[oldest]

    @asynccontextmanager
    async def alone_with(self, session_id: str) -> AsyncIterator[None]:
        """Whatever must not meet its opening, closing or deleting."""
        lock = self._locks.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            statistics = lock.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._locks.pop(session_id, None)


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
