"""Holds the open conversations: opens and closes them, and checks who may enter.

A conversation is opened when a request needs it and closed when it has been unused for a while,
or when too many are open. A fresh id is reserved for its user in memory only: the conversation
is stored with its first message, from whichever connection that comes. A request for another
user's conversation gets the same reply as one for a conversation that does not exist.

An id may also be chosen by a client (`make`). Where several users share a server, a chosen id
is stored as `<chosen>-<sixteen hex digits>`; computing the digits needs the server's key
(`Histories.id_key`). Finding needs no key: the owner's rows are searched.

    reserved ──first message──▶ open ◀──needed / unused──▶ closed
                                  └──────deleted──────▶ trash

Opening, closing, deleting and copying one conversation never overlap: a lock per id.

In a cluster a conversation leaves this server in two ways: `check_leases` gives it to a server that
has asked for it (`_give_away`), and `hand_over` releases it when this server shuts down.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from itertools import islice
from time import monotonic
from typing import NamedTuple

import anyio
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.messages import Repaired
from nplt_server.conversations.broadcast import Broadcast
from nplt_server.conversations.conversation import Conversation, FreshConversation
from nplt_server.conversations.services import Services
from nplt_server.errors import no_such_conversation
from nplt_server.histories import FoundConversation, HistoryProfile
from nplt_storage.errors import (
    ConversationDamaged,
    ConversationExists,
    ConversationHeld,
    ConversationNotFound,
    StorageError,
    StorageUnavailable,
)
from nplt_storage.files.format import LOCAL_USER
from nplt_storage.ids import is_session_id, new_session_id
from nplt_storage.rows import ConversationRow, RowQuery
from nplt_storage.store import Repairable, Shared

log = logging.getLogger(__name__)

_MADE_HERE = re.compile(r"[0-9a-f]{32}")
"""Ids that servers and the page make at random. One that is in the trash is not used again, because
that conversation could not be restored then. People may use an id again that they chose."""
_IDS_TRIED_MAX = 16
_CREATIONS_MAX = 3
_UNUSED_MAX = 128
_RESERVED_MAX = 10_000
_CANDIDATES_MAX = 20
_NEWEST_DELETED = 50
"""How many deleted conversations are searched for an id before all are read."""
_ROWS_LOOKED_AT = 50

LAST = "@last"
"""The name by which a request names the conversation that was changed last."""


class _Reservation(NamedTuple):
    user: str
    profile: HistoryProfile
    model: str | None = None
    """Chosen there before the first message."""


class SessionManager:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._open: dict[str, Conversation | FreshConversation] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._reserved: OrderedDict[str, _Reservation] = OrderedDict()
        self._handed_over: set[str] = set()

    def __iter__(self) -> Iterator[Conversation]:
        """Iterates over the open conversations that have been used."""
        return iter([each for each in self._open.values() if isinstance(each, Conversation)])

    def broadcasts(self) -> list[Broadcast]:
        """The broadcasts of all open conversations, fresh ones too."""
        return [each.broadcast for each in self._open.values()]

    def opened(self, session_id: str) -> Conversation | None:
        """The conversation if it is open and has been used."""
        conversation = self._open.get(session_id)
        return conversation if isinstance(conversation, Conversation) else None

    # Getting in

    def fresh(self, user: str, history: str | None = None) -> FreshConversation:
        """A fresh conversation under a reserved id."""
        store = self._services.histories.profile(history).store
        session_id = self._services.new_session_id()
        if isinstance(store, Shared):
            for _ in range(_IDS_TRIED_MAX):
                if store.is_usable(session_id):
                    break
                session_id = self._services.new_session_id()
        return self._reserve(session_id, user, history)

    async def create(self, user: str, history: str | None = None) -> Conversation:
        """A new conversation that is stored. If a part of the store is away, others are tried."""
        tries_left = _CREATIONS_MAX
        while True:
            conversation = self.new(user, history)
            try:
                await conversation.record.open()
                return conversation
            except StorageUnavailable:
                self.left(conversation.session_id)
                self._reserved.pop(conversation.session_id, None)
                tries_left -= 1
                if not tries_left:
                    raise

    def new(self, user: str, history: str | None = None) -> Conversation:
        """A new conversation under a reserved id, not stored yet."""
        return self.begin(self.fresh(user, history))

    def begin(self, fresh: FreshConversation) -> Conversation:
        """Turns a fresh conversation into a real one, at its first use. Clients that use it at
        the same time get the same one."""
        existing = self.opened(fresh.session_id)
        if existing is not None:
            return existing
        conversation = self._open[fresh.session_id] = Conversation(fresh)
        return conversation

    async def get(self, session_id: str, user: str) -> Conversation:
        """The conversation with that id, opened if necessary."""
        conversation = self.opened(session_id)
        if session_id in self._handed_over:
            why = "the server is shutting down; try again later"
            raise RequestError(ErrorCode.SHUTTING_DOWN, why)
        if conversation is None or conversation.record.is_stale:
            async with self.alone_with(session_id):
                conversation = self.opened(session_id)
                if conversation is not None and conversation.record.is_stale:
                    # Another server has written to it, so it is read again.
                    await conversation.activity.quiet()
                    del self._open[session_id]
                    await conversation.record.close()
                    conversation = None
                conversation = conversation or await self._load(session_id, user)
        if conversation.deleted or conversation.user != user:
            raise no_such_conversation(session_id)
        conversation.touch()
        return conversation

    async def find(self, session_id: str, user: str) -> FoundConversation | None:
        """Finds a conversation's history and row; `None` while its id is only reserved."""
        conversation, found = self.opened(session_id), None
        if conversation is not None and conversation.row is not None:
            found = FoundConversation(profile=conversation.record.profile, row=conversation.row)
        elif is_session_id(session_id):
            found = await self._services.histories.find(session_id)
        if found is None and self._is_reserved(session_id, user):
            return None
        if found is None or found.row.user != user:
            raise no_such_conversation(session_id)
        return found

    async def resolve(self, wanted: str, user: str, *, by_prefix: bool = False) -> str:
        """Like `lookup`, but raises an error if there is no such conversation."""
        session_id = await self.lookup(wanted, user, by_prefix=by_prefix)
        if session_id is not None:
            return session_id
        if by_prefix or is_session_id(wanted):
            raise no_such_conversation(wanted)
        raise RequestError(
            ErrorCode.MALFORMED,
            "`session_id` is not a session id, and no conversation has that name.",
            field="session_id",
        )

    async def lookup(self, wanted: str, user: str, *, by_prefix: bool = False) -> str | None:
        """Finds a conversation by its exact id, else by its exact name, else, with `by_prefix`, by
        the beginning of its id; `@last` is the one that was changed last."""
        if is_session_id(wanted) and (own := await self._own(wanted, user)) is not None:
            return own
        queries = [RowQuery(name_is=wanted)]
        if by_prefix:
            queries.append(RowQuery(id_prefix=wanted))
        for query in queries if wanted else ():
            if found_id := _only(wanted, await self._services.histories.all_rows(user, query)):
                return found_id
        if wanted == LAST:
            return await self._last(user)
        return None

    async def make(self, wanted: str, user: str, history: str | None = None) -> Conversation:
        """A new conversation under an id that the user chose, not stored yet. The reply does not
        reveal whether another user has a conversation with that id. Call it only after `lookup`
        returned `None`."""
        if _MADE_HERE.fullmatch(wanted) and await self._is_in_trash(wanted, user):
            raise RequestError(
                ErrorCode.NOT_FOUND,
                f"conversation {wanted} is in the trash; nplt undelete restores it",
                field="session_id",
            )
        session_id = self._id_to_store(wanted, user)
        async with self.alone_with(session_id):
            if await self.is_taken(session_id, user):
                raise no_such_conversation(wanted)
            return self.begin(self._reserve(session_id, user, history))

    async def _is_in_trash(self, session_id: str, user: str) -> bool:
        histories = self._services.histories
        is_there = await histories.is_trash_of_another(session_id, "")
        return is_there and not await histories.is_trash_of_another(session_id, user)

    async def id_for_import(self, named: str, user: str) -> str:
        """The id under which a document that names an id is imported. The named id counts as
        chosen by the importing user, so it can't be another user's stored id."""
        if user == LOCAL_USER:
            return named
        return await self._own(named, user) or self._id_to_store(named, user)

    async def _own(self, wanted: str, user: str) -> str | None:
        """The stored id of the user's conversation that has this id, or was created with it."""
        if user == LOCAL_USER:
            return wanted if await self._is_own(wanted, user) else None
        for session_id in (wanted, _unkeyed_id(wanted, user)):
            if await self._is_own(session_id, user):
                return session_id
        return await self._chosen(_stem(wanted), user)

    async def _chosen(self, stem: str, user: str) -> str | None:
        """Finds the stored id for a chosen one. The key of an id created before a restart may be
        lost; then the user's own rows are searched."""
        session_id = self._stored_id(stem, user)
        if await self._is_own(session_id, user):
            return session_id
        histories, query = self._services.histories, RowQuery(id_prefix=f"{stem}-")
        if (await histories.list(user, replace(query, limit=1))).incomplete:
            raise RequestError(
                ErrorCode.UNAVAILABLE,
                "the list of conversations is still being made; try again in a moment",
                retry_after=1.0,
            )
        rows = await histories.all_rows(user, query)
        return _only(stem, [row for row in rows if _stem_of(row.session_id) == stem])

    async def _is_own(self, session_id: str, user: str) -> bool:
        conversation = self._open.get(session_id)
        if conversation is not None and conversation.user == user:
            return True
        if self._is_reserved(session_id, user):
            return True
        found = await self._services.histories.find(session_id)
        return found is not None and found.row.user == user

    def _id_to_store(self, wanted: str, user: str) -> str:
        return wanted if user == LOCAL_USER else self._stored_id(_stem(wanted), user)

    def _stored_id(self, stem: str, user: str) -> str:
        key = self._services.histories.id_key
        digest = hmac.new(key, f"{user}\n{stem}".encode(), hashlib.sha256).hexdigest()
        return f"{stem}-{digest[:_DIGITS]}"

    async def with_file(self, file_id: str, user: str) -> str | None:
        """The id of one of this user's conversations that has the file. A row is looked up in any
        case, so that the time taken does not reveal another user's file."""
        services = self._services
        found_in = None
        for holder in await services.files.sessions_with(file_id) or [new_session_id()]:
            found = await services.histories.find(holder)
            if found is not None and found.row.user == user:
                found_in = holder
        return found_in

    async def _last(self, user: str) -> str:
        """The id of the conversation that was changed last. Lists are newest first, except that
        pinned conversations come before all others, so they are read past the pinned ones."""
        query = RowQuery(limit=_ROWS_LOOKED_AT, archived=False)
        page = await self._services.histories.list(user, query)
        rows = [*page.rows]
        while page.next_cursor is not None and page.rows[-1].pinned:
            query = replace(query, cursor=page.next_cursor)
            page = await self._services.histories.list(user, query)
            rows += page.rows
        if not rows:
            raise RequestError(
                ErrorCode.NOT_FOUND,
                "there is no conversation yet; the first prompt makes one",
                field="session_id",
            )
        return max(rows, key=lambda row: row.updated_at).session_id

    # Looking around

    def states(self, user: str) -> Counter[str]:
        """How many open conversations of the user are in each state."""
        mine = (each for each in self._open.values() if each.user == user)
        return Counter(
            each.queue.state if isinstance(each, Conversation) else "idle" for each in mine
        )

    def turn_holder(self, turn_id: str, user: str) -> Conversation | None:
        mine = (each for each in self if each.user == user)
        return next((each for each in mine if each.queue.holds(turn_id)), None)

    async def later_holder(self, turn_id: str, user: str) -> Conversation | None:
        """The conversation of the user in which this prompt for later waits."""
        for each in self:
            if each.user == user and any(later.turn_id == turn_id for later in each.later):
                return each
        for row in await self._services.histories.all_rows(user, RowQuery(due=True)):
            if any(later.turn_id == turn_id for later in row.later):
                return await self.get(row.session_id, user)
        return None

    # Going out

    def left(self, session_id: str) -> None:
        """Called when a subscriber has left. A conversation without messages is forgotten once it
        has no subscriber; its id stays reserved."""
        conversation = self._open.get(session_id)
        if isinstance(conversation, Conversation):
            record = conversation.record
            if not conversation.is_unused or record.is_stored:
                return
            if session_id in self._reserved:
                self._reserved[session_id] = _Reservation(
                    conversation.user, record.profile, record.model
                )
            record.abandon()  # a request that already holds it must not store it now
        elif conversation is None or conversation.broadcast:
            return
        del self._open[session_id]

    async def delete(self, session_id: str, user: str) -> None:
        """Moves a conversation to the trash, even a damaged one. Attached clients get an event and
        a fresh conversation."""
        async with self.alone_with(session_id):
            found = await self.find(session_id, user)
            broadcast = self._open[session_id].broadcast if session_id in self._open else None
            conversation = self.opened(session_id)
            store = None if found is None else found.profile.store
            if conversation is not None:
                conversation.delete("the conversation was deleted")
                await conversation.activity.quiet()
                record = conversation.record
                store = record.profile.store if record.is_stored else None
                await record.close()  # even if it isn't stored, so that no request stores it now
            try:
                if store is not None:
                    await store.delete(session_id)
            except Exception:
                if conversation is not None:  # it still exists, and its clients are still in it
                    await conversation.record.reopen()
                    conversation.deleted = False
                raise
            self._open.pop(session_id, None)
            self._reserved.pop(session_id, None)
        if broadcast is not None:
            broadcast.announce("deleted")

    async def repair(self, session_id: str, user: str) -> Repaired:
        """Repairs the record. Attached clients are sent `lagged`, because they must read the
        record again."""
        async with self.alone_with(session_id):
            found = await self.find(session_id, user)
            if found is None:
                raise no_such_conversation(session_id)
            if not isinstance(found.profile.store, Repairable):
                raise RequestError(
                    ErrorCode.UNSUPPORTED,
                    "only conversations kept in files can be repaired by the server; for one in "
                    f"Redis there is nplt-server repair --data-dir redis://… {session_id}",
                )
            conversation = self.opened(session_id)
            if conversation is not None:
                await conversation.queue.settle()
                conversation.check_at_rest()
                conversation.announce("lagged", {"head_seq": conversation.history.head_seq})
                await conversation.activity.quiet()
                self._open.pop(session_id, None)
                await conversation.record.close()
            try:
                done = await found.profile.store.repair(session_id)
            except ConversationDamaged as error:
                reason = f"{session_id!r} can't be repaired: {error.reason}"
                raise RequestError(ErrorCode.READ_ONLY, reason) from None
        return Repaired(
            session_id=session_id,
            kept=done.kept,
            lost=done.lost,
            says=done.says,
            original=done.original,
        )

    async def find_in_trash(self, wanted: str, user: str) -> str:
        """Finds a deleted conversation by exact id, else by exact name, else by the beginning of
        its id."""
        histories = self._services.histories
        newest = await histories.trash(user, limit=_NEWEST_DELETED)
        if any(each.row.session_id == wanted for each in newest):
            return wanted
        rows = [each.row for each in await histories.trash(user)]
        for found in (
            [row for row in rows if row.session_id == wanted],
            [row for row in rows if row.name == wanted],
            [row for row in rows if wanted and row.session_id.startswith(wanted)],
        ):
            if session_id := _only(wanted, found):
                return session_id
        raise RequestError(
            ErrorCode.NOT_FOUND,
            f"there is no deleted conversation {wanted!r}; "
            "nplt sessions --trash lists those that can be brought back",
            field="session_id",
        )

    async def undelete(self, session_id: str, user: str) -> None:
        """Restores a conversation from the trash of whichever history has it."""
        if not is_session_id(session_id):
            raise no_such_conversation(session_id)
        async with self.alone_with(session_id):
            if session_id in self._open or session_id in self._reserved:
                raise no_such_conversation(session_id)
            stem = None if user == LOCAL_USER else _stem_of(session_id)
            if stem is not None and await self._chosen(stem, user) is not None:
                raise no_such_conversation(session_id)  # another conversation uses its id now
            try:
                await self._services.histories.undelete(session_id, user)
            except (ConversationNotFound, ConversationExists):
                # The reply must not reveal another user's conversation with the same id.
                raise no_such_conversation(session_id) from None
            found = await self._services.histories.find(session_id)
            if found is not None:
                self._services.due_times.note(found.row)

    async def is_taken(self, session_id: str, user: str) -> bool:
        """Whether the id is in use: in any history, reserved, or in the trash of another user, who
        may restore it."""
        histories = self._services.histories
        is_here = session_id in self._open or session_id in self._reserved
        if is_here or await histories.find(session_id) is not None:
            return True
        return await histories.is_trash_of_another(session_id, user)

    async def close_unused(self) -> None:
        """Closes conversations that have been unused for long, and if too many are unused, those
        unused longest. A conversation is in use while it has clients, a turn (running, waiting or
        asking for an approval) or a write in progress."""
        now = monotonic()
        seconds_max = self._services.limits.idle_conversation_seconds_max
        unused = sorted((each for each in self if each.is_unused), key=lambda each: each.used_at)
        surplus = len(unused) - _UNUSED_MAX
        for place, conversation in enumerate(unused):
            if place >= surplus and now - conversation.used_at <= seconds_max:
                continue
            async with self.alone_with(conversation.session_id):
                if conversation.is_unused:
                    # Removed first: a request that comes now waits for the lock and opens it again.
                    self._open.pop(conversation.session_id, None)
                    if conversation.record.is_stored:  # its row says whose it is
                        self._reserved.pop(conversation.session_id, None)
                    await conversation.record.close()

    async def check_leases(self) -> None:
        """Checks the lease of each open conversation, every second. A lapsed lease is reclaimed; if
        that fails, the attached clients must attach again. A conversation that another server has
        asked for is given to it."""
        for conversation in self:
            if conversation.record.is_stale:
                continue
            lease = conversation.record.lease
            if lease is None:
                continue
            within = lease.wanted_within
            if within is not None and not conversation.is_leaving:
                conversation.queue.block()
                self._services.spawn(partial(self._give_away, conversation, within))
            if lease.is_lapsed:
                try:
                    await conversation.record.check_owned()
                except StorageUnavailable:
                    return  # the store is unavailable to the others too
                except StorageError as error:
                    log.info("%s: %s", conversation.session_id, error)

    async def hand_over(self, conversation: Conversation) -> None:
        """Gives the conversation to other servers while this one shuts down.
        It is not opened here again."""
        conversation.interrupt("the server is shutting down")  # stops jobs and summaries too
        await conversation.queue.note_shutdown()
        async with self.alone_with(conversation.session_id):
            self._handed_over.add(conversation.session_id)
            self._open.pop(conversation.session_id, None)
            await conversation.record.close()

    async def _give_away(self, conversation: Conversation, within: float) -> None:
        """Gives the conversation to the server that has asked for it, when the running turn has
        ended, or after `within` seconds at the latest. Clients find it there."""
        session_id, record = conversation.session_id, conversation.record
        why = "another server takes the conversation over"
        log.info("%s: another server has asked for it", session_id)
        conversation.queue.suspend(why)
        with anyio.move_on_after(within) as patience:
            await conversation.activity.quiet()
        is_running = patience.cancelled_caught and conversation.queue.running is not None
        if is_running and (record.lease is None or record.lease.wanted_within is None):
            conversation.queue.unblock()  # the other server no longer wants it
            return
        async with self.alone_with(session_id):
            is_ours = (
                self._open.get(session_id) is conversation and not conversation.record.is_stale
            )
            if not is_ours or self._services.draining:
                return
            conversation.interrupt(why, ErrorCode.UNAVAILABLE)
            await conversation.activity.quiet()
            record.mark_stale()
            try:
                await conversation.activity.quiet()  # requests accepted before
                await conversation.queue.note_shutdown()
            except StorageError as error:
                log.warning("%s: what waits could not be noted: %s", session_id, error)
            del self._open[session_id]
            await conversation.record.close()

    async def ask_for(self, held: ConversationHeld, user: str) -> None:
        """Asks a conversation's owner, which can't be reached directly, to hand it over."""
        found = await self.find(held.session_id, user)
        if found is not None and isinstance(found.profile.store, Shared):
            await found.profile.store.ask_for(held)

    async def close_all(self) -> None:
        """Closes all conversations at the same time, so that a slow one does not delay the
        others."""
        async with anyio.create_task_group() as tasks:
            for conversation in self:
                tasks.start_soon(conversation.record.close)
        self._open.clear()

    async def _load(self, session_id: str, user: str) -> Conversation:
        await self.make_room()
        found = await self.find(session_id, user)
        if found is None:
            return self.begin(self._open_fresh(session_id, self._reserved[session_id]))
        with found.profile.explained():
            opened = await found.profile.store.open(session_id)
        fresh = FreshConversation(session_id, found.profile, self._services, user=user)
        conversation = Conversation(fresh, opened)
        try:
            await conversation.queue.resume_unfinished()
        except BaseException:
            with anyio.CancelScope(shield=True):
                await conversation.record.close()
            raise
        self._open[session_id] = conversation
        return conversation

    async def make_room(self) -> None:
        """Closes unused conversations before one more is opened: each takes a file descriptor."""
        if len(self._open) > _UNUSED_MAX * 3 // 2:
            await self.close_unused()

    def _open_fresh(self, session_id: str, reserved: _Reservation) -> FreshConversation:
        existing = self._open.get(session_id)
        if isinstance(existing, FreshConversation):
            return existing
        fresh = self._open[session_id] = FreshConversation(
            session_id,
            reserved.profile,
            self._services,
            user=reserved.user,
            chosen_model=reserved.model,
        )
        return fresh

    def _is_reserved(self, session_id: str, user: str) -> bool:
        reservation = self._reserved.get(session_id)
        return reservation is not None and reservation.user == user

    def _reserve(self, session_id: str, user: str, history: str | None) -> FreshConversation:
        reservation = _Reservation(user, self._services.histories.profile(history))
        self._reserved[session_id] = reservation
        for oldest in tuple(islice(self._reserved, max(0, len(self._reserved) - _RESERVED_MAX))):
            if oldest in self._open:
                self._reserved.move_to_end(oldest)
            else:
                del self._reserved[oldest]
        return self._open_fresh(session_id, reservation)

    @asynccontextmanager
    async def alone_with(self, session_id: str) -> AsyncIterator[None]:
        """Holds the lock of one conversation: no other task opens, closes or deletes it."""
        lock = self._locks.setdefault(session_id, anyio.Lock())
        try:
            async with lock:
                yield
        finally:
            statistics = lock.statistics()
            if not statistics.locked and not statistics.tasks_waiting:
                self._locks.pop(session_id, None)


