"""Decides when a new epoch begins, what it shows, and what is to be summarized for it.

An epoch is due when the next context can't begin with the context that was sent last. A
model with a smaller window than the models used recently does not cause an epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.context.messages import ContextMessage, ModelInputMessage
from nplt_server.context.source import (
    CallBudget,
    ContextSource,
    EpochPlan,
    PromptReference,
    plan_epoch,
    tokens_of,
    turns_before,
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


def exceeds_threshold(
    history: ConversationHistory,
    prompt_ref: PromptReference,
    call_budget: CallBudget,
    *,
    next_tokens: int,
) -> bool:
    """Whether the budget is why an epoch is due."""
    budget = call_budget.budget_tokens or 0
    if next_tokens <= call_budget.threshold * budget:
        return False
    return budget >= _SAME_BUDGET_FRACTION * recent_budget(history, prompt_ref)


def recent_budget(history: ConversationHistory, prompt_ref: PromptReference) -> int:
    """The largest budget of the last few turns, without the current one."""
    budgets = [0]
    turns: set[str | None] = set()
    for output in _newest_outputs(history):
        if output.turn_id != prompt_ref:
            turns.add(output.turn_id)
            if len(turns) > _RECENT_TURNS:
                break
            budgets.append(output.sent.budget_tokens if output.sent is not None else 0)
    return max(budgets)


def change_due(
    history: ConversationHistory, prompt_ref: PromptReference, *, tools_digest: str
) -> EpochReason | None:
    """Why an epoch is due whatever the budget is."""
    epoch = history.epoch
    epoch_seq = epoch.seq if epoch is not None else 0
    last = next(_newest_outputs(history), None)
    if _may_have_been_sent(history, epoch_seq):
        change = _change_since(history, max(epoch_seq, _seen_through(history, last)))
        if change is not None:
            return change
    begins_turn = _begins_turn(history, prompt_ref)
    if begins_turn and any(entry.seq > epoch_seq for entry in history.compactions[-1:]):
        return "compaction"
    sent = last.sent if last is not None and last.seq > epoch_seq else None
    if sent is not None and sent.tools_digest != tools_digest:
        return "tools"
    own = history.turn(prompt_ref) if isinstance(prompt_ref, str) else None
    number = history.head_seq + 1 if own is None else own.number
    shown, turns_max = history.shown_turns, history.turns_max
    seen = turns_before(shown, number)
    is_held = history.first_seq <= (epoch.omitted_through if epoch is not None else 0) + 1
    if not is_held and (turns_max is None or seen < turns_max):
        return "reach"
    if turns_max is None or seen <= turns_max:
        return None
    if epoch is None:
        return "window"
    # If the epoch began with more turns than the window shows, the window moves already.
    end = shown[turns_max].end
    is_new = epoch.reason != "window" and end is not None and end.seq > epoch.seq
    return "window" if is_new else None


def stays_without_change(history: ConversationHistory, prompt_ref: PromptReference) -> bool:
    """Whether `change_due`, if it is `None` now, is `None` for every call until the history's
    `changed_seq` or the tools on offer are others."""
    epoch = history.epoch
    return (
        history.turns_max is None
        and _begins_turn(history, prompt_ref)
        and _may_have_been_sent(history, epoch.seq if epoch is not None else 0)
    )


def _newest_outputs(history: ConversationHistory) -> Iterator[ModelOutputEntry]:
    return (entry for entry in reversed(history.active) if isinstance(entry, ModelOutputEntry))


def _begins_turn(history: ConversationHistory, prompt_ref: PromptReference) -> bool:
    return not isinstance(prompt_ref, str) or history.turn_state(prompt_ref) != "running"


def _may_have_been_sent(history: ConversationHistory, epoch_seq: int) -> bool:
    """Whether a context may have been sent in this epoch. Even if no output is in memory,
    there may be an older one, one that was rolled back, or a call that failed."""
    if history.first_seq > epoch_seq + 1 or _rollback_seq(history) > epoch_seq:
        return True
    signs_of_a_call = ModelOutputEntry | FaultEntry | QuarantineEntry
    return any(isinstance(entry, signs_of_a_call) for entry in _newest_after(history, epoch_seq))


def _seen_through(history: ConversationHistory, last: ModelOutputEntry | None) -> int:
    """The newest entry that the last context took into account."""
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
    for entry in _newest_after(history, max(seq, rollback_seq)):
        if type(entry) in _CHANGES:
            return _CHANGES[type(entry)]
    return "rollback" if rollback_seq > seq else None


def _newest_after(history: ConversationHistory, seq: int) -> Iterator[Entry]:
    return takewhile(lambda entry: entry.seq > seq, reversed(history.active))


# ------------------------------------------------------------------------------
# What an epoch shows


def planned(draft: EpochEntry, source: ContextSource, history: ConversationHistory) -> EpochEntry:
    """Plans all turns in memory anew: turns that an earlier epoch left out are shown again
    if there is room. `omitted_through` is the entry right before the first turn that is shown,
    so that opening the conversation reads no further back. Unfinished turns will be shown
    live."""
    own = source.steps(source.own_steps())
    plan = plan_epoch(
        source.turns(newest_first=True),
        budget=draft.budget_tokens,
        fixed=source.call_budget.tools_tokens
        + source.head_tokens_max()
        + tokens_of([*source.system(), *own]),
        tokens=source.turn_tokens,
        keep=source.call_budget.keep,
    )
    shown = (turn.number for turn in source.turns() if turn.number > plan.omitted_through)
    open_numbers = [prompt.seq for prompt in history.unfinished_turns()]
    if source.own is not None:
        open_numbers.append(source.own.number)
    if needed := [*open_numbers, *islice(shown, 1)]:
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
    turns = [turn.number for turn in source.shown_turns if not source.selection.covers(turn)]
    epoch, before = history.epoch, 0
    if epoch is not None:
        since = _newest_after(history, epoch.seq)
        if not any(isinstance(entry, ClearEntry) for entry in since):
            in_memory = sum(number <= epoch.omitted_through for number in turns)
            before = max(epoch.omitted_turns - in_memory, 0)
    return before + sum(number <= through for number in turns)


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
    source: ContextSource, draft: EpochEntry, *, room: int | None
) -> SummaryTask | None:
    """`room`: how many tokens the model may be given; the turns are planned as in an epoch
    that would use all of it."""
    source = structs.replace(source, screens=False)
    selection = source.selection
    turns = _turns_to_summarize(source, draft.summary_through)
    shown_summary, fixed = None, 0
    if selection.summary:
        shown_summary = ModelInputMessage(seq=selection.epoch_seq, content=selection.summary)
        fixed = source.measure.message(shown_summary).tokens
    plan = EpochPlan()
    if room is not None:
        tokens = source.turn_tokens
        plan = plan_epoch(reversed(turns), budget=room - fixed, fixed=0, tokens=tokens, keep=1.0)
    given = [turn for turn in turns if turn.number > plan.omitted_through]
    as_planned = structs.replace(source, selection=structs.replace(selection, plan=plan))
    measured = as_planned.messages_of(given)
    if not measured:
        return None
    leaves_out = len(given) < len(turns)
    from_seq = given[0].number
    if selection.compaction is not None and not leaves_out:
        from_seq = min(from_seq, selection.compaction.from_seq)
    return SummaryTask(
        from_seq=from_seq,
        through_seq=max(turn.end.seq for turn in given if turn.end),
        shown_summary=shown_summary,
        leaves_out=leaves_out,
        messages=tuple(each.message for each in measured),
        tokens=fixed + tokens_of(measured),
    )


def _turns_to_summarize(source: ContextSource, summary_through: int) -> list[Turn]:
    covers, summary = source.selection.covers, source.selection.compaction
    # Turns older than the summary were left out when it was made, and can't follow it.
    oldest = 0 if summary is None else summary.from_seq + 1
    ended = [
        (turn, turn.end.seq)
        for turn in source.shown_turns
        if turn.end and turn.number >= oldest and not covers(turn)
    ]
    through_seq = max((seq for turn, seq in ended if turn.number <= summary_through), default=0)
    # A prompt that was cancelled while it waited may have ended in between: the summary
    # will cover it too.
    return [turn for turn, seq in ended if seq <= through_seq]
