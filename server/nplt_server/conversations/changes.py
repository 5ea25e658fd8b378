"""What people change about a conversation besides talking: its name, its model,
what models see of it. Each change is a line in the record, told to everyone.
"""

from __future__ import annotations

from typing import Final

from nplt_protocol.replies import Cleared, RolledBack
from nplt_server.conversations.conversation import Conversation
from nplt_server.conversations.going_back import at_work, rollback_to
from nplt_storage.facts.entries import (
    ArchivedEntry,
    ClearEntry,
    ModelSwitchedEntry,
    PinnedEntry,
    RenamedEntry,
    SystemInstructionEntry,
)

_TOLD_CHARACTERS_MAX: Final = 10_000
"""Of an instruction, in the event: who wants more reads the entry."""


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


async def set_system(conversation: Conversation, instruction: str) -> None:
    """The next call is told that; what it was told before is not slipped away."""
    await conversation.write_fact(SystemInstructionEntry(content=instruction))
    conversation.announce("system", {"system": instruction[:_TOLD_CHARACTERS_MAX]})


async def pin(conversation: Conversation, pinned: bool) -> None:
    await conversation.write_fact(PinnedEntry(pinned=pinned))
    conversation.announce("pinned", {"pinned": pinned})


async def archive(conversation: Conversation, archived: bool) -> None:
    await conversation.write_fact(ArchivedEntry(archived=archived))
    conversation.announce("archived", {"archived": archived})


async def roll_back(conversation: Conversation, to_seq: int) -> RolledBack:
    if conversation.has_work:
        raise at_work()
    draft = await rollback_to(conversation.history, conversation.profile.store, to_seq)
    entry = await conversation.write_fact(draft)
    conversation.announce("rolled_back", {"to_seq": to_seq, "head_seq": entry.seq})
    return RolledBack(session_id=conversation.session_id, head_seq=entry.seq)