_DIGITS = 16
_STEM_CHARACTERS_MAX = 47
_STORED = re.compile(rf"(.+)-[0-9a-f]{{{_DIGITS}}}")


def _stem(wanted: str) -> str:
    """Returns how the stored id for a chosen id begins. A long id is shortened to fit."""
    if len(wanted) <= _STEM_CHARACTERS_MAX:
        return wanted
    digest = hashlib.sha256(wanted.encode()).hexdigest()[:_DIGITS]
    return f"{wanted[: _STEM_CHARACTERS_MAX - _DIGITS - 1]}-{digest}"


def _stem_of(session_id: str) -> str | None:
    stored = _STORED.fullmatch(session_id)
    return stored[1] if stored else None


def _unkeyed_id(wanted: str, user: str) -> str:
    """The stored id of earlier versions, which other users could compute."""
    digest = hashlib.sha256(f"{user}\n{wanted}".encode()).hexdigest()
    return f"{wanted[:51]}-{digest[:12]}"


def _only(wanted: str, rows: Sequence[ConversationRow]) -> str | None:
    """The id of the one row, if there is one; an error if there are several."""
    if len(rows) <= 1:
        return rows[0].session_id if rows else None
    raise RequestError(
        ErrorCode.AMBIGUOUS,
        f"{wanted!r} could mean any of {len(rows)} conversations; give an id",
        field="session_id",
        details={
            "candidates": [
                {"session_id": row.session_id, "name": row.name} for row in rows[:_CANDIDATES_MAX]
            ]
        },
    )
