"""Turns a history into the context of a call.

A conversation keeps one `Projection`, which adds only new entries to the context it built
last; a new `Projection` gives the same context. Under the policy `epochs` each context
begins with the previous one, unless an epoch entry came between. Under `newest_live` only
the newest entry is live. Before a call, `due_epoch` gives the epoch entry to write first, if
one is due: when the next context can't begin with the context that was sent last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias, TypeVar

from msgspec import Struct, structs

from nplt_server.context.epochs import draft_epoch, due_reason
from nplt_server.context.fit import fit
from nplt_server.context.messages import (
    Beginning,
    ContextMessage,
    KeptRenderings,
    ModelInputMessage,
)
from nplt_server.context.screens import ScreensInTurns
from nplt_server.context.selection import (
    CallBudget,
    ContextParts,
    ContextView,
    EpochPlan,
    HistoryAtCall,
    PromptReference,
    is_too_long,
    measure_head,
    measure_step,
    measure_steps,
    measure_system,
    measure_turn,
    measure_turns,
    notice_of,
    older_turns,
    own_steps,
    parts_after,
    parts_of,
    plan_levels,
    read_history,
    turn_counter,
    view_of,
    with_newest_live,
)
from nplt_server.context.steps import Measure, Measured, steps_from, tokens_of
from nplt_storage.entries import EpochEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import Turn

Policy: TypeAlias = Literal["epochs", "newest_live"]

_EVERYTHING: Final = CallBudget()
_SAVING_FRACTION_MIN: Final = 1 / 20
"""An epoch that frees a smaller fraction of the budget is not worth the loss of the provider's
cache."""
_COPIED_MAX: Final = 64
_T = TypeVar("_T")
_TURNS_UNCHECKED_MAX: Final = 16
"""The number of new turns that are added without a check first whether all of them fit."""


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
        self._growing: GrowingContext | None = None
        self._at: HistoryAtCall | None = None
        """The part of the history that was read last. A call asks more than once."""
        self._parts: tuple[ContextParts, HistoryAtCall] | None = None

    def context(
        self,
        prompt_ref: PromptReference,
        call_budget: CallBudget = _EVERYTHING,
        *,
        epoch: EpochEntry | None = None,
    ) -> ContextView:
        """A context that fits the budget; otherwise raises `WindowTooSmall`. `epoch`: a
        draft; the context is the one that will follow when the draft is written."""
        at = self._history_at(prompt_ref)
        if at.is_alone:
            return _prompt_alone(parts_of(at, call_budget, self.measure, self.screens))
        if epoch is None:
            parts = self._current_parts(at, call_budget)
        else:
            parts = parts_after(epoch, at, call_budget, self.measure)
        if self.policy == "newest_live":
            return _newest_live(parts)
        growing = self._grown(parts, keep=epoch is None)
        if growing is None:
            return fit(parts)
        return ContextView(
            messages=_beginning_of(growing.messages),
            sizes=_beginning_of(growing.sizes),
            tokens=growing.tokens + call_budget.tools_tokens,
            call_budget=call_budget,
            selection=parts.selection,
            has_head=growing.has_head,
            head_seq=at.head_seq,
            renderings=growing.renderings,
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
        at = self._history_at(prompt_ref)
        if at.is_alone:
            return None
        tokens = self._next_tokens(self._current_parts(at, call_budget), keep=True)
        reason = due_reason(at, call_budget, tokens=tokens)
        if reason is None:
            return None
        shown = screen if isinstance(screen, str) else screen()
        draft = draft_epoch(reason, at, call_budget, self.measure, screen=shown)
        if reason == "budget":
            parts = parts_after(draft, at, call_budget, self.measure)
            saved = tokens - self._next_tokens(parts, keep=False)
            return draft if saved >= budget * _SAVING_FRACTION_MIN else None
        return draft

    def only_grows(
        self, prompt_ref: PromptReference, call_budget: CallBudget, *, characters: int
    ) -> bool:
        """Whether the next context is the last one and what is new since, and no epoch is due:
        then it is made quickly. `characters`: about how many are new."""
        growing, budget = self._growing, call_budget.budget_tokens
        if growing is None or budget is None:
            return False
        if growing.tokens + call_budget.tools_tokens + characters > call_budget.threshold * budget:
            return False
        at = self._history_at(prompt_ref)
        if at.is_alone or due_reason(at, call_budget) is not None:
            return False
        missing = growing.turns_missing(self._current_parts(at, call_budget))
        return missing is not None and missing <= _TURNS_UNCHECKED_MAX

    def epoch_for(
        self,
        reason: str,
        call_budget: CallBudget,
        *,
        prompt_ref: PromptReference = None,
        screen: str = "",
    ) -> EpochEntry:
        """A draft of an epoch, also for a change that is not an entry, so that `due_epoch`
        can't see it."""
        at = self._history_at(prompt_ref)
        return draft_epoch(reason, at, call_budget, self.measure, screen=screen)

    def asked_epoch(self, call_budget: CallBudget, *, screen: str = "") -> EpochEntry:
        """A draft of the epoch for COMPACT. Uses a fresh summary if there is one; otherwise
        halves the tokens of older turns."""
        at = self._history_at(None)
        if any(entry.seq > at.epoch_seq for entry in at.compactions):
            return self.epoch_for("asked", call_budget, screen=screen)
        parts = self._current_parts(at, call_budget)
        tokens = self._next_tokens(parts, keep=True)
        head = [*measure_system(parts), *measure_head(parts)]
        fixed = call_budget.tools_tokens + tokens_of(head)
        half = fixed + max(0, tokens - fixed) // 2
        halved = structs.replace(call_budget, budget_tokens=int(half / call_budget.keep))
        draft = self.epoch_for("asked", halved, screen=screen)
        return structs.replace(draft, budget_tokens=call_budget.budget_tokens or 0)

    def summary_task(
        self, prompt_ref: PromptReference, draft: EpochEntry, *, room: int | None = None
    ) -> SummaryTask | None:
        """Returns the material for a summary, so that the epoch can show a summary instead
        of turns in less detail; `None` if there is nothing. `room`: how many tokens the model
        may be given; the turns are planned as in an epoch that would use all of it."""
        at = self._history_at(prompt_ref)
        parts = parts_after(draft, at, _EVERYTHING, self.measure)
        return _summary_task(structs.replace(parts, screens=False), draft.summary_through, room)

    def _next_tokens(self, parts: ContextParts, *, keep: bool) -> int:
        """The tokens of the next context; the budget plus one if the context does not fit."""
        growing = self._grown(parts, keep=keep)
        if growing is None:
            return (parts.call_budget.budget_tokens or 0) + 1
        return growing.tokens + parts.call_budget.tools_tokens

    def _grown(self, parts: ContextParts, *, keep: bool) -> GrowingContext | None:
        """The messages of these parts; `None` if they do not fit. `keep`: the next context
        extends this one."""
        growing = self._growing if keep else None
        if growing is None or growing.parts is not parts:
            missing = None if growing is None else growing.turns_missing(parts)
            if missing is None:
                is_long = parts.selection.first < parts.selection.until
            else:
                is_long = missing > _TURNS_UNCHECKED_MAX
            if is_long and is_too_long(parts):
                return None
            if growing is None or missing is None:
                growing = GrowingContext(parts)
            growing.extend(parts)
        budget = parts.call_budget.budget_tokens
        if budget is not None and growing.tokens + parts.call_budget.tools_tokens > budget:
            return None
        if keep:
            self._growing = growing
        return growing

    def _history_at(self, prompt_ref: PromptReference) -> HistoryAtCall:
        at = self._at
        if at is None or at.head_seq != self.history.head_seq or at.prompt_ref != prompt_ref:
            at = self._at = read_history(self.history, prompt_ref)
        return at

    def _current_parts(self, at: HistoryAtCall, call_budget: CallBudget) -> ContextParts:
        """The parts in the current epoch."""
        if self._parts is not None:
            parts, made_at = self._parts
            if made_at is at and parts.call_budget == call_budget:
                return parts
        parts = parts_of(at, call_budget, self.measure, self.screens)
        self._parts = (parts, at)
        return parts


