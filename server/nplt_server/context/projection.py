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

from msgspec import Struct, structs

from nplt_server.context.epochs import (
    EpochReason,
    NextCall,
    SummaryTask,
    change_due,
    draft_epoch,
    exceeds_threshold,
    stays_without_change,
    summary_task,
)
from nplt_server.context.fitting import fit
from nplt_server.context.messages import ContextMessage, ScreensInTurns, steps_from
from nplt_server.context.source import (
    CallBudget,
    ContextSource,
    ContextView,
    Measure,
    Measured,
    PromptReference,
    tokens_of,
    view_of,
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


class _OpenTurn(Struct, kw_only=True):
    """The turn at the end of the list, to which steps may still be added."""

    turn: Turn
    begins_at: int
    tokens_before: int
    entries_taken: int = 0


class GrowingContext:
    __slots__ = (
        "_basis",
        "_next",
        "_open",
        "_shown",
        "has_head",
        "messages",
        "sizes",
        "source",
        "tokens",
    )

    def __init__(self, source: ContextSource) -> None:
        self._basis = _basis(source)
        self._shown: Sequence[Turn] = source.shown_turns
        self._next = source.selection.first
        """The place of the first shown turn that is not in the list."""
        self._open: _OpenTurn | None = None
        self.source: ContextSource | None = None
        """The source of the last `extend`."""
        self.messages: list[ContextMessage] = []
        self.sizes: list[int] = []
        self.tokens = 0
        head = source.head()
        self.has_head = bool(head)
        self._add([*source.system(), *head])

    def leads_to(self, source: ContextSource) -> bool:
        """Whether the source's context can be made by appending to this list."""
        return (
            source.shown_turns is self._shown
            and self._next <= source.selection.until
            and _basis(source) == self._basis
        )

    def turns_missing(self, source: ContextSource) -> int:
        """How many turns would be added."""
        return source.selection.until - self._next

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
        if self._open is not None:
            self._drop_open_unless(turn)
        if self._open is None:
            self._open = _OpenTurn(
                turn=turn, begins_at=len(self.messages), tokens_before=self.tokens
            )
        steps = steps_from(turn, source.quarantined, self._open.entries_taken)
        for step, self._open.entries_taken in steps:
            self._add(source.step(step, "live"))

    def _drop_open_unless(self, turn: Turn | None) -> None:
        """Removes the open turn from the list, unless it is `turn`: another turn comes first."""
        if self._open is None or self._open.turn is turn:
            return
        del self.messages[self._open.begins_at :]
        del self.sizes[self._open.begins_at :]
        self.tokens = self._open.tokens_before
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
        source.takes_images,
        source.notice,
    )


