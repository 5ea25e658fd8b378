"""Why a new epoch begins, and what the epoch entry holds.

Inside an epoch each context begins with the previous one. A new epoch is due when the next
context can't: `EPOCH_REASONS` lists why, and docs/context.md shows the same table. Whatever the
reason, the epoch does the same: it plans the levels of all turns in memory anew, and what is sent
begins anew, without older live screens and without sealed reasoning of older outputs.

To add a reason, add a row, with a test of its name. A row with a predicate is looked at before
every call, in the order of the table. A row without one is begun by name, by the part of the
server that knows of the change. Names are permanent, because they are in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.context.selection import (
    CallBudget,
    ContextParts,
    HistoryAtCall,
    head_tokens_max,
    measure_steps,
    measure_system,
    older_turns,
    own_steps,
    parts_after,
    plan_levels,
    turn_counter,
    turns_before,
)
from nplt_server.context.steps import Measure, tokens_of
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

RequestedReason: TypeAlias = Literal["asked", "redaction", "pictures", "reasoning"]
"""The reasons that are begun by name."""

_CHANGING: Final[Mapping[type[Entry], str]] = {
    ClearEntry: "clear",
    QuarantineEntry: "quarantine",
    SystemInstructionEntry: "system",
}
_SIGNS_OF_A_CALL: Final = (ModelOutputEntry, FaultEntry, QuarantineEntry)
_SAME_BUDGET_FRACTION: Final = 0.75
"""A budget that is at least this fraction of the recent one counts as the same: budgets change a
little as providers report token counts."""
_RECENT_TURNS: Final = 3
"""How many turns count as recent. A conversation that stays with a smaller model gets an epoch
for its window after so many turns."""


class BeforeCall(Struct, frozen=True, kw_only=True):
    """The state before a call that the predicates of the table look at."""

    at: HistoryAtCall
    call_budget: CallBudget
    tokens: int
    """The tokens of the next context; 0 if they are not known, and then no epoch is due for
    them."""
    change: str
    """Which change came last since the last context; empty if none did."""
    last_tools_digest: str | None
    """The tools that were sent with the last context of this epoch; `None` if none was sent."""


def _has_new_summary(before: BeforeCall) -> bool:
    """Inside a turn a summary waits for the next turn."""
    at = before.at
    is_new = any(entry.seq > at.epoch_seq for entry in at.compactions[-1:])
    return is_new and not (at.own is not None and at.own.state == "running")


def _has_other_tools(before: BeforeCall) -> bool:
    return before.last_tools_digest not in (None, before.call_budget.offer.digest)


def _misses_turns(before: BeforeCall) -> bool:
    at = before.at
    omitted_through = 0 if at.epoch is None else at.epoch.omitted_through
    if at.first_seq <= omitted_through + 1:
        return False
    return at.turns_max is None or turns_before(at) < at.turns_max


def _window_begins_to_move(before: BeforeCall) -> bool:
    at = before.at
    if at.turns_max is None or turns_before(at) <= at.turns_max:
        return False
    if at.epoch is None:
        return True
    # If the epoch began with more turns than the window shows, the window moves already.
    end = at.shown_turns[at.turns_max].end
    return at.epoch.reason != "window" and end is not None and end.seq > at.epoch.seq


def _exceeds_threshold(before: BeforeCall) -> bool:
    """A model with a smaller window than the models used recently gets a trimmed context.
    Otherwise two models used alternately would each begin an epoch at every turn."""
    budget = before.call_budget.budget_tokens
    if budget is None or before.tokens <= before.call_budget.threshold * budget:
        return False
    return budget >= _SAME_BUDGET_FRACTION * recent_budget(before.at)


class EpochReason(Struct, frozen=True, kw_only=True):
    name: str
    happened: str
    changes: str
    """How the next context differs from the last one."""
    decides: str
    is_due: Callable[[BeforeCall], bool] | None = None
    """`None`: it is begun by name."""


EPOCH_REASONS: Final[tuple[EpochReason, ...]] = (
    EpochReason(
        name="clear",
        happened="the conversation was cleared since the last context",
        changes="earlier turns and their summary are gone",
        decides="a user (CLEAR_REQUEST)",
        is_due=lambda before: before.change == "clear",
    ),
    EpochReason(
        name="rollback",
        happened="turns were taken back, or brought back, since the last context",
        changes="those turns are gone, or are there again",
        decides="a user (ROLLBACK)",
        is_due=lambda before: before.change == "rollback",
    ),
    EpochReason(
        name="quarantine",
        happened="an entry was quarantined, or released, since the last context",
        changes="the entry and older live screens are gone, or the entry is there again",
        decides="the provider that refused it",
        is_due=lambda before: before.change == "quarantine",
    ),
    EpochReason(
        name="system",
        happened="the system message was changed since the last context",
        changes="the system message is another one",
        decides="a user (SESSION_UPDATE)",
        is_due=lambda before: before.change == "system",
    ),
    EpochReason(
        name="compaction",
        happened="a model's summary was written in this epoch, and no turn is running",
        changes="the summary replaces the turns that it covers",
        decides="the summarizer",
        is_due=_has_new_summary,
    ),
    EpochReason(
        name="tools",
        happened="other tools are on offer than in the last call of this epoch",
        changes="the tools before all messages are other ones",
        decides="the operator (settings, MCP servers)",
        is_due=_has_other_tools,
    ),
    EpochReason(
        name="reach",
        happened="turns that the epoch shows are not in memory",
        changes="those turns are left out",
        decides="the server, when it opens a conversation from its end",
        is_due=_misses_turns,
    ),
    EpochReason(
        name="window",
        happened="there are more turns than `max_turns` for the first time",
        changes="the oldest turn is left out, from now on at every turn",
        decides="the operator (`max_turns`)",
        is_due=_window_begins_to_move,
    ),
    EpochReason(
        name="budget",
        happened="the context exceeds `context.threshold` of a window like the recent ones",
        changes="older turns are shown in less detail",
        decides="the server, if that frees a twentieth of the window",
        is_due=_exceeds_threshold,
    ),
    EpochReason(
        name="asked",
        happened="somebody asked for it",
        changes="older turns take half as many tokens, or a new summary replaces them",
        decides="a user (COMPACT)",
    ),
    EpochReason(
        name="redaction",
        happened="an entry that models were shown was erased",
        changes="its text is gone",
        decides="a user (REDACT)",
    ),
    EpochReason(
        name="pictures",
        happened="there are more pictures than one call may hold",
        changes="older pictures are only named",
        decides="the server, before a call",
    ),
    EpochReason(
        name="reasoning",
        happened="the provider refused the sealed reasoning of its own model",
        changes="sealed reasoning is left out",
        decides="the provider that refused it",
    ),
)


def due_reason(at: HistoryAtCall, call_budget: CallBudget, *, tokens: int = 0) -> str | None:
    """The first reason of the table for which an epoch is due before this call."""
    change, last_tools_digest = _since_last_context(at)
    before = BeforeCall(
        at=at,
        call_budget=call_budget,
        tokens=tokens,
        change=change,
        last_tools_digest=last_tools_digest,
    )
    for reason in EPOCH_REASONS:
        if reason.is_due is not None and reason.is_due(before):
            return reason.name
    return None


def _since_last_context(at: HistoryAtCall) -> tuple[str, str | None]:
    """The last change since the last context, and the tools that were sent with that context in
    this epoch. The newest output says which entry was the last in its context; entries after
    that one came while the model was answering. The entries are read back to there."""
    epoch_seq, rollback_seq = at.epoch_seq, at.rollback_seq
    # Even if no output is in memory, there may be an older one, one that was rolled back, or a
    # call that failed.
    was_called = at.first_seq > epoch_seq + 1 or rollback_seq > epoch_seq
    output: ModelOutputEntry | None = None
    change: Entry | None = None
    seen_through = first_prompt_seq = 0
    for entry in reversed(at.active):
        if output is not None and entry.seq <= seen_through:
            break
        if isinstance(entry, ModelInputEntry):
            first_prompt_seq = entry.seq
            continue
        if entry.seq > epoch_seq and isinstance(entry, _SIGNS_OF_A_CALL):
            was_called = True
        if output is None and isinstance(entry, ModelOutputEntry):
            output = entry
            seen_through = (entry.sent.head_seq if entry.sent is not None else 0) or entry.seq
        if change is None and type(entry) in _CHANGING:
            change = entry
    if output is None and not rollback_seq:
        seen_through = first_prompt_seq
    since = max(epoch_seq, seen_through)
    sent = output.sent if output is not None and output.seq > epoch_seq else None
    digest = None if sent is None else sent.tools_digest
    if not was_called:
        return "", digest
    if change is not None and change.seq > max(since, rollback_seq):
        return _CHANGING[type(change)], digest
    return "rollback" if rollback_seq > since else "", digest


def recent_budget(at: HistoryAtCall) -> int:
    """The largest budget of the last few turns, without the current one."""
    budgets = [0]
    turns: set[str | None] = set()
    for entry in reversed(at.active):
        if isinstance(entry, ModelOutputEntry) and entry.turn_id != at.prompt_ref:
            turns.add(entry.turn_id)
            if len(turns) > _RECENT_TURNS:
                break
            budgets.append(entry.sent.budget_tokens if entry.sent is not None else 0)
    return max(budgets)


def draft_epoch(
    reason: str, at: HistoryAtCall, call_budget: CallBudget, measure: Measure, *, screen: str = ""
) -> EpochEntry:
    """Plans all turns in memory again: those that an earlier epoch left out are shown again if
    there is room. `omitted_through` is the entry right before the first turn that is shown, so
    that opening the conversation reads no further back. Unfinished turns will be shown live."""
    budget = call_budget.budget_tokens or 0
    if reason != "asked":  # a person who asks for less gets less, even if other models hold more
        budget = max(budget, recent_budget(at))
    draft = EpochEntry(reason=reason, budget_tokens=budget, screen=screen)
    parts = parts_after(draft, at, call_budget, measure)
    own = measure_steps(parts, own_steps(parts))
    fixed = tokens_of([*measure_system(parts), *own])
    plan = plan_levels(
        older_turns(parts, newest_first=True),
        budget=budget,
        fixed=call_budget.tools_tokens + head_tokens_max(parts) + fixed,
        tokens=turn_counter(parts),
        keep=call_budget.keep,
    )
    shown = (turn.number for turn in older_turns(parts) if turn.number > plan.omitted_through)
    unfinished = [*at.unfinished, *([] if at.own is None else [at.own.number])]
    if needed := [*unfinished, *islice(shown, 1)]:
        omitted = min(needed) - 1
    elif parts.selection.until:
        omitted = at.shown_turns[parts.selection.until - 1].number
    else:
        omitted = at.head_seq
    last = min(unfinished, default=at.head_seq + 1) - 1
    gist = max(omitted, min(plan.gist_through, last))
    return structs.replace(
        draft,
        omitted_through=omitted,
        gist_through=gist,
        summary_through=max(gist, min(plan.summary_through, last)),
        omitted_turns=_omitted_turns(at, parts, omitted),
    )


def _omitted_turns(at: HistoryAtCall, parts: ContextParts, through: int) -> int:
    """Counts the turns in memory; of those before them the epoch before this one says it."""
    turns = [turn.number for turn in at.shown_turns if not parts.selection.covers(turn)]
    epoch, earlier = at.epoch, 0
    if epoch is not None and not any(isinstance(e, ClearEntry) for e in _newest_after(at, epoch)):
        in_memory = sum(number <= epoch.omitted_through for number in turns)
        earlier = max(epoch.omitted_turns - in_memory, 0)
    return earlier + sum(number <= through for number in turns)


def _newest_after(at: HistoryAtCall, epoch: EpochEntry) -> Iterator[Entry]:
    return takewhile(lambda entry: entry.seq > epoch.seq, reversed(at.active))
