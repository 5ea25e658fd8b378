"""Erasing a pasted secret for good, wherever this server keeps its words.

The record is rewritten with a tombstone in the entry's place, and read again: what
models are shown, what is replayed and what lists say comes from that. What a model
was had to make of it goes too: summaries that cover the entry, and a name; so do
the live screens since, if it was on them. Who repeated it since (an answer, a tool's
result) is erased by asking for that entry.
"""

from __future__ import annotations

from collections.abc import Callable

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_values import JsonObject, JsonValue
from nplt_protocol.replies import Redacted
from nplt_server.conversations.household import Household
from nplt_server.conversations.ledger import Ledger
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.naming import made_from
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    AttachmentEntry,
    CompactionEntry,
    Entry,
    ModelOutputEntry,
    RenamedEntry,
)


def check_redactable(history: ConversationHistory, seq: int) -> None:
    """What runs or waits goes on from what it was asked: that must not change meanwhile."""
    if not 1 <= seq <= history.head_seq:
        raise RequestError(ErrorCode.NOT_FOUND, f"there is no entry {seq} here", field="seq")
    entry = next(iter(history.entries_after(seq - 1) or ()), None)
    under_way = {prompt.turn_id for prompt in history.unfinished_turns()}
    if entry is not None and entry.turn_id in under_way:
        raise RequestError(
            ErrorCode.BUSY,
            "its turn has not ended: cancel it first, or wait",
            field="seq",
            retry_after=1.0,
        )


async def redact(
    seq: int,
    *,
    mind: Mind,
    household: Household,
    announce: Callable[[str, JsonObject], None],
) -> Redacted:
    """Called between turns."""
    ledger = mind.ledger
    mind.stop_summarizing()
    check_redactable(ledger.history, seq)
    drawn = await _drawn_from(seq, ledger)
    try:
        tombstone = await ledger.redact(seq)
    except BadEntry as error:
        raise RequestError(ErrorCode.MALFORMED, str(error), field="seq") from None
    for each in drawn:
        await ledger.redact(each)
    if isinstance(tombstone, AttachmentEntry):
        await household.files.remove(ledger.session_id, tombstone.file_id)
    seqs: list[JsonValue] = [seq, *drawn]
    announce("redacted", {"seq": seq, "seqs": seqs})
    if not isinstance(tombstone, RenamedEntry):  # no model is shown that
        await _begin_epoch(mind, household)
    return Redacted(seq=seq)


async def _drawn_from(seq: int, ledger: Ledger) -> list[int]:
    """What a model made of it, whether that stands or not."""
    found: list[int] = []
    async for batch in ledger.profile.store.entries(ledger.session_id, after=seq):
        found += [entry.seq for entry in batch if _tells_of(entry, seq)]
    return found


def _tells_of(entry: Entry, seq: int) -> bool:
    if entry.redacted_at is not None:
        return False
    match entry:
        case CompactionEntry():
            return entry.from_seq <= seq <= entry.through_seq
        case RenamedEntry():
            return seq in made_from(entry)
        case _:
            return False


async def _begin_epoch(mind: Mind, household: Household) -> None:
    """What was sent so far can't be sent again, so what models are shown begins anew."""
    history = mind.ledger.history
    if mind.ledger.is_stale or not any(isinstance(e, ModelOutputEntry) for e in history.standing):
        return
    await mind.ready()
    frame = mind.frame(household.router.choose(history.model))
    screen = mind.state.screen()
    await mind.begin_epoch(mind.projection.epoch_for("redaction", frame, screen=screen))
