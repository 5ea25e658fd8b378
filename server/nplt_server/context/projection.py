"""Turns a history into the context of a call.

A conversation keeps one `Projection`, which adds only new entries to the context it built
last; a new `Projection` gives the same context. Under the policy `epochs` each context
begins with the previous one, unless an epoch entry came between. Under `newest_live` only
the newest entry is live. Before a call, `due_epoch` gives the epoch entry to write first, if
one is due: when the next context can't begin with the context that was sent last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias

from msgspec import Struct, structs

from nplt_server.context.messages import (
    ContextMessage,
    ModelInputMessage,
    ScreensInTurns,
    screen_sources,
    screens_after,
    steps_from,
)
from nplt_server.context.source import (
    CallBudget,
    ContextSource,
    ContextView,
    EpochPlan,
    Measure,
    Measured,
    PromptReference,
    fit,
    plan_epoch,
    select,
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
from nplt_storage.history import ConversationHistory, Turn

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


def _recent_budget(history: ConversationHistory, prompt_ref: PromptReference) -> int:
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


def _find_change(
    history: ConversationHistory, prompt_ref: PromptReference, call_budget: CallBudget
) -> EpochReason | None:
    """Why an epoch is due whatever the budget is."""
    epoch = history.epoch
    epoch_seq = epoch.seq if epoch is not None else 0
    last = next(_newest_outputs(history), None)
    if _may_have_been_sent(history, epoch_seq):
        change = _change_since(history, max(epoch_seq, _seen_through(history, last)))
        if change is not None:
            return change
    if not _is_running(history, prompt_ref) and any(
        entry.seq > epoch_seq for entry in history.compactions[-1:]
    ):
        return "compaction"
    sent = last.sent if last is not None and last.seq > epoch_seq else None
    if sent is not None and sent.tools_digest != call_budget.offer.digest:
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


def _newest_outputs(history: ConversationHistory) -> Iterator[ModelOutputEntry]:
    return (entry for entry in reversed(history.active) if isinstance(entry, ModelOutputEntry))


def _is_running(history: ConversationHistory, prompt_ref: PromptReference) -> bool:
    return isinstance(prompt_ref, str) and history.turn_state(prompt_ref) == "running"


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


# ------------------------------------------------------------------------------
# The growing context of an epoch
#
# A list of messages that is only appended to: each call's context begins with the previous
# call's. Earlier turns come first, then the running turn's entries. A change that appending
# can't express (another epoch, a turn that ended out of order, a moved window) starts a new
# list.


class GrowingContext:
    def __init__(self, source: ContextSource) -> None:
        self._basis = _basis(source)
        self._shown: Sequence[Turn] = source.shown_turns
        self._next = source.selection.first
        """The place of the first shown turn that is not in the list."""
        self._open: Turn | None = None
        """The turn at the end of the list, to which steps may still be added."""
        self._open_begins = 0
        self._open_taken = 0
        """Where the open turn begins in the list, and how many of its entries are there."""
        self.source: ContextSource | None = None
        """The source of the last `extend`."""
        self.messages: list[ContextMessage] = []
        self.sizes: list[int] = []
        self.tokens = 0
        head = source.head()
        self.has_head = bool(head)
        self._add([*source.system(), *head])

    def turns_missing(self, source: ContextSource) -> int | None:
        """How many turns have to be added for the source's context; `None` if it can't be made
        by appending to this list."""
        missing = source.selection.until - self._next
        leads_there = source.shown_turns is self._shown and missing >= 0
        return missing if leads_there and _basis(source) == self._basis else None

    def extend(self, source: ContextSource) -> None:
        self.source = source
        for place in range(self._next, source.selection.until):
            turn = self._shown[place]
            level = source.selection.level_of(turn)
            if level == "live":
                self._extend_turn(source, turn)
            elif level is not None:
                self._drop_open_unless(None)
                self._add(source.turn(turn, level))
            self._open = None
        self._next = source.selection.until
        self._drop_open_unless(source.own)
        if source.own is not None:
            self._extend_turn(source, source.own)

    def _extend_turn(self, source: ContextSource, turn: Turn) -> None:
        self._drop_open_unless(turn)
        if self._open is None:
            self._open, self._open_begins, self._open_taken = turn, len(self.messages), 0
        steps = steps_from(turn, source.quarantined, self._open_taken)
        for step, self._open_taken in steps:
            self._add(source.step(step, "live"))

    def _drop_open_unless(self, turn: Turn | None) -> None:
        """Removes the open turn from the list, unless it is `turn`: another turn comes first."""
        if self._open is None or self._open is turn:
            return
        self.tokens -= sum(self.sizes[self._open_begins :])
        del self.messages[self._open_begins :]
        del self.sizes[self._open_begins :]
        self._open = None

    def _add(self, added: Sequence[Measured]) -> None:
        for each in added:
            self.messages.append(each.message)
            self.sizes.append(each.tokens)
            self.tokens += each.tokens


def _basis(source: ContextSource) -> tuple[object, ...]:
    """What the list depends on besides the turns. If it changes, a new list is needed."""
    return (
        source.instruction,
        structs.replace(source.selection, until=0),
        source.quarantined,
        source.screens_after,
        source.call_budget.takes_images,
        source.notice,
    )


# ------------------------------------------------------------------------------
# The contexts of one history

Policy: TypeAlias = Literal["epochs", "newest_live"]

_EVERYTHING: Final = CallBudget()
_SAVING_FRACTION_MIN: Final = 1 / 20
"""Of the budget. An epoch that frees less is not worth the loss of the provider's cache."""
_QUICK_MESSAGES_MAX: Final = 4_096
"""Copying a list of so many takes a fraction of a millisecond."""
_TURNS_UNCHECKED_MAX: Final = 16
"""Up to so many new turns are added without a check first whether all of them fit."""


