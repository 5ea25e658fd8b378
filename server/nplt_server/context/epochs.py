"""Decides when a new epoch begins, what it shows, and what is to be summarized for it.

An epoch is due when the next context can't begin with the context that was sent last. A
model with a smaller window than the models used recently does not cause an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.context.messages import ContextMessage, ModelInputMessage, ScreensInTurns
from nplt_server.context.source import (
    CallBudget,
    ContextSource,
    EpochPlan,
    Measure,
    PromptReference,
    gather_source,
    head_message,
    plan_epoch,
    tokens_of,
)
from nplt_storage.entries import (
    ClearEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    SystemInstructionEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import Turn

# ------------------------------------------------------------------------------
# When an epoch is due
#
# The newest output entry says which entry was the last in its context. An epoch is due when
# the next context can't begin with that context, unless the current epoch was written after
# the change.
#
# A model with a smaller window than the models used recently never causes a budget epoch; it
# gets a trimmed context. Otherwise two models used alternately would each begin an epoch at
# every turn.

EpochReason: TypeAlias = Literal[
    "budget",  # the next context would take more than the threshold
    "compaction",  # there is a summary that the epoch does not show; not inside a turn
    "clear",  # an entry of this kind was written since the last context; so the next three
    "rollback",
    "quarantine",
    "system",
    "tools",  # the tools on offer have changed
    "window",  # more turns than `max_turns` for the first time; the window moves from now on
    "reach",  # turns that the epoch shows are not in memory
    # Not from entries:
    "asked",  # COMPACT
    "redaction",
    "pictures",  # too many; older ones are left out
    "reasoning",  # a provider refuses its model's sealed reasoning; a new epoch drops it
]

_CHANGES: Final[dict[type[Entry], EpochReason]] = {
    ClearEntry: "clear",
    QuarantineEntry: "quarantine",
    SystemInstructionEntry: "system",
}
_SAME_BUDGET_FRACTION: Final = 0.75
"""A budget that is at least this fraction of the recent one counts as the same: budgets
change a little as providers report token counts."""
_RECENT_TURNS: Final = 3
"""How many turns count as recent. A conversation that stays with a smaller model gets an
epoch for its window after so many turns."""


class NextCall(Struct, frozen=True, kw_only=True):
    """The call that is about to be made: history, prompt and budget."""

    history: ConversationHistory
    screens: ScreensInTurns
    measure: Measure
    prompt_ref: PromptReference
    call_budget: CallBudget

    @property
    def budget(self) -> int:
        return self.call_budget.budget_tokens or 0

    def source(self, epoch: EpochEntry | None) -> ContextSource:
        """`epoch` may be a draft: the source is the one after it is written."""
        if epoch is not None and not epoch.seq:
            # The prompt may be a draft too, and is written before the epoch.
            epoch = structs.replace(epoch, seq=self.history.head_seq + 2)
        return gather_source(
            self.history,
            self.prompt_ref,
            screens=self.screens,
            measure=self.measure,
            epoch=epoch,
            call_budget=self.call_budget,
        )


def exceeds_threshold(call: NextCall, *, next_tokens: int) -> bool:
    """Whether the budget is why an epoch is due."""
    is_full = next_tokens > call.call_budget.threshold * call.budget
    return is_full and call.budget >= _SAME_BUDGET_FRACTION * _recent_budget(call)


def change_due(call: NextCall) -> EpochReason | None:
    """Why an epoch is due whatever the budget is."""
    history, epoch = call.history, call.history.epoch
    epoch_seq = epoch.seq if epoch is not None else 0
    if _may_have_been_sent(history, epoch_seq):
        change = _change_since(history, max(epoch_seq, _seen_through(history)))
        if change is not None:
            return change
    if _begins_turn(call) and any(entry.seq > epoch_seq for entry in history.compactions[-1:]):
        return "compaction"
    last = next(_newest_outputs(history), None)
    sent = last.sent if last is not None and last.seq > epoch_seq else None
    if sent is not None and sent.tools_digest != call.call_budget.offer.digest:
        return "tools"
    if not _is_held(call, epoch):
        return "reach"
    return "window" if _begins_to_slide(call, epoch) else None


def stays_without_change(call: NextCall) -> bool:
    """Whether `change_due`, if it is `None` now, is `None` for every call until the history's
    `changed_seq` or the tools on offer are others."""
    history, epoch = call.history, call.history.epoch
    return (
        history.turns_max is None
        and _begins_turn(call)
        and _may_have_been_sent(history, epoch.seq if epoch is not None else 0)
    )


def draft_epoch(call: NextCall, reason: EpochReason, *, screen: str) -> EpochEntry:
    """Plans all turns in memory anew: turns that an earlier epoch left out are shown again
    if there is room."""
    budget = call.budget if reason == "asked" else max(call.budget, _recent_budget(call))
    draft = EpochEntry(reason=reason, budget_tokens=budget, screen=screen)
    source = call.source(draft)
    own = source.steps(source.own_steps())
    plan = plan_epoch(
        source.newest_first,
        budget=budget,
        fixed=call.call_budget.tools_tokens
        + source.head_tokens_max()
        + tokens_of([*source.system(), *own]),
        tokens=source.turn_tokens,
        keep=call.call_budget.keep,
    )
    return _with_plan(draft, plan, call.history, source)


def _with_plan(
    draft: EpochEntry, plan: EpochPlan, history: ConversationHistory, source: ContextSource
) -> EpochEntry:
    """Adds the plan to the draft. `omitted_through` is the entry right before the first turn
    that is shown, so that opening the conversation reads no further back. Unfinished turns
    will be shown live."""
    shown = (turn.number for turn in source.turns if turn.number > plan.omitted_through)
    open_numbers = [prompt.seq for prompt in history.unfinished_turns()]
    if source.own is not None:
        open_numbers.append(source.own.number)
    needed = [*open_numbers, *islice(shown, 1)]
    if needed:
        omitted = min(needed) - 1
    elif source.selection.until:
        omitted = source.shown_turns[source.selection.until - 1].number
    else:
        omitted = history.head_seq
    last = min(open_numbers, default=history.head_seq + 1) - 1
    gist = max(omitted, min(plan.gist_through, last))
    return structs.replace(
        draft,
        omitted_through=omitted,
        gist_through=gist,
        summary_through=max(gist, min(plan.summary_through, last)),
        omitted_turns=_omitted_turns(history, source, omitted),
    )


def _omitted_turns(history: ConversationHistory, source: ContextSource, through: int) -> int:
    """Counts the turns in memory; of those before them the epoch before this one says it."""
    turns = [turn for turn in source.shown_turns if not source.selection.covers(turn)]
    epoch = history.epoch
    before = 0
    since = takewhile(
        lambda entry: entry.seq > (epoch.seq if epoch else 0), reversed(history.active)
    )
    if epoch is not None and not any(isinstance(entry, ClearEntry) for entry in since):
        before = epoch.omitted_turns - _count_through(turns, epoch.omitted_through)
    return max(before, 0) + _count_through(turns, through)


def _count_through(turns: Sequence[Turn], number: int) -> int:
    return sum(turn.number <= number for turn in turns)


def _newest_outputs(history: ConversationHistory) -> Iterator[ModelOutputEntry]:
    return (entry for entry in reversed(history.active) if isinstance(entry, ModelOutputEntry))


def _begins_turn(call: NextCall) -> bool:
    return (
        not isinstance(call.prompt_ref, str)
        or call.history.turn_state(call.prompt_ref) != "running"
    )


def _may_have_been_sent(history: ConversationHistory, epoch_seq: int) -> bool:
    """Whether a context may have been sent in this epoch. Even if no output is in memory,
    there may be an older one, one that was rolled back, or a call that failed."""
    if history.first_seq > epoch_seq + 1 or _rollback_seq(history) > epoch_seq:
        return True
    since = takewhile(lambda entry: entry.seq > epoch_seq, reversed(history.active))
    signs_of_a_call = ModelOutputEntry | FaultEntry | QuarantineEntry
    return any(isinstance(entry, signs_of_a_call) for entry in since)


def _seen_through(history: ConversationHistory) -> int:
    """The newest entry that the last context took into account."""
    last = next(_newest_outputs(history), None)
    if last is not None:
        return (last.sent.head_seq if last.sent is not None else 0) or last.seq
    if history.hidden:
        return 0  # the outputs were rolled back
    prompts = (entry.seq for entry in history.active if isinstance(entry, ModelInputEntry))
    return next(prompts, 0)


def _rollback_seq(history: ConversationHistory) -> int:
    """The seq of the newest rollback entry; 0 if there is none. The entry itself is rolled
    back and may not be in memory, but the hidden ranges end with it."""
    return history.hidden[-1][1] if history.hidden else 0


def _change_since(history: ConversationHistory, seq: int) -> EpochReason | None:
    rollback_seq = _rollback_seq(history)
    for entry in reversed(history.active):
        if entry.seq <= max(seq, rollback_seq):
            break
        if type(entry) in _CHANGES:
            return _CHANGES[type(entry)]
    return "rollback" if rollback_seq > seq else None


def _is_held(call: NextCall, epoch: EpochEntry | None) -> bool:
    history = call.history
    if history.first_seq <= (epoch.omitted_through if epoch is not None else 0) + 1:
        return True
    return history.turns_max is not None and _seen(call) >= history.turns_max


def _begins_to_slide(call: NextCall, epoch: EpochEntry | None) -> bool:
    turns_max = call.history.turns_max
    if turns_max is None or _seen(call) <= turns_max:
        return False
    if epoch is None:
        return True
    # If the epoch began with more turns than the window shows, the window moves already.
    end = call.history.shown_turns[turns_max].end
    return epoch.reason != "window" and end is not None and end.seq > epoch.seq


def _seen(call: NextCall) -> int:
    """How many turns could be shown if the window had no limit."""
    return call.source(call.history.epoch).selection.until


def _recent_budget(call: NextCall) -> int:
    """The largest budget of the last few turns, without the current one."""
    budgets = [0]
    turns: set[str | None] = set()
    for output in _newest_outputs(call.history):
        if output.turn_id != call.prompt_ref:
            turns.add(output.turn_id)
            if len(turns) > _RECENT_TURNS:
                break
            budgets.append(output.sent.budget_tokens if output.sent is not None else 0)
    return max(budgets)


# ------------------------------------------------------------------------------
# The task of a summary
#
# A model is given the turns that the epoch will show in less detail, and the summary before
# them, which the new summary replaces. If they don't all fit, older turns are given in less
# detail and the oldest are left out; the summary then covers only the turns that were given.


class SummaryTask(Struct, frozen=True, kw_only=True):
    from_seq: int
    through_seq: int
    shown_summary: ModelInputMessage | None
    """The summary that is shown now; always given to the model."""
    leaves_out: bool
    """Whether turns between that summary and the messages are left out."""
    messages: tuple[ContextMessage, ...]
    """The turns to summarize; live where there is room, because a summary of summaries
    would say little."""
    tokens: int
    """Of the summary and the messages."""


def summary_task(
    source: ContextSource, draft: EpochEntry, *, room: int | None = None
) -> SummaryTask | None:
    """`room`: how many tokens the model may be given."""
    source = structs.replace(source, screens=False)
    turns = _turns_to_summarize(source, draft.summary_through)
    shown_summary = head_message(source.selection, None)
    fixed = [] if shown_summary is None else [source.measure.message(shown_summary)]
    plan = _plan(source, turns, None if room is None else room - tokens_of(fixed))
    given = [turn for turn in turns if turn.number > plan.omitted_through]
    planned = structs.replace(source, selection=structs.replace(source.selection, plan=plan))
    measured = planned.messages_of(given)
    if not measured:
        return None
    leaves_out = len(given) < len(turns)
    from_seq = given[0].number
    if source.selection.compaction is not None and not leaves_out:
        from_seq = min(from_seq, source.selection.compaction.from_seq)
    return SummaryTask(
        from_seq=from_seq,
        through_seq=max(turn.end.seq for turn in given if turn.end),
        shown_summary=shown_summary,
        leaves_out=leaves_out,
        messages=tuple(each.message for each in measured),
        tokens=tokens_of([*fixed, *measured]),
    )


def _turns_to_summarize(source: ContextSource, summary_through: int) -> list[Turn]:
    covers, summary = source.selection.covers, source.selection.compaction
    uncovered = [turn for turn in source.shown_turns if not covers(turn)]
    if summary is not None:
        # Older turns were left out when that summary was made, and can't follow it.
        uncovered = [turn for turn in uncovered if turn.number > summary.from_seq]
    ended = [(turn, turn.end.seq) for turn in uncovered if turn.end]
    through_seq = max((seq for turn, seq in ended if turn.number <= summary_through), default=0)
    # A prompt that was cancelled while it waited may have ended in between: the summary
    # will cover it too.
    return [turn for turn, seq in ended if seq <= through_seq]


def _plan(source: ContextSource, turns: Sequence[Turn], room: int | None) -> EpochPlan:
    """The plan of an epoch that would use all of the room."""

    if room is None:
        return EpochPlan()
    return plan_epoch(reversed(turns), budget=room, fixed=0, tokens=source.turn_tokens, keep=1.0)
