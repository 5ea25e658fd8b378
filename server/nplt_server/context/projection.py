"""Turns a history into the context of a call.

A conversation keeps one `Projection`, which adds only new entries to the context it built
last; a new `Projection` gives the same context. Under the policy `epochs` each context
begins with the previous one, unless an epoch entry came between. Under `newest_live` only
the newest entry is live. Before a call, `due_epoch` gives the epoch entry to write first, if
one is due.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from msgspec import structs

from nplt_server.context.epochs import (
    EpochReason,
    SummaryTask,
    change_due,
    exceeds_threshold,
    planned,
    recent_budget,
    stays_without_change,
    summary_task,
)
from nplt_server.context.fitting import fit
from nplt_server.context.messages import (
    ContextMessage,
    ScreensInTurns,
    screen_sources,
    screens_after,
    steps_from,
)
from nplt_server.context.source import (
    CallBudget,
    ContextSource,
    ContextView,
    Measure,
    Measured,
    PromptReference,
    select,
    tokens_of,
)
from nplt_storage.entries import EpochEntry, ModelInputEntry
from nplt_storage.history import ConversationHistory
from nplt_storage.turns import Turn

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
        self, history: ConversationHistory, measure: Measure, *, policy: Policy = "epochs"
    ) -> None:
        self.history = history
        self.measure = measure
        self.policy = policy
        self.screens = ScreensInTurns(history)
        self._compiled: GrowingContext | None = None
        self._source: ContextSource | None = None
        self._source_key: tuple[object, ...] = ()
        self._unchanged: tuple[int, str] | None = None
        """While the history's `changed_seq` and the tools on offer are these, no change makes
        an epoch due."""

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
            return aged.view(aged.everything(), has_head=bool(aged.head()))
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
        history, budget = self.history, call_budget.budget_tokens
        if self.policy == "newest_live" or budget is None:
            return None
        tokens = self._next_tokens(self._current_source(prompt_ref, call_budget), keep=True)
        reason = self._change_due(prompt_ref, call_budget)
        if reason is None and exceeds_threshold(
            history, prompt_ref, call_budget, next_tokens=tokens
        ):
            reason = "budget"
        if reason is None:
            return None
        shown = screen if isinstance(screen, str) else screen()
        draft = self._draft(reason, prompt_ref, call_budget, screen=shown)
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
        if compiled is None or budget is None or not self._is_unchanged(call_budget):
            return False
        if len(compiled.messages) > _QUICK_MESSAGES_MAX:
            return False
        if compiled.tokens + call_budget.tools_tokens + characters > call_budget.threshold * budget:
            return False
        missing = compiled.turns_missing(self._current_source(prompt_ref, call_budget))
        return missing is not None and missing <= _TURNS_UNCHECKED_MAX

    def _is_unchanged(self, call_budget: CallBudget) -> bool:
        return self._unchanged == (self.history.changed_seq, call_budget.offer.digest)

    def _change_due(
        self, prompt_ref: PromptReference, call_budget: CallBudget
    ) -> EpochReason | None:
        """Looked up once for as long as it stays `None`."""
        if self._is_unchanged(call_budget):
            return None
        history, tools_digest = self.history, call_budget.offer.digest
        change = change_due(history, prompt_ref, tools_digest=tools_digest)
        if change is None and stays_without_change(history, prompt_ref):
            self._unchanged = (history.changed_seq, tools_digest)
        return change

    def epoch_for(
        self, reason: EpochReason, call_budget: CallBudget, *, screen: str = ""
    ) -> EpochEntry:
        """A draft of an epoch for a change that is not an entry, so that `due_epoch` can't
        see it."""
        return self._draft(reason, None, call_budget, screen=screen)

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
        of turns in less detail; `None` if there is nothing."""
        return summary_task(self._source_in(draft, prompt_ref, _EVERYTHING), draft, room=room)

    def _draft(
        self,
        reason: EpochReason,
        prompt_ref: PromptReference,
        call_budget: CallBudget,
        *,
        screen: str,
    ) -> EpochEntry:
        budget = call_budget.budget_tokens or 0
        if reason != "asked":
            budget = max(budget, recent_budget(self.history, prompt_ref))
        draft = EpochEntry(reason=reason, budget_tokens=budget, screen=screen)
        return planned(draft, self._source_in(draft, prompt_ref, call_budget), self.history)

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
