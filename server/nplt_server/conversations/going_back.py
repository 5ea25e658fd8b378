"""Taking back what was said: the entry that says so, also for what lies far back.

An open conversation holds its newest entries. A rollback to before those is
drafted from the whole record, in a thread.
"""

from __future__ import annotations

from anyio import to_thread

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_storage.conversation.history import ConversationHistory, NotInReach
from nplt_storage.conversation.standing import Ranges, is_in
from nplt_storage.facts.entries import Entry, RollbackEntry
from nplt_storage.store import ConversationStore


def at_work() -> RequestError:
    return RequestError(
        ErrorCode.BUSY,
        "something runs or waits here: nothing is taken back under its feet",
        retry_after=1.0,
    )


async def rollback_to(
    history: ConversationHistory, store: ConversationStore, to_seq: int
) -> RollbackEntry:
    try:
        return history.rollback_to(to_seq)
    except NotInReach:
        pass  # it lies before what is held: the whole record knows
    entries: list[Entry] = []
    async for batch in store.entries(history.session_id):
        entries += batch
    whole = await to_thread.run_sync(ConversationHistory, history.session_id, entries)
    return whole.rollback_to(to_seq, in_full=True)


async def rollback_before(
    history: ConversationHistory, store: ConversationStore, replaced_seq: int
) -> RollbackEntry | None:
    """What must be written so that nothing stands from that entry on; `None`: nothing
    does, for whoever asked has asked before and was cut off."""
    if replaced_seq > history.head_seq:
        raise RequestError(
            ErrorCode.NOT_FOUND, f"there is no entry {replaced_seq} here", field="replace_from"
        )
    base = _standing_before(replaced_seq, history.hidden)
    if not is_in(history.hidden, replaced_seq):
        return await rollback_to(history, store, base)
    if base != replaced_seq - 1:
        raise RequestError(
            ErrorCode.CONFLICT,
            f"what stood before entry {replaced_seq} was taken back meanwhile",
            field="replace_from",
        )
    if _nothing_stands_from(replaced_seq, history.head_seq, history.hidden):
        return None
    return await rollback_to(history, store, base)


def _standing_before(seq: int, hidden: Ranges) -> int:
    """The newest number below it that stands; earlier ones may have been taken back
    long ago."""
    before = seq - 1
    for first, last in reversed(hidden):
        if first <= before <= last:
            before = first - 1
    return before


def _nothing_stands_from(seq: int, head_seq: int, hidden: Ranges) -> bool:
    newest = head_seq
    for first, last in reversed(hidden):
        if last < newest:
            break
        newest = first - 1
    return newest < seq
