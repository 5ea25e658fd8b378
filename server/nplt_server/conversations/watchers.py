"""Sends the changed rows of each user's conversations to the sessions that watch them.

A session that watches gets SESSION_CHANGED for every conversation of its user, whether it is
attached to one or not. The stores note which rows have changed, and the turn queues when a turn
starts or stops to wait; this module reads the rows and sends them. Changes are collected for a
moment, and each conversation is then sent once, as it is by then: what came last always arrives.

A watcher that reads too slowly, or whose user's changes may have been missed because the shared
store was away, is sent `lagged` and no longer watches. It sends WATCH again.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from time import monotonic
from typing import Final, Protocol, get_args

import anyio

from nplt_protocol.messages import SessionChanged
from nplt_server.conversations.broadcast import BroadcastEvent
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_server.conversations.session_rows import SessionRows
from nplt_storage.changes import Change
from nplt_storage.errors import StorageError
from nplt_storage.rows import ConversationRow

log = logging.getLogger(__name__)

_FIRST_SECONDS: Final = 0.01
"""A change waits this long for others that belong to it."""
_INTERVAL_SECONDS: Final = 0.1
"""Rows that change all the time are sent this often."""
_RETRY_SECONDS: Final = 1.0
_CHANGED_MAX: Final = 10_000
"""If more conversations have changed at once, their watchers read them all again."""
_RANKS: Final[Mapping[str, int]] = {change: rank for rank, change in enumerate(get_args(Change))}


class Watcher(Protocol):
    """A `Session` that watches."""

    @property
    def user(self) -> str: ...

    def send_change(self, event: BroadcastEvent) -> bool:
        """Returns False if the client lags too far behind; the event is not sent then."""
        ...

    def watch_again(self) -> None:
        """The session no longer watches, and may have missed changes."""
        ...


class Watchers:
    def __init__(self, services: Services, session_manager: SessionManager) -> None:
        self.rows = SessionRows(services, session_manager)
        self._services = services
        self._session_manager = session_manager
        self._of_user: dict[str, dict[Watcher, set[str] | None]] = {}
        """The watchers. While one is being sent a page of rows, its value holds the conversations
        that changed meanwhile; otherwise it is None."""
        self._changed: dict[str, tuple[str, Change]] = {}
        """The conversations that have changed, each with its user and the kind of change."""
        self._is_sending = False
        self._sent_at = 0.0
        for changes in services.histories.changes:
            changes.listen(self)

    def __len__(self) -> int:
        return sum(len(watchers) for watchers in self._of_user.values())

    def __contains__(self, watcher: Watcher) -> bool:
        return watcher in self._of_user.get(watcher.user, ())

    @asynccontextmanager
    async def joining(self, watcher: Watcher) -> AsyncIterator[None]:
        """Inside, the watcher is sent the rows as they are now; afterwards it is sent every change
        since the beginning. If the block fails, it does not watch unless it did before."""
        user, was_watching = watcher.user, watcher in self
        try:
            for changes in self._services.histories.changes:
                await changes.watch(user)
            held: set[str] = set()
            self._of_user.setdefault(user, {})[watcher] = held
            yield
        except BaseException:
            if was_watching:
                self._release(watcher)
            else:
                self.leave(watcher)
            raise
        self._release(watcher)

    def _release(self, watcher: Watcher) -> None:
        watchers = self._of_user.get(watcher.user, {})
        held = watchers.get(watcher)
        if held is not None:
            watchers[watcher] = None
            for session_id in held:
                self.row_changed(watcher.user, session_id, "state")

    def leave(self, watcher: Watcher) -> None:
        user = watcher.user
        watchers = self._of_user.get(user, {})
        watchers.pop(watcher, None)
        if not watchers:
            self._of_user.pop(user, None)
            for changes in self._services.histories.changes:
                changes.unwatch(user)

    # Changes

    def row_changed(self, user: str, session_id: str, change: Change) -> None:
        _, before = self._changed.get(session_id, (user, change))
        self._changed[session_id] = user, min(before, change, key=_RANKS.__getitem__)
        if len(self._changed) > _CHANGED_MAX:
            self._changed.clear()
            for each in tuple(self._of_user):
                self.changes_missed(each)
        elif not self._is_sending:
            self._is_sending = True
            self._services.spawn(self._send_all)

    def changes_missed(self, user: str) -> None:
        for watcher in tuple(self._of_user.get(user, ())):
            self._drop(watcher)

    def _drop(self, watcher: Watcher) -> None:
        self.leave(watcher)
        watcher.watch_again()

    async def _send_all(self) -> None:
        try:
            while self._changed:
                pause = self._sent_at + _INTERVAL_SECONDS - monotonic()
                await anyio.sleep(max(pause, _FIRST_SECONDS))
                self._sent_at = monotonic()
                changed, self._changed = self._changed, {}
                try:
                    await self._send(changed)
                except StorageError as error:
                    log.info("changed rows can't be read now: %s", error)
                    self._changed = changed | self._changed
                    await anyio.sleep(_RETRY_SECONDS)
                except Exception:
                    log.exception("changed rows can't be sent; their watchers read them again")
                    for user in {user for user, _ in changed.values()}:
                        self.changes_missed(user)
        finally:
            self._is_sending = False

    async def _send(self, changed: Mapping[str, tuple[str, Change]]) -> None:
        changed = {key: each for key, each in changed.items() if each[0] in self._of_user}
        stored: dict[str, ConversationRow] = {}
        for session_id in changed:
            if self._row_here(session_id) is None:
                found = await self._services.histories.find(session_id)
                if found is not None:
                    stored[session_id] = found.row
        seen = await self._services.histories.seen([*changed])
        # From here on nothing waits, so rows, states and marks belong together.
        for session_id, (user, change) in changed.items():
            row = self._row_here(session_id) or stored.get(session_id)
            if row is None or row.user != user:
                event = SessionChanged(session_id=session_id, what="deleted", row=None)
            else:
                shown = self.rows.row(row, seen.get(session_id))
                what = "state" if change == "deleted" else change  # it was restored since
                event = SessionChanged(session_id=session_id, what=what, row=shown)
            self._deliver(user, event)

    def _row_here(self, session_id: str) -> ConversationRow | None:
        """The row of a conversation that is open here, which is the newest, unless another server
        may have taken the conversation over without this one knowing."""
        conversation = self._session_manager.opened(session_id)
        if conversation is None or conversation.deleted:
            return None
        record = conversation.record
        is_shared = record.lease is not None
        return record.row if record.is_stored and not record.is_stale and not is_shared else None

    def _deliver(self, user: str, event: SessionChanged) -> None:
        shared = BroadcastEvent(event, self._services.limits.message_bytes_max)
        for watcher, held in tuple(self._of_user.get(user, {}).items()):
            if held is not None:
                held.add(event.session_id)
            elif not watcher.send_change(shared):
                self._drop(watcher)
