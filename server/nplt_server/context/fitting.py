"""A context that fits, whatever there is: for the moment, and without a model.

For a window too small for the running epoch, a giant prompt, results that pile up
inside one turn. What goes first is what is missed least:

    older turns             as a new epoch would show them, down to none at all
    the head                cut to a quarter of the room
    the turn's older steps  to summary, to gist, and at last one by one
    its newest results      cut in their middle; they can be read by a tool
    the prompt              cut in its middle, last of all

Calls and their results come and go together. The same record gives the same
context. Only where the instruction and the tools alone don't fit, there is none.
The screen in force stands in the head: the entry that carried it may be gone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from nplt_server.context.cut_steps import cut_step, cut_text
from nplt_server.context.measuring import MESSAGE_TOKENS, Measured, tokens_of
from nplt_server.context.messages import ModelInputMessage
from nplt_server.context.plan import plan_epoch
from nplt_server.context.scene import Scene
from nplt_server.context.selection import Selection
from nplt_server.context.shortening import cut_middle
from nplt_server.context.steps import Step
from nplt_storage.facts.entries import ModelInputEntry
from nplt_storage.facts.sections import LevelOfDetail

_KEEP: Final = 0.7
"""Of the budget: it need not last, but should for a few calls of the same turn."""
_PROMPT_TOKENS_MIN: Final = 32
"""A prompt of which only a mark is left."""
_SHORTER: Final[tuple[LevelOfDetail, ...]] = ("summary", "gist")


class ContextTooSmall(Exception):
    """Whoever chose the model: take a larger one, or offer fewer tools."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"instruction and tools alone take {needed:,} of {budget:,} tokens, "
            "and leave no room for a prompt"
        )
        self.needed = needed
        self.budget = budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    measured: list[Measured]
    selection: Selection
    has_head: bool


def fit(scene: Scene, *, budget: int, tools_tokens: int) -> Fitted:
    scene = scene.with_screen_in_head()
    system = scene.system()
    room = budget - tools_tokens - tokens_of(system)
    if room < _PROMPT_TOKENS_MIN:
        raise ContextTooSmall(budget - room, budget)
    head = _fit_head(scene, room // 4)
    own = _fit_own(scene, room - tokens_of(head))
    fixed = budget - room + tokens_of(head)
    selection = _choose_turns(scene, own, budget=budget, fixed=fixed)
    turns = replace(scene, selection=selection).turn_messages()
    return Fitted(measured=[*system, *head, *turns, *own], selection=selection, has_head=bool(head))


def _choose_turns(scene: Scene, own: list[Measured], *, budget: int, fixed: int) -> Selection:
    """By the prompt alone where that will do: then the calls of a turn see the same
    older turns while its own entries grow."""
    all_own = tokens_of(own)
    selection = scene.selection
    for regarded in (tokens_of(own[:1]), all_own):
        plan = plan_epoch(
            scene.newest_first,
            budget=budget,
            fixed=fixed + regarded,
            tokens=scene.turn_tokens,
            keep=_KEEP,
        )
        selection = scene.selection.within(plan, scene.shown)
        turns = replace(scene, selection=selection).turn_messages()
        if fixed + all_own + tokens_of(turns) <= budget:
            break
    return selection


def _fit_head(scene: Scene, tokens_max: int) -> list[Measured]:
    head = scene.head()
    if tokens_of(head) <= tokens_max:
        return head
    message = head[0].message
    assert isinstance(message, ModelInputMessage)
    # The cut goes through both: whichever is long loses its middle.
    text = cut_middle(message.text, tokens_max - MESSAGE_TOKENS, count=scene.measure.text)
    cut = replace(message, content=text, live_screen=None, level="cut")
    return [scene.measure.message(cut)] if text else []


def _fit_own(scene: Scene, room: int) -> list[Measured]:
    steps = scene.own_steps()
    prompt: list[Step] = []
    if steps and isinstance(steps[0][0], ModelInputEntry):
        prompt, steps = steps[:1], steps[1:]
    asked = [measured for step in prompt for measured in scene.step(step, "live")]
    newest = steps[-1:]
    latest = [measured for step in newest for measured in scene.step(step, "live")]
    older = _fit_older(scene, steps[:-1], room, tokens_of(asked) + tokens_of(latest))
    left = room - tokens_of(older)
    if tokens_of(asked) + tokens_of(latest) > left:
        for_asked = min(tokens_of(asked), _PROMPT_TOKENS_MIN)
        for_latest = min(max(left - tokens_of(asked), left // 2), left - for_asked)
        latest = [cut for step in newest for cut in cut_step(scene, step, for_latest)]
        left -= tokens_of(latest)
        asked = [cut for measured in asked for cut in cut_text(measured, left, scene.measure)]
    return [*asked, *older, *latest]


def _fit_older(scene: Scene, steps: list[Step], room: int, others: int) -> list[Measured]:
    """Oldest first, they lose detail and then go, until there is room for the others
    or they take but a quarter of it."""
    shown = [scene.step(step, "live") for step in steps]
    tokens = sum(map(tokens_of, shown))
    for level in _SHORTER:
        for place, step in enumerate(steps):
            if tokens + others <= room:
                return [measured for step_shown in shown for measured in step_shown]
            shorter = scene.step(step, level)
            tokens += tokens_of(shorter) - tokens_of(shown[place])
            shown[place] = shorter
    quarter = min(room // 4, room - _PROMPT_TOKENS_MIN)
    while shown and tokens + others > room and tokens > quarter:
        tokens -= tokens_of(shown.pop(0))
    return [measured for step_shown in shown for measured in step_shown]