Policy: TypeAlias = Literal["epochs", "newest_live"]
_SourceKey: TypeAlias = tuple[int, int, str | None, bool, str]

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

    __slots__ = (
        "_compiled",
        "_source",
        "_source_key",
        "_unchanged",
        "history",
        "measure",
        "policy",
        "screens",
    )

    def __init__(
        self, history: ConversationHistory, measure: Measure, *, policy: Policy = "epochs"
    ) -> None:
        self.history = history
        self.measure = measure
        self.policy = policy
        self.screens = ScreensInTurns(history)
        self._compiled: GrowingContext | None = None
        self._source: ContextSource | None = None
        self._source_key: _SourceKey | None = None
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
        source = (
            self._source_of(prompt_ref, call_budget)
            if epoch is None
            else self._call(prompt_ref, call_budget).source(epoch)
        )
        view = self._view(source, call_budget, keep=epoch is None)
        return structs.replace(view, head_seq=self.history.head_seq)

    def _view(self, source: ContextSource, call_budget: CallBudget, *, keep: bool) -> ContextView:
        if self.policy == "newest_live":
            return _newest_live(source, call_budget)
        compiled = self._compile(source, call_budget, keep=keep)
        if compiled is None:
            return fit(source, call_budget)
        return ContextView(
            messages=compiled.messages[:],
            sizes=compiled.sizes[:],
            tokens=compiled.tokens + call_budget.tools_tokens,
            call_budget=call_budget,
            selection=source.selection,
            has_head=compiled.has_head,
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
        call = self._call(prompt_ref, call_budget)
        now = self._source_of(prompt_ref, call_budget)
        tokens = self._next_tokens(now, call_budget, keep=True)
        reason = self._change_due(call)
        if reason is None and exceeds_threshold(call, next_tokens=tokens):
            reason = "budget"
        if reason is None:
            return None
        draft = draft_epoch(call, reason, screen=screen if isinstance(screen, str) else screen())
        if reason == "budget":
            then = self._next_tokens(call.source(draft), call_budget, keep=False)
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
        source = self._source_of(prompt_ref, call_budget)
        return compiled.leads_to(source) and compiled.turns_missing(source) <= _TURNS_UNCHECKED_MAX

    def _is_unchanged(self, call_budget: CallBudget) -> bool:
        return self._unchanged == (self.history.changed_seq, call_budget.offer.digest)

    def _change_due(self, call: NextCall) -> EpochReason | None:
        """Looked up once for as long as it stays `None`."""
        if self._is_unchanged(call.call_budget):
            return None
        change = change_due(call)
        if change is None and stays_without_change(call):
            self._unchanged = (self.history.changed_seq, call.call_budget.offer.digest)
        return change

    def epoch_for(
        self, reason: EpochReason, call_budget: CallBudget, *, screen: str = ""
    ) -> EpochEntry:
        """A draft of an epoch for a change that is not an entry, so that `due_epoch` can't
        see it."""
        return draft_epoch(self._call(None, call_budget), reason, screen=screen)

    def asked_epoch(self, call_budget: CallBudget, *, screen: str = "") -> EpochEntry:
        """A draft of the epoch for COMPACT. Uses a fresh summary if there is one; otherwise
        halves the tokens of older turns."""
        epoch = self.history.epoch
        if any(entry.seq > (epoch.seq if epoch else 0) for entry in self.history.compactions):
            return draft_epoch(self._call(None, call_budget), "asked", screen=screen)
        now = self._call(None, call_budget).source(epoch)
        tokens = self._next_tokens(now, call_budget, keep=True)
        fixed = call_budget.tools_tokens + tokens_of([*now.system(), *now.head()])
        half = fixed + max(0, tokens - fixed) // 2
        halved = structs.replace(call_budget, budget_tokens=int(half / call_budget.keep))
        draft = draft_epoch(self._call(None, halved), "asked", screen=screen)
        return structs.replace(draft, budget_tokens=call_budget.budget_tokens or 0)

    def summary_task(
        self, prompt_ref: PromptReference, draft: EpochEntry, *, room: int | None = None
    ) -> SummaryTask | None:
        """What a model would have to summarize, so that the epoch can show a summary instead
        of turns in less detail; `None` if there is nothing."""
        return summary_task(self._call(prompt_ref, _EVERYTHING).source(draft), draft, room=room)

    def _call(self, prompt_ref: PromptReference, call_budget: CallBudget) -> NextCall:
        return NextCall(
            history=self.history,
            screens=self.screens,
            measure=self.measure,
            prompt_ref=prompt_ref,
            call_budget=call_budget,
        )

    def _source_of(self, prompt_ref: PromptReference, call_budget: CallBudget) -> ContextSource:
        """The source in the current epoch. The last one is kept, because each call needs it
        twice: for the epoch that is due, and for the context."""
        history = self.history
        if isinstance(prompt_ref, ModelInputEntry):
            return self._call(prompt_ref, call_budget).source(history.epoch)
        reach, offer = (history.head_seq, history.first_seq), call_budget.offer.digest
        key = (*reach, prompt_ref, call_budget.takes_images, offer)
        if self._source is None or self._source_key != key:
            self._source = self._call(prompt_ref, call_budget).source(history.epoch)
            self._source_key = key
        return self._source

    def _next_tokens(self, source: ContextSource, call_budget: CallBudget, *, keep: bool) -> int:
        """The tokens of the next context; the budget plus one if the context does not fit."""
        compiled = self._compile(source, call_budget, keep=keep)
        if compiled is None:
            return (call_budget.budget_tokens or 0) + 1
        return compiled.tokens + call_budget.tools_tokens

    def _compile(
        self, source: ContextSource, call_budget: CallBudget, *, keep: bool
    ) -> GrowingContext | None:
        """The messages of the source; `None` if they do not fit. `keep`: the next context
        extends this one."""

        compiled = self._compiled if keep else None
        room = _room(call_budget)
        if compiled is not None and compiled.source is source:
            return compiled if room is None or compiled.tokens <= room else None
        if compiled is not None and not compiled.leads_to(source):
            compiled = None
        if (
            compiled is None or compiled.turns_missing(source) > _TURNS_UNCHECKED_MAX
        ) and _is_too_long(source, call_budget):
            return None
        if compiled is None:
            compiled = GrowingContext(source)
        if keep:
            self._compiled = compiled
        compiled.extend(source)
        return compiled if room is None or compiled.tokens <= room else None


def _newest_live(source: ContextSource, call_budget: CallBudget) -> ContextView:
    aged = source.aged()
    if _is_too_long(aged, call_budget):
        return fit(aged, call_budget)
    return view_of(aged.everything(), call_budget, aged.selection, has_head=bool(aged.head()))


def _room(call_budget: CallBudget) -> int | None:
    return (
        None
        if call_budget.budget_tokens is None
        else call_budget.budget_tokens - call_budget.tools_tokens
    )


def _is_too_long(source: ContextSource, call_budget: CallBudget) -> bool:
    room = _room(call_budget)
    return room is not None and source.tokens(room) > room
