"""A conversation that comes in as one document: all of it, or nothing.

It keeps its id if nobody here has it, and belongs to whoever brought it. What
can't be read is told in a sentence, and leaves nothing behind.
"""

from __future__ import annotations

from pathlib import Path

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import Imported
from nplt_server.conversations.household import Household
from nplt_server.conversations.registry import Registry
from nplt_storage.care.importing import import_file
from nplt_storage.care.sources import NotAConversation
from nplt_storage.errors import BadEntry, ConversationExists


async def import_document(
    household: Household, registry: Registry, path: Path, *, user: str, field: str
) -> Imported:
    """`field`: what of the request is to blame."""
    store = household.library.default.store
    try:
        done = await import_file(
            store,
            path,
            files=household.files.directory,
            user=user,
            new_id=household.new_session_id,
            is_taken_elsewhere=registry.is_taken,
        )
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
