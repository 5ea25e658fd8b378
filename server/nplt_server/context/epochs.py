"""When a new epoch must begin, and what it looks like.

What was sent last is known from the record: the newest output says which entry was
the last when its context was compiled; what came while the model was answering it
has not seen. Of what was taken back, only that it was is regarded: who opens the
conversation from its end knows no more. A new epoch is due when the next context
can't begin with that, and the epoch in force is not already the answer to it:

    clear rollback quarantine system   such an entry came since
    compaction  there is a summary the epoch does not show; not inside a turn, which
              goes on from what it has seen
    tools     other tools are offered than then
    reach     turns the epoch shows are no longer held: the record is long, and was
              opened from its end
    window    more turns than the window shows, for the first time: from here on it
              moves with every turn, and no context begins with the last one
    budget    the next context would fill the budget too far

Somebody may ask for one (`asked`), and erasing words begins one (`redaction`), or so many
pictures that older ones are put away (`pictures`): what was sent can't be sent again. So
does a provider that no longer takes the thoughts its model sealed (`reasoning`): no epoch
shows those of the one before.

A model with a smaller window than those used of late never causes a budget epoch;
it gets a context trimmed for the moment. Otherwise two models in turns would
begin an epoch with each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, takewhile
from typing import Final, Literal, TypeAlias

from nplt_server.context.measuring import Measure, tokens_of
from nplt_server.context.plan import plan_epoch
from nplt_server.context.scene import Asked, Scene, set_scene
from nplt_server.context.screens import ScreensInTurns
from nplt_server.context.selection import EpochPlan
from nplt_server.context.views import CallFrame
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.facts.entries import (
    ClearEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    SystemInstructionEntry,
)

EpochReason: TypeAlias = Literal[
    "budget",
    "compaction",
    "clear",
    "rollback",
    "quarantine",
    "system",
    "tools",
    "window",
    "reach",
    "asked",
    "redaction",
    "pictures",
    "reasoning",
]

_CHANGES: Final[dict[type[Entry], EpochReason]] = {
    ClearEntry: "clear",
    QuarantineEntry: "quarantine",
    SystemInstructionEntry: "system",
}
_SMALLER: Final = 0.75
"""Budgets are corrected by what providers report: a little less is no other model."""
_LATELY: Final = 3
"""Turns. Who stays with a smaller model gets an epoch that fits it after so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """The call that is about to be made."""

    history: ConversationHistory
    screens: ScreensInTurns
    measure: Measure
    asked: Asked
    frame: CallFrame

    @property
    def budget(self) -> int:
        return self.frame.budget_tokens or 0

    def scene(self, epoch: EpochEntry | None) -> Scene:
        """With an epoch that is not written yet: as it will be."""
        if epoch is not None and not epoch.seq:
            # After the prompt, if that is a draft too.
            epoch = replace(epoch, seq=self.history.head_seq + 2)
        return set_scene(
            self.history,
            self.asked,
            screens=self.screens,
            measure=self.measure,
            epoch=epoch,
            takes_images=self.frame.takes_images,
        )


def epoch_due(call: Call, *, next_tokens: int) -> EpochReason | None:
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
    if sent is not None and sent.tools_digest != call.frame.offer.digest:
        return "tools"
    if not _is_held(call, epoch):
        return "reach"
    if _begins_to_slide(call, epoch):
        return "window"
    is_full = next_tokens > call.frame.threshold * call.budget
    return "budget" if is_full and call.budget >= _SMALLER * _budget_of_late(call) else None


def draft_epoch(call: Call, reason: EpochReason, *, screen: str) -> EpochEntry:
    """Planned anew over all that is held: what an earlier epoch left out may come back
    where there is room for it."""
    budget = call.budget if reason == "asked" else max(call.budget, _budget_of_late(call))
    draft = EpochEntry(reason=reason, budget_tokens=budget, screen=screen)
    scene = call.scene(draft)
    own = [measured for step in scene.own_steps() for measured in scene.step(step, "live")]
    plan = plan_epoch(
        scene.newest_first,
        budget=budget,
        fixed=call.frame.tools_tokens + tokens_of([*scene.system(), *scene.head(), *own]),
        tokens=scene.turn_tokens,
        keep=call.frame.keep,
    )
    return _with_plan(draft, plan, call.history, scene)


