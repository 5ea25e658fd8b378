"""What a model is given to summarize, and the range its summary will stand for.

The turns that an epoch is about to show in less detail, and before them the
summary that stands already: the new one replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass

from nplt_server.context.levels import message_of
from nplt_server.context.messages import ContextMessage
from nplt_server.context.scene import Scene, head_message
from nplt_server.context.steps import steps_of
from nplt_storage.facts.entries import EpochEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTask:
    from_seq: int
    through_seq: int
    messages: tuple[ContextMessage, ...]
    """All live: a summary of summaries would say little."""


def summary_task(scene: Scene, draft: EpochEntry) -> SummaryTask | None:
    selection = scene.selection
    told = [turn for turn in scene.shown if turn.end and not selection.covers(turn)]
    fading = [turn for turn in told if turn.number <= draft.summary_through]
    if not fading:
        return None
    standing = selection.compaction
    from_seq = min(fading[0].number, standing.from_seq if standing else fading[0].number)
    through_seq = max(turn.end.seq for turn in fading if turn.end)
    # A prompt that was cancelled while it waited may have ended in between: the summary
    # will stand for it too.
    told = [turn for turn in told if turn.end and turn.end.seq <= through_seq]
    before = head_message(selection, None)
    messages = [before] if before is not None else []
    return SummaryTask(
        from_seq=from_seq,
        through_seq=through_seq,
        messages=(
            *messages,
            *(
                message_of(entry, "live", with_screen=False)
                for turn in told
                for step in steps_of(turn, scene.quarantined)
                for entry in step
            ),
        ),
    )
