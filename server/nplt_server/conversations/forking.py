"""A conversation that begins as another one did: its entries up to some point, copied.

From then on the two know nothing of each other; files come along. It is there in
one step, name and all, and nobody moves into it by that. Deleting the first waits for
that: its files go with it.
"""

from __future__ import annotations

from typing import Final

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import SessionCreated
from nplt_server.conversations.household import Household
from nplt_server.conversations.library import Found
from nplt_server.conversations.registry import Registry
from nplt_storage.copying import NewFork
from nplt_storage.copying import fork as copy_beginning
from nplt_storage.facts.entries import RenamedEntry

_NAME_CHARACTERS_MAX: Final = 200
_MARK: Final = " (fork)"


async def fork(
    household: Household,
    registry: Registry,
    *,
    session_id: str,
    user: str,
    at_seq: int | None,
    name: str | None,
) -> SessionCreated:
    async with registry.alone_with(session_id):
        found = await registry.find(session_id, user)
        if found is None or not found.row.head_seq:
            raise RequestError(
                ErrorCode.NOT_FOUND, "nothing was said here yet to begin with", field="session_id"
            )
        return await _fork(household, found, at_seq=at_seq, name=name)


async def _fork(
    household: Household, found: Found, *, at_seq: int | None, name: str | None
) -> SessionCreated:
    row = found.row
    at_seq = row.head_seq if at_seq is None else at_seq
    if not row.first_seq <= at_seq <= row.head_seq:
        raise RequestError(
            ErrorCode.NOT_FOUND, f"there is no entry {at_seq} to fork at", field="at_seq"
        )
    called = name or row.name[: _NAME_CHARACTERS_MAX - len(_MARK)] + _MARK
    new = NewFork(
        session_id=household.new_session_id(),
        user=row.user,
        created_at=household.clock(),
        entry_id=household.new_entry_id(),
        name=RenamedEntry(id=household.new_entry_id(), name=called),
    )
    await copy_beginning(
        found.profile.store,
        row.session_id,
        at_seq=at_seq,
        new=new,
        files=household.files.directory,
    )
    return SessionCreated(session_id=new.session_id, name=called)
