"""Which turns a context shows, and in how much detail: what an epoch decided.

An epoch gives three numbers; turns are shown less the older they are. A model's
summary that was written before the epoch began stands for the turns it covers
from beginning to end, unless a clear came after it or a provider refused it. A
window (`max_turns`) shows the newest turns and no others. All of this follows from
the record alone, so it is the same after a restart, and every later turn is live:
what was sent is only ever extended.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace

from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import CompactionEntry, EpochEntry
from nplt_storage.facts.sections import LevelOfDetail


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochPlan:
    """Turns with a number up to these are not shown, as gist, as summary."""

    omitted_through: int = 0
    gist_through: int = 0
    summary_through: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    plan: EpochPlan
    epoch_seq: int = 0
    """Screens written before it are out of date; it brings its own."""
    compaction: CompactionEntry | None = None
    first: int = 0
    until: int = 0
    """Places among the shown turns: those a turn sees, the window regarded."""

    def level_of(self, turn: Turn) -> LevelOfDetail | None:
        plan, number = self.plan, turn.number
        if number <= plan.omitted_through or self.covers(turn):
            return None
        if number <= plan.gist_through:
            return "gist"
        return "summary" if number <= plan.summary_through else "live"

    def within(self, plan: EpochPlan, shown: Sequence[Turn]) -> Selection:
        """The same, with no turn in more detail than the plan says."""
        merged = EpochPlan(
            omitted_through=max(plan.omitted_through, self.plan.omitted_through),
            gist_through=max(plan.gist_through, self.plan.gist_through),
            summary_through=max(plan.summary_through, self.plan.summary_through),
        )
        first = bisect_right(shown, merged.omitted_through, key=_number)
        return replace(self, plan=merged, first=max(self.first, first))

    def covers(self, turn: Turn) -> bool:
        """Whether a summary stands for it."""
        compaction = self.compaction
        return (
            compaction is not None
            and turn.end is not None
            and compaction.from_seq <= turn.number
            and turn.end.seq <= compaction.through_seq
        )


def select(history: ConversationHistory, epoch: EpochEntry | None, *, number: int) -> Selection:
    """For the turn of that number."""
    shown = history.shown_turns
    until = place_of(shown, number)
    turns_max = history.turns_max
    first = 0 if turns_max is None else max(0, until - turns_max)
    if epoch is None:
        return Selection(plan=EpochPlan(), first=first, until=until)
    plan = EpochPlan(
        omitted_through=epoch.omitted_through,
        gist_through=epoch.gist_through,
        summary_through=epoch.summary_through,
    )
    return Selection(
        plan=plan,
        epoch_seq=epoch.seq,
        compaction=compaction_in_force(history, epoch),
        first=max(first, bisect_right(shown, plan.omitted_through, key=_number)),
        until=until,
    )


def compaction_in_force(history: ConversationHistory, epoch: EpochEntry) -> CompactionEntry | None:
    hidden = history.quarantined
    known = [e for e in history.compactions if e.seq < epoch.seq and e.seq not in hidden]
    return known[-1] if known else None


def place_of(shown: Sequence[Turn], number: int) -> int:
    """How many of these have a lower number."""
    return bisect_left(shown, number, key=_number)


def _number(turn: Turn) -> int:
    return turn.number