def _with_plan(
    draft: EpochEntry, plan: EpochPlan, history: ConversationHistory, scene: Scene
) -> EpochEntry:
    """What is left out ends right before what is shown, so that whoever opens the
    conversation knows where to stop. What has not ended will be shown live."""
    shown = (turn.number for turn in scene.turns if turn.number > plan.omitted_through)
    open_numbers = [prompt.seq for prompt in history.unfinished_turns()]
    if scene.own is not None:
        open_numbers.append(scene.own.number)
    needed = [*open_numbers, *islice(shown, 1)]
    if needed:
        omitted = min(needed) - 1
    elif scene.selection.until:
        omitted = scene.shown[scene.selection.until - 1].number
    else:
        omitted = history.head_seq
    last = min(open_numbers, default=history.head_seq + 1) - 1
    gist = max(omitted, min(plan.gist_through, last))
    return replace(
        draft,
        omitted_through=omitted,
        gist_through=gist,
        summary_through=max(gist, min(plan.summary_through, last)),
    )


def _newest_outputs(history: ConversationHistory) -> Iterator[ModelOutputEntry]:
    return (entry for entry in _newest_first(history) if isinstance(entry, ModelOutputEntry))


def _newest_first(history: ConversationHistory) -> Iterator[Entry]:
    """Of those that stand."""
    return reversed(history.standing)


def _begins_turn(call: Call) -> bool:
    return not isinstance(call.asked, str) or call.history.turn_state(call.asked) != "running"


def _may_have_been_sent(history: ConversationHistory, epoch_seq: int) -> bool:
    """Anything at all in this epoch. Where no answer is held, one may lie further back
    or have been taken back, or a call may have failed."""
    if history.first_seq > epoch_seq + 1 or _rollback_seq(history) > epoch_seq:
        return True
    since = takewhile(lambda entry: entry.seq > epoch_seq, _newest_first(history))
    tells = ModelOutputEntry | FaultEntry | QuarantineEntry
    return any(isinstance(entry, tells) for entry in since)


def _seen_through(history: ConversationHistory) -> int:
    """The newest entry that models were shown the effects of."""
    last = next(_newest_outputs(history), None)
    if last is not None:
        return (last.sent.head_seq if last.sent is not None else 0) or last.seq
    if history.hidden:
        return 0  # whatever was sent has been taken back
    prompts = (entry.seq for entry in history.standing if isinstance(entry, ModelInputEntry))
    return next(prompts, 0)


def _rollback_seq(history: ConversationHistory) -> int:
    """Of the newest one, 0 without any. It hides itself, so that who opened the
    conversation from its end may not hold it; but where it stands is known."""
    return history.hidden[-1][1] if history.hidden else 0


def _change_since(history: ConversationHistory, seq: int) -> EpochReason | None:
    rollback_seq = _rollback_seq(history)
    for entry in _newest_first(history):
        if entry.seq <= max(seq, rollback_seq):
            break
        if type(entry) in _CHANGES:
            return _CHANGES[type(entry)]
    return "rollback" if rollback_seq > seq else None


def _is_held(call: Call, epoch: EpochEntry | None) -> bool:
    history = call.history
    if history.first_seq <= (epoch.omitted_through if epoch is not None else 0) + 1:
        return True
    return history.turns_max is not None and _seen(call) >= history.turns_max


def _begins_to_slide(call: Call, epoch: EpochEntry | None) -> bool:
    turns_max = call.history.turns_max
    if turns_max is None or _seen(call) <= turns_max:
        return False
    if epoch is None:
        return True
    # Had the epoch begun with more turns than the window shows, it moved already.
    end = call.history.shown_turns[turns_max].end
    return epoch.reason != "window" and end is not None and end.seq > epoch.seq


def _seen(call: Call) -> int:
    """How many turns there are to be shown, the window apart."""
    return call.scene(call.history.epoch).selection.until


def _budget_of_late(call: Call) -> int:
    """The largest of those the last few turns, but for this one, were sent with."""
    budgets = [0]
    turns: set[str | None] = set()
    for output in _newest_outputs(call.history):
        if output.turn_id != call.asked:
            turns.add(output.turn_id)
            if len(turns) > _LATELY:
                break
            budgets.append(output.sent.budget_tokens if output.sent is not None else 0)
    return max(budgets)
