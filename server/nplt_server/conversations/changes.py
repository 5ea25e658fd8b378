"""What people change about a conversation besides talking: its name, its model,
what models see of it. Each change is a line in the record, told to everyone.
"""

from __future__ import annotations

from anyio import to_thread

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import Cleared, RolledBack
from nplt_server.conversations.conversation import Conversation
from nplt_storage.conversation.history import ConversationHistory, NotInReach
from nplt_storage.facts.entries import (
    ClearEntry,
    Entry,
    ModelSwitchedEntry,
    RenamedEntry,
    RollbackEntry,
)


async def rename(conversation: Conversation, name: str) -> None:
    await conversation.write_fact(RenamedEntry(name=name))
    conversation.announce("renamed", {"name": name})


async def switch_model(conversation: Conversation, model: str) -> str:
    """Takes effect with the next turn that starts; gives the model before."""
    checked = conversation.check_model(model)
    previous = conversation.model
    if checked != previous or conversation.history.model is None:
        await conversation.write_fact(ModelSwitchedEntry(model=checked, previous_model=previous))
        conversation.announce("model", {"model": checked, "previous_model": previous})
    return previous


async def clear(conversation: Conversation) -> Cleared:
    """The instruction stays; what was said is no longer shown to models."""
    through = 0
    if conversation.is_stored:
        through = (await conversation.write_fact(ClearEntry())).seq - 1
    conversation.announce("cleared", {"cleared_through_seq": through})
    return Cleared(session_id=conversation.session_id, cleared_through_seq=through)


async def roll_back(conversation: Conversation, to_seq: int) -> RolledBack:
    if conversation.has_work:
        raise RequestError(
            ErrorCode.BUSY,
            "something runs or waits here: nothing is taken back under its feet",
            retry_after=1.0,
        )
    entry = await conversation.write_fact(await _rollback_to(conversation, to_seq))
    conversation.announce("rolled_back", {"to_seq": to_seq, "head_seq": entry.seq})
    return RolledBack(session_id=conversation.session_id, head_seq=entry.seq)


async def _rollback_to(conversation: Conversation, to_seq: int) -> RollbackEntry:
    try:
        return conversation.history.rollback_to(to_seq)
    except NotInReach:
        pass  # it lies before what is held: the whole record knows
    session_id = conversation.session_id
    entries: list[Entry] = []
    async for batch in conversation.profile.store.entries(session_id):
        entries += batch
    whole = await to_thread.run_sync(ConversationHistory, session_id, entries)
    return whole.rollback_to(to_seq, in_full=True)
