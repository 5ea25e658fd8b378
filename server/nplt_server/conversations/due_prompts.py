"""Runs the prompts for later when their time has come.

`DueTimes` says when. At the start, the stores list the conversations that have such prompts. A
store that several servers share is asked again and again, because other servers accept prompts too;
whichever server opens the conversation first runs them. So are files while their index is being
made again. A conversation that can't be opened now is tried again. In a restored back-up, the
prompts are held first, because the original may run them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import anyio
from msgspec.structs import replace

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_server.conversations.due_times import DueConversation, DueTimes
from nplt_server.conversations.services import Services
from nplt_server.conversations.session_manager import SessionManager
from nplt_storage.errors import ConversationHeld, StorageError
from nplt_storage.rows import RowQuery

log = logging.getLogger(__name__)

_READ_SECONDS: Final = 5.0
_RETRY_SECONDS: Final = 5.0
_ROWS_AT_ONCE: Final = 200
_OPENED_AT_ONCE: Final = 8
"""The number of conversations that are opened at the same time."""


class DuePrompts:
    def __init__(
        self,
        services: Services,
        session_manager: SessionManager,
        users: Sequence[str],
        *,
        copy_mark: Path,
    ) -> None:
        """`copy_mark`: a file that is there if the data directory was restored from a back-up."""
        self._services = services
        self._session_manager = session_manager
        self._users = users
        self._copy_mark = anyio.Path(copy_mark)
        self._slots = anyio.Semaphore(_OPENED_AT_ONCE)

    @property
    def _times(self) -> DueTimes:
        return self._services.due_times

    async def run(self) -> None:
        self._times.is_restoring = await self._copy_mark.exists()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._read)
            while True:
                for due in await self._times.next():
                    await self._slots.acquire()
                    tasks.start_soon(self._run, due)

    async def _read(self) -> None:
        is_shared = self._services.histories.shared is not None
        while True:
            is_complete = False
            try:
                is_complete = all([await self._read_rows(user) for user in self._users])
                if is_complete and self._times.is_restoring:
                    await self._copy_mark.unlink()
                    self._times.is_restoring = False
            except StorageError as error:
                log.info("prompts for later can't be listed now: %s", error)
            except Exception:
                log.exception("prompts for later can't be listed; trying again")
            if is_complete and not is_shared:
                return  # from here on, this server itself notes them all
            await anyio.sleep(_READ_SECONDS)

    async def _read_rows(self, user: str) -> bool:
        """Whether the store knows all of its conversations."""
        query, is_complete = RowQuery(due=True, limit=_ROWS_AT_ONCE), True
        while True:
            page = await self._services.histories.list(user, query)
            is_complete = is_complete and not page.incomplete
            for row in page.rows:
                here = self._session_manager.opened(row.session_id)
                if self._times.is_restoring:
                    conversation = await self._session_manager.get(row.session_id, user)
                    await conversation.change_later("held")
                else:
                    self._times.note(row if here is None or here.row is None else here.row)
            if page.next_cursor is None:
                return is_complete
            query = replace(query, cursor=page.next_cursor)

    async def _run(self, due: DueConversation) -> None:
        try:
            await self._begin(due)
        except Exception as error:
            is_gone = isinstance(error, RequestError) and error.code is ErrorCode.NOT_FOUND
            if is_gone or self._services.draining:
                return
            if not isinstance(error, RequestError | StorageError):
                log.exception("a prompt for later of %s can't be run", due.session_id)
            else:
                log.info("a prompt for later of %s can't be run now: %s", due.session_id, error)
            if isinstance(error, ConversationHeld) and self._times.is_late(due.due_at):
                # Its owner does not run it: that server is of an older version, or hangs.
                with suppress(StorageError):
                    await self._session_manager.ask_for(error, due.user)
            self._services.spawn(partial(self._note_again, due))
        finally:
            self._slots.release()

    async def _begin(self, due: DueConversation) -> None:
        found = await self._session_manager.find(due.session_id, due.user)
        if found is None or found.row.due_at is None:
            return  # cancelled, or another server has run it
        conversation = await self._session_manager.get(due.session_id, due.user)
        await conversation.begin_due(due.due_at)

    async def _note_again(self, due: DueConversation) -> None:
        await anyio.sleep(_RETRY_SECONDS)
        try:
            found = await self._session_manager.find(due.session_id, due.user)
        except RequestError:
            return  # it was deleted
        except StorageError:
            self._services.spawn(partial(self._note_again, due))
            return
        if found is not None:
            self._times.note(found.row)