class GrowingContext:
    """The context of an epoch: a list of messages that is only appended to, so that each call's
    context begins with the previous call's. Earlier turns come first, then the running turn's
    entries. A change that appending can't express (another epoch, a turn that ended out of order,
    a moved window) starts a new list."""

    def __init__(self, parts: ContextParts) -> None:
        self._basis = _basis(parts)
        self._shown: Sequence[Turn] = parts.shown_turns
        self._next = parts.selection.first
        """The place of the first shown turn that is not in the list."""
        self._open: Turn | None = None
        """The turn at the end of the list, to which steps may still be added."""
        self._open_begins = 0
        self._open_taken = 0
        """The open turn begins at the first place, and so many of its entries are in the list."""
        self.parts: ContextParts | None = None
        """The parts of the last `extend`."""
        self.messages: list[ContextMessage] = []
        self.sizes: list[int] = []
        self.tokens = 0
        self.renderings = KeptRenderings()
        head = measure_head(parts)
        self.has_head = bool(head)
        self._add([*measure_system(parts), *head])

    def turns_missing(self, parts: ContextParts) -> int | None:
        """How many turns have to be added for the context of these parts; `None` if it can't be
        made by appending to this list."""
        missing = parts.selection.until - self._next
        leads_there = parts.shown_turns is self._shown and missing >= 0
        return missing if leads_there and _basis(parts) == self._basis else None

    def extend(self, parts: ContextParts) -> None:
        self.parts = parts
        for place in range(self._next, parts.selection.until):
            turn = self._shown[place]
            level = parts.selection.level_of(turn)
            if level == "live":
                self._extend_turn(parts, turn)
            elif level is not None:
                self._drop_open_unless(None)
                self._add(measure_turn(parts, turn, level))
            self._open = None
        self._next = max(self._next, parts.selection.until)
        self._drop_open_unless(parts.own)
        if parts.own is not None:
            self._extend_turn(parts, parts.own)

    def _extend_turn(self, parts: ContextParts, turn: Turn) -> None:
        self._drop_open_unless(turn)
        if self._open is None:
            self._open, self._open_begins, self._open_taken = turn, len(self.messages), 0
        steps = steps_from(turn, parts.quarantined, self._open_taken)
        for step, self._open_taken in steps:
            self._add(measure_step(parts, step))

    def _drop_open_unless(self, turn: Turn | None) -> None:
        """Removes the open turn from the list, unless it is `turn`: another turn comes first."""
        if self._open is None or self._open is turn:
            return
        self.tokens -= sum(self.sizes[self._open_begins :])
        # Other lists: the contexts of earlier calls may still be in use.
        self.messages = self.messages[: self._open_begins]
        self.sizes = self.sizes[: self._open_begins]
        self._open = None

    def _add(self, added: Sequence[Measured]) -> None:
        for each in added:
            self.messages.append(each.message)
            self.sizes.append(each.tokens)
            self.tokens += each.tokens


