"""A conversation that comes in as one document: all of it, or nothing.

It keeps its id if nobody here has it, and belongs to whoever brought it. What
can't be read is told in a sentence, and leaves nothing behind. One at a time: a
document of an older program is read in one go, and memory is everybody's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import Imported
from nplt_server.conversations.household import Household
from nplt_server.conversations.registry import Registry
from nplt_storage.care.importing import Imported as TakenIn
from nplt_storage.care.importing import import_source, opened
from nplt_storage.care.sources import InOneGo, NotAConversation
from nplt_storage.errors import BadEntry, ConversationExists

OVER_THE_WIRE: Final = InOneGo(bytes_max=4 * 1024 * 1024, values_max=400_000, messages_max=20_000)
"""What is larger is for the operator's command, which has a process of its own."""


async def import_document(
    household: Household, registry: Registry, path: Path, *, user: str, field: str
) -> Imported:
    """`field`: what of the request is to blame."""
    store = household.library.default.store
    try:
        async with household.importing:
            done = await _take_in(household, registry, path, user)
    except (NotAConversation, BadEntry) as error:
        raise RequestError(
            ErrorCode.MALFORMED, f"that is no conversation: {error}", field=field
        ) from None
    except ConversationExists:
        raise RequestError(
            ErrorCode.CONFLICT, "the same conversation is just being stored", retry_after=1.0
        ) from None
    row = await store.row(done.session_id)
    return Imported(session_id=done.session_id, messages=row.message_count if row else 0)


async def _take_in(household: Household, registry: Registry, path: Path, user: str) -> TakenIn:
    async with opened(path, OVER_THE_WIRE) as source:
        return await import_source(
            household.library.default.store,
            source,
            files=household.files.directory,
            user=user,
            new_id=household.new_session_id,
            is_taken_elsewhere=lambda session_id: registry.is_taken(session_id, user),
        )
