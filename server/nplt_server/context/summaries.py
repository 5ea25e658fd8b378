"""What a model is given to summarize, and the range its summary will stand for.

The turns that an epoch is about to show in less detail, and before them the
summary that stands already: the new one replaces it. Where they don't all fit,
the older ones are told in less detail, the oldest not at all; the new summary
then stands for what was told and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from nplt_server.context.measuring import Measured, tokens_of
from nplt_server.context.messages import ContextMessage, ModelInputMessage
from nplt_server.context.plan import plan_epoch
from nplt_server.context.scene import Scene, head_message
from nplt_server.context.selection import EpochPlan
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import EpochEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryTask:
    from_seq: int
    through_seq: int
    standing: ModelInputMessage | None
    """The summary that stands already; always told."""
    leaves_out: bool
    """Whether turns between that one and the messages are not told."""
    messages: tuple[ContextMessage, ...]
    """Live where there is room: a summary of summaries would say little."""
    tokens: int
    """All of this, as it is told."""


def summary_task(scene: Scene, draft: EpochEntry, *, room: int | None = None) -> SummaryTask | None:
    """`room`: how many tokens may be told."""
    scene = replace(scene, screens=False)
    turns = _turns_to_tell(scene, draft.summary_through)
    standing = head_message(scene.selection, None)
    fixed = [] if standing is None else [scene.measure.message(standing)]
    plan = _plan(scene, turns, None if room is None else room - tokens_of(fixed))
    told = [turn for turn in turns if turn.number > plan.omitted_through]
    measured = _measured(scene, told, plan)
    if not measured:
        return None
    leaves_out = len(told) < len(turns)
    from_seq = told[0].number
    if scene.selection.compaction is not None and not leaves_out:
        from_seq = min(from_seq, scene.selection.compaction.from_seq)
    return SummaryTask(
        from_seq=from_seq,
        through_seq=max(turn.end.seq for turn in told if turn.end),
        standing=standing,
        leaves_out=leaves_out,
        messages=tuple(message for message, _ in measured),
        tokens=tokens_of([*fixed, *measured]),
    )


def _turns_to_tell(scene: Scene, summary_through: int) -> list[Turn]:
    covers, standing = scene.selection.covers, scene.selection.compaction
    uncovered = [turn for turn in scene.shown if not covers(turn)]
    if standing is not None:
        # What is older was left out when that one was made, and can't be told after it.
        uncovered = [turn for turn in uncovered if turn.number > standing.from_seq]
    ended = [(turn, turn.end.seq) for turn in uncovered if turn.end]
    through_seq = max((seq for turn, seq in ended if turn.number <= summary_through), default=0)
    # A prompt that was cancelled while it waited may have ended in between: the summary
    # will stand for it too.
    return [turn for turn, seq in ended if seq <= through_seq]


def _plan(scene: Scene, turns: Sequence[Turn], room: int | None) -> EpochPlan:
    """As an epoch would cut them that is filled to the brim."""
    if room is None:
        return EpochPlan()
    return plan_epoch(reversed(turns), budget=room, fixed=0, tokens=scene.turn_tokens, keep=1.0)


def _measured(scene: Scene, turns: Sequence[Turn], plan: EpochPlan) -> list[Measured]:
    levels = replace(scene.selection, plan=plan)
    return [
        measured
        for turn in turns
        if (level := levels.level_of(turn)) is not None
        for measured in scene.turn(turn, level)
    ]