def _beginning_of(items: list[_T]) -> Sequence[_T]:
    """Copies a short list, which is the quickest, and never a long one."""
    return tuple(items) if len(items) <= _COPIED_MAX else Beginning(items, len(items))


def _basis(parts: ContextParts) -> tuple[object, ...]:
    """Returns what the list depends on besides the turns. If it changes, a new list is needed."""
    return (
        parts.instruction,
        structs.replace(parts.selection, until=0),
        parts.quarantined,
        parts.without_pictures,
        parts.screens_after,
        parts.call_budget.takes_images,
        parts.call_budget.takes_pdfs,
        notice_of(parts),
    )


def _prompt_alone(parts: ContextParts) -> ContextView:
    """The context of a prompt without history: the instruction and its own turn. It counts as
    trimmed, so the next context need not begin with it."""
    none = structs.replace(
        parts.selection, plan=EpochPlan(), compaction=None, first=0, until=0, epoch_seq=0
    )
    alone = structs.replace(
        parts, selection=none, screen=None, screens=False, left_out=0, turns_max=None
    )
    if is_too_long(alone):
        return fit(alone)
    measured = [*measure_system(alone), *measure_steps(alone, own_steps(alone))]
    return view_of(alone, measured, has_head=False, is_trimmed=True)


def _newest_live(parts: ContextParts) -> ContextView:
    parts = with_newest_live(parts)
    if is_too_long(parts):
        return fit(parts)
    head, turns = measure_head(parts), measure_turns(parts, older_turns(parts))
    own = measure_steps(parts, own_steps(parts))
    return view_of(parts, [*measure_system(parts), *head, *turns, *own], has_head=bool(head))


class SummaryTask(Struct, frozen=True, kw_only=True):
    """The material that a model summarizes: the turns that the epoch will show in less detail, and
    the summary before them, which the new summary replaces. If they don't all fit, older turns
    are given in less detail and the oldest are left out; the summary then covers only the turns
    that were given."""

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
    """The tokens of the summary and the messages."""


def _summary_task(
    parts: ContextParts, summary_through: int, room: int | None
) -> SummaryTask | None:
    selection = parts.selection
    turns = _turns_to_summarize(parts, summary_through)
    shown_summary, fixed = None, 0
    if selection.summary:
        shown_summary = ModelInputMessage(seq=selection.epoch_seq, content=selection.summary)
        fixed = parts.measure.message(shown_summary).tokens
    plan = EpochPlan()
    if room is not None:
        tokens = turn_counter(parts)
        plan = plan_levels(reversed(turns), budget=room - fixed, fixed=0, tokens=tokens, keep=1.0)
    given = [turn for turn in turns if turn.number > plan.omitted_through]
    as_planned = structs.replace(parts, selection=structs.replace(selection, plan=plan))
    measured = measure_turns(as_planned, given)
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


def _turns_to_summarize(parts: ContextParts, summary_through: int) -> list[Turn]:
    covers, summary = parts.selection.covers, parts.selection.compaction
    # Turns older than the summary were left out when it was made, and can't follow it.
    oldest = 0 if summary is None else summary.from_seq + 1
    ended = [
        (turn, turn.end.seq)
        for turn in parts.shown_turns
        if turn.end and turn.number >= oldest and not covers(turn)
    ]
    through_seq = max((seq for turn, seq in ended if turn.number <= summary_through), default=0)
    # A prompt that was cancelled while it waited may have ended in between: the summary
    # will cover it too.
    return [turn for turn, seq in ended if seq <= through_seq]