class Projection:
    """Builds the contexts of one history. Writes nothing. Equal arguments give equal
    contexts until the history grows."""

    def __init__(
        self,
        history: ConversationHistory,
        measure: Measure,
        screens: ScreensInTurns | None = None,
        *,
        policy: Policy = "epochs",
    ) -> None:
        self.history = history
        self.measure = measure
        self.policy = policy
        self.screens = screens or ScreensInTurns(history)
        self._compiled: GrowingContext | None = None
        self._source: ContextSource | None = None
        self._source_key: tuple[object, ...] = ()
        self._unchanged: tuple[int, str] | None = None
        """While the history's `changed_seq` and the tools on offer are these, no change makes
        an epoch due."""
        self._last_change: tuple[tuple[object, ...], EpochReason | None] | None = None

    def context(
        self,
        prompt_ref: PromptReference,
        call_budget: CallBudget = _EVERYTHING,
        *,
        epoch: EpochEntry | None = None,
    ) -> ContextView:
        """A context that fits the budget; otherwise raises `ContextTooSmall`. `epoch`: a
        draft; the context is the one that will follow when the draft is written."""
        if epoch is None:
            source = self._current_source(prompt_ref, call_budget)
        else:
            source = self._source_in(epoch, prompt_ref, call_budget)
        if self.policy == "newest_live":
            aged = source.aged()
            if aged.is_too_long():
                return fit(aged)
            system, head, own = aged.system(), aged.head(), aged.steps(aged.own_steps())
            measured = [*system, *head, *aged.messages_of(aged.turns()), *own]
            return aged.view(measured, has_head=bool(head))
        compiled = self._compile(source, keep=epoch is None)
        if compiled is None:
            return fit(source)
        return ContextView(
            messages=compiled.messages[:],
            sizes=compiled.sizes[:],
            tokens=compiled.tokens + call_budget.tools_tokens,
            call_budget=call_budget,
            selection=source.selection,
            has_head=compiled.has_head,
            head_seq=source.head_seq,
        )

    def due_epoch(
        self,
        prompt_ref: PromptReference,
        call_budget: CallBudget,
        *,
        screen: str | Callable[[], str] = "",
    ) -> EpochEntry | None:
        """A draft of the epoch to write before this call; `None` if no epoch is due.
        `screen`: the current live screen, or a function that renders it. Most calls need no
        epoch, and then the screen is not rendered."""
        budget = call_budget.budget_tokens
        if self.policy == "newest_live" or budget is None:
            return None
        tokens = self._next_tokens(self._current_source(prompt_ref, call_budget), keep=True)
        reason = self._change_due(prompt_ref, call_budget)
        if reason is None and tokens > call_budget.threshold * budget:
            recent = _recent_budget(self.history, prompt_ref)
            reason = "budget" if budget >= _SAME_BUDGET_FRACTION * recent else None
        if reason is None:
            return None
        shown = screen if isinstance(screen, str) else screen()
        draft = self.epoch_for(reason, call_budget, prompt_ref=prompt_ref, screen=shown)
        if reason == "budget":
            then = self._next_tokens(self._source_in(draft, prompt_ref, call_budget), keep=False)
            return draft if tokens - then >= budget * _SAVING_FRACTION_MIN else None
        return draft

    def only_grows(
        self, prompt_ref: PromptReference, call_budget: CallBudget, *, characters: int
    ) -> bool:
        """Whether the next context is the last one and what is new since, and no epoch is due:
        then it is made quickly. `characters`: about how many are new."""
        compiled, budget = self._compiled, call_budget.budget_tokens
        if compiled is None or budget is None or len(compiled.messages) > _QUICK_MESSAGES_MAX:
            return False
        if compiled.tokens + call_budget.tools_tokens + characters > call_budget.threshold * budget:
            return False
        if self._change_due(prompt_ref, call_budget) is not None:
            return False
        missing = compiled.turns_missing(self._current_source(prompt_ref, call_budget))
        return missing is not None and missing <= _TURNS_UNCHECKED_MAX

    def _change_due(
        self, prompt_ref: PromptReference, call_budget: CallBudget
    ) -> EpochReason | None:
        """Looked up once for as long as it is sure to stay `None`, and once for each entry that
        is added meanwhile."""
        history, digest = self.history, call_budget.offer.digest
        now = (history.changed_seq, digest)
        if self._unchanged == now:
            return None
        key = (history.head_seq, prompt_ref, digest)
        if self._last_change is not None and self._last_change[0] == key:
            return self._last_change[1]
        change = _find_change(history, prompt_ref, call_budget)
        self._last_change = (key, change)
        epoch_seq = history.epoch.seq if history.epoch is not None else 0
        is_settled = history.turns_max is None and not _is_running(history, prompt_ref)
        if change is None and is_settled and _may_have_been_sent(history, epoch_seq):
            self._unchanged = now
        return change

    def epoch_for(
        self,
        reason: EpochReason,
        call_budget: CallBudget,
        *,
        prompt_ref: PromptReference = None,
        screen: str = "",
    ) -> EpochEntry:
        """A draft of an epoch, also for a change that is not an entry, so that `due_epoch`
        can't see it. Plans all turns in memory anew: turns that an earlier epoch left out are
        shown again if there is room. `omitted_through` is the entry right before the first
        turn that is shown, so that opening the conversation reads no further back. Unfinished
        turns will be shown live."""
        history, budget = self.history, call_budget.budget_tokens or 0
        if reason != "asked":
            budget = max(budget, _recent_budget(history, prompt_ref))
        draft = EpochEntry(reason=reason, budget_tokens=budget, screen=screen)
        source = self._source_in(draft, prompt_ref, call_budget)
        own = source.steps(source.own_steps())
        plan = plan_epoch(
            source.turns(newest_first=True),
            budget=budget,
            fixed=call_budget.tools_tokens
            + source.head_tokens_max()
            + tokens_of([*source.system(), *own]),
            tokens=source.turn_tokens,
            keep=call_budget.keep,
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

    def asked_epoch(self, call_budget: CallBudget, *, screen: str = "") -> EpochEntry:
        """A draft of the epoch for COMPACT. Uses a fresh summary if there is one; otherwise
        halves the tokens of older turns."""
        epoch = self.history.epoch
        if any(entry.seq > (epoch.seq if epoch else 0) for entry in self.history.compactions):
            return self.epoch_for("asked", call_budget, screen=screen)
        now = self._source_in(epoch, None, call_budget)
        tokens = self._next_tokens(now, keep=True)
        fixed = call_budget.tools_tokens + tokens_of([*now.system(), *now.head()])
        half = fixed + max(0, tokens - fixed) // 2
        halved = structs.replace(call_budget, budget_tokens=int(half / call_budget.keep))
        draft = self.epoch_for("asked", halved, screen=screen)
        return structs.replace(draft, budget_tokens=call_budget.budget_tokens or 0)

    def summary_task(
        self, prompt_ref: PromptReference, draft: EpochEntry, *, room: int | None = None
    ) -> SummaryTask | None:
        """What a model would have to summarize, so that the epoch can show a summary instead
        of turns in less detail; `None` if there is nothing. `room`: how many tokens the model
        may be given; the turns are planned as in an epoch that would use all of it."""
        source = self._source_in(draft, prompt_ref, _EVERYTHING)
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
            plan = plan_epoch(
                reversed(turns), budget=room - fixed, fixed=0, tokens=tokens, keep=1.0
            )
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

    def _next_tokens(self, source: ContextSource, *, keep: bool) -> int:
        """The tokens of the next context; the budget plus one if the context does not fit."""
        compiled = self._compile(source, keep=keep)
        if compiled is None:
            return (source.call_budget.budget_tokens or 0) + 1
        return compiled.tokens + source.call_budget.tools_tokens

    def _compile(self, source: ContextSource, *, keep: bool) -> GrowingContext | None:
        """The messages of the source; `None` if they do not fit. `keep`: the next context
        extends this one."""
        compiled = self._compiled if keep else None
        if compiled is None or compiled.source is not source:
            missing = None if compiled is None else compiled.turns_missing(source)
            is_short = missing is not None and missing <= _TURNS_UNCHECKED_MAX
            if not is_short and source.is_too_long():
                return None
            if compiled is None or missing is None:
                compiled = GrowingContext(source)
            if keep:
                self._compiled = compiled
            compiled.extend(source)
        room = source.call_budget.room
        return compiled if room is None or compiled.tokens <= room else None

    def _current_source(
        self, prompt_ref: PromptReference, call_budget: CallBudget
    ) -> ContextSource:
        """The source in the current epoch. The last one is kept, because each call needs it
        twice: for the epoch that is due, and for the context."""
        history = self.history
        if isinstance(prompt_ref, ModelInputEntry):
            return self._source_in(history.epoch, prompt_ref, call_budget)
        key = (history.head_seq, history.first_seq, prompt_ref, call_budget)
        if self._source is None or self._source_key != key:
            self._source = self._source_in(history.epoch, prompt_ref, call_budget)
            self._source_key = key
        return self._source

    def _source_in(
        self, epoch: EpochEntry | None, prompt_ref: PromptReference, call_budget: CallBudget
    ) -> ContextSource:
        """The source of the next call. `epoch` may be a draft: the source is the one after it
        is written. An unknown turn id counts as a turn that is yet to come."""
        history = self.history
        if epoch is not None and not epoch.seq:
            # The prompt may be a draft too, and is written before the epoch.
            epoch = structs.replace(epoch, seq=history.head_seq + 2)
        if isinstance(prompt_ref, ModelInputEntry):
            prompt = structs.replace(prompt_ref, seq=history.head_seq + 1)
            own: Turn | None = Turn(number=prompt.seq, prompt=prompt, entries=[prompt])
        else:
            own = None if prompt_ref is None else history.turn(prompt_ref)
        number = history.head_seq + 1 if own is None else own.number
        selection = select(history, epoch, number=number)
        shown, first, until = history.shown_turns, selection.first, selection.until
        if epoch is history.epoch:
            after_seq, quarantined = self.screens.basis()
            screen = self.screens.before(shown[first].number if first < until else number)
            before_own = self.screens.before(number)
        else:  # a draft, with a screen of its own
            after_seq, quarantined = screens_after(history, epoch), frozenset(history.quarantined)
            screen = before_own = epoch.screen if epoch is not None else ""
        screen_seqs = screen_sources(history).values() if screen and epoch is None else ()
        most = history.turns_max
        is_windowed = most is not None and (
            until > most or (until == most and history.first_seq > 1)
        )
        return ContextSource(
            measure=self.measure,
            call_budget=call_budget,
            head_seq=history.head_seq,
            instruction=history.system_instruction or "",
            selection=selection,
            shown_turns=shown,
            own=own,
            quarantined=quarantined,
            screen=screen or None,
            screen_before_own=before_own,
            screen_seq=max(screen_seqs, default=0),
            screens_after=after_seq,
            left_out=epoch.omitted_turns if epoch is not None else 0,
            turns_max=most if is_windowed else None,
        )
