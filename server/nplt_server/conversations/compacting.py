"""COMPACT: an epoch because somebody wishes for one, with a summary if there is a summarizer."""

from __future__ import annotations

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.replies import EpochBegun
from nplt_server.conversations.mind import Mind
from nplt_server.conversations.thinking import Thinking


async def compact(mind: Mind, thinking: Thinking, *, model: str) -> EpochBegun:
    """Called between turns. With a summarizer, its summary is waited for."""
    await mind.ready()
    frame = mind.frame(model)
    before = mind.view(None, frame).tokens
    if not mind.projection.history.shown_turns:
        raise RequestError(ErrorCode.CONFLICT, "there is nothing to compact here yet")
    compaction = await mind.summarize(mind.asked_epoch(frame))
    epoch = await mind.begin_asked_epoch(frame)
    return EpochBegun(
        session_id=mind.ledger.session_id,
        epoch=epoch.seq,
        reason=epoch.reason,
        tokens_before=before,
        tokens_after=mind.view(None, frame).tokens,
        compaction=compaction.seq if compaction is not None else None,
    )
