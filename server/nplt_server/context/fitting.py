"""Fits a context into a window for one call, without a model and without a new epoch.

Chooses turns and levels of detail, then cuts the steps of the running turn in fair shares.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import structs

from nplt_server.context.messages import (
    ContextStep,
    ModelInputMessage,
    ModelOutputMessage,
    ToolResultsMessage,
    cut_middle,
    left_out,
    without_contents,
)
from nplt_server.context.source import (
    CALL_TOKENS,
    MESSAGE_TOKENS,
    CallBudget,
    ContextSource,
    ContextView,
    Measure,
    Measured,
    Selection,
    plan_epoch,
    tokens_of,
    view_of,
)
from nplt_storage.entries import LevelOfDetail, ModelInputEntry, ToolCallResult

# ------------------------------------------------------------------------------
# Cutting the steps of a running turn
#
# A cut result says how to read the rest. If not even that fits, the whole step is left out:
# providers refuse a tool call without its result.


def cut_step(source: ContextSource, step: ContextStep, tokens_max: int) -> list[Measured]:
    live = source.step(step, "live")
    if tokens_of(live) <= tokens_max:
        return live
    if not isinstance(live[-1].message, ToolResultsMessage):
        rest = live[1:]  # of a rejected answer: the request to mend it
        cut = cut_text(live[0], tokens_max - tokens_of(rest), source.measure)
        return [*cut, *rest] if cut else []
    output = _output_within(source, step, tokens_max // 4)
    results = _cut_results(live[1], tokens_max - output.tokens, source.measure)
    return [] if results is None else [output, results]


def cut_text(measured: Measured, tokens_max: int, measure: Measure) -> list[Measured]:
    """A prompt or an answer, cut in its middle; an empty list if there is no room for it."""
    message, tokens = measured.message, measured.tokens
    if tokens <= tokens_max:
        return [measured]
    if not isinstance(message, ModelInputMessage | ModelOutputMessage):
        return []
    taken = MESSAGE_TOKENS
    if isinstance(message, ModelInputMessage) and (message.attachments or message.schema):
        bare = without_contents(message.attachments, "attachment_no_room")
        message = structs.replace(message, attachments=bare, schema="", level="cut")
        measured = measure.message(message)
        if measured.tokens <= tokens_max:
            return [measured]
        taken = measured.tokens - measure.text(message.content)
    content = cut_middle(message.content, tokens_max - taken, count=measure.text)
    return (
        [measure.message(structs.replace(message, content=content, level="cut"))] if content else []
    )


def _output_within(source: ContextSource, step: ContextStep, tokens_max: int) -> Measured:
    """The output and its tool calls, in as much detail as fits; at least its gist."""
    output = source.step(step[:1], "live")[0]
    if output.tokens > tokens_max:
        output = source.step(step[:1], "summary")[0]
    if output.tokens > tokens_max:
        output = source.step(step[:1], "gist")[0]
    return output


def _cut_results(measured: Measured, tokens_max: int, measure: Measure) -> Measured | None:
    message = measured.message
    assert isinstance(message, ToolResultsMessage)
    marks = MESSAGE_TOKENS + len(message.results) * CALL_TOKENS
    sizes = [measure.text(result.result) for result in message.results]
    results: list[ToolCallResult] = []
    shares = fair_shares(sizes, tokens_max - marks)
    for result, size, share in zip(message.results, sizes, shares, strict=True):
        text = result.result if size <= share else _cut_result(result, share, measure)
        if result.result and not text:
            return None
        results.append(structs.replace(result, result=text))
    bare = structs.replace(message, results=tuple(results), images=(), level="cut")
    return measure.message(bare)


def _cut_result(result: ToolCallResult, tokens_max: int, measure: Measure) -> str:
    def readable(characters: int) -> str:
        how = f'read_result reads them, tool_call_id "{result.tool_call_id}"'
        return f"[… {characters:,} characters left out: {how} …]"

    for mark in (readable, left_out):
        text = cut_middle(result.result, tokens_max, count=measure.text, mark=mark)
        if text:
            return text
    return ""


def fair_shares(sizes: Sequence[int], room: int) -> list[int]:
    """Divides the room: sizes below an equal share are granted in full, the others share
    the rest equally."""
    shares = [0] * len(sizes)
    left = max(0, room)
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, place in enumerate(smallest_first):
        shares[place] = min(sizes[place], left // (len(sizes) - done))
        left -= shares[place]
    return shares


# ------------------------------------------------------------------------------
# Fitting, without a model, for this call only
#
# For a window too small for the running epoch, a giant prompt, or results that pile up inside
# one turn. In this order:
#
#     older turns             as a new epoch would show them, down to none
#     the head                cut to a quarter of the room
#     the turn's older steps  to summary, to gist, then removed one by one
#     its newest results      cut in their middle; a tool can read the rest
#     the prompt              cut in its middle, last
#
# Tool calls and results stay together. The same record gives the same context. If the
# instruction and the tools alone don't fit, `ContextTooSmall` is raised. The current live
# screen is shown in the head.

_KEEP: Final = 0.7
"""How much of the budget is filled, so that a few more calls of the same turn fit."""
_PROMPT_TOKENS_MIN: Final = 32
"""Enough for the mark that replaces the middle of a prompt."""
_SHORTER: Final[tuple[LevelOfDetail, ...]] = ("summary", "gist")


class ContextTooSmall(Exception):
    """The instruction and the tools exceed the budget. The user has to choose a model with a
    larger window, or offer fewer tools."""

    def __init__(self, needed: int, budget: int) -> None:
        super().__init__(
            f"instruction and tools alone take {needed:,} of {budget:,} tokens, "
            "and leave no room for a prompt; shorten the instruction or choose another model"
        )
        self.needed = needed
        self.budget = budget


def fit(source: ContextSource, call_budget: CallBudget) -> ContextView:
    assert call_budget.budget_tokens is not None
    budget = call_budget.budget_tokens
    source = source.with_screen_in_head()
    system = source.system()
    room = budget - call_budget.tools_tokens - tokens_of(system)
    if room < _PROMPT_TOKENS_MIN:
        raise ContextTooSmall(budget - room, budget)
    head_room = min(source.head_tokens_max(), room // 4)
    own = _fit_own(source, room - head_room)
    fixed = budget - room + head_room
    selection = _choose_turns(source, own, budget=budget, fixed=fixed)
    source = source.with_selection(selection)
    turns = source.messages_of(source.turns)
    head = _fit_head(source, head_room)
    return view_of(
        [*system, *head, *turns, *own],
        call_budget,
        selection,
        has_head=bool(head),
        is_trimmed=True,
    )


def _choose_turns(
    source: ContextSource, own: list[Measured], *, budget: int, fixed: int
) -> Selection:
    """Chooses the older turns by the size of the prompt alone if the rest of the running
    turn fits too: then all calls of the turn see the same older turns."""
    all_own = tokens_of(own)
    selection = source.selection
    for regarded in (tokens_of(own[:1]), all_own):
        plan = plan_epoch(
            source.newest_first,
            budget=budget,
            fixed=fixed + regarded,
            tokens=source.turn_tokens,
            keep=_KEEP,
        )
        selection = source.selection.within(plan, source.shown_turns)
        turns = _turn_messages(source, selection)
        if fixed + all_own + tokens_of(turns) <= budget:
            break
    return selection


def _turn_messages(source: ContextSource, selection: Selection) -> list[Measured]:
    chosen = structs.replace(source, selection=selection)
    return chosen.messages_of(chosen.turns)


def _fit_head(source: ContextSource, tokens_max: int) -> list[Measured]:
    head = source.head()
    if tokens_of(head) <= tokens_max:
        return head
    message = head[0].message
    assert isinstance(message, ModelInputMessage)
    # Summary and screen are cut as one text.
    text = cut_middle(message.text, tokens_max - MESSAGE_TOKENS, count=source.measure.text)
    cut = structs.replace(message, content=text, live_screen=None, level="cut")
    return [source.measure.message(cut)] if text else []


def _fit_own(source: ContextSource, room: int) -> list[Measured]:
    steps = source.own_steps()
    prompt: list[ContextStep] = []
    if steps and isinstance(steps[0][0], ModelInputEntry):
        prompt, steps = steps[:1], steps[1:]
    newest = steps[-1:]
    prompt_messages, latest = source.steps(prompt), source.steps(newest)
    older = _fit_older(source, steps[:-1], room, tokens_of(prompt_messages) + tokens_of(latest))
    left = room - tokens_of(older)
    if tokens_of(prompt_messages) + tokens_of(latest) > left:
        for_prompt = min(tokens_of(prompt_messages), _PROMPT_TOKENS_MIN)
        for_latest = min(max(left - tokens_of(prompt_messages), left // 2), left - for_prompt)
        latest = [cut for step in newest for cut in cut_step(source, step, for_latest)]
        left -= tokens_of(latest)
        prompt_messages = [
            cut for measured in prompt_messages for cut in cut_text(measured, left, source.measure)
        ]
    return [*prompt_messages, *older, *latest]


def _fit_older(
    source: ContextSource, steps: list[ContextStep], room: int, others: int
) -> list[Measured]:
    """Shortens the steps, oldest first, and then removes them, until the others fit or the
    steps take no more than a quarter of the room."""

    shown = [source.step(step, "live") for step in steps]
    tokens = sum(map(tokens_of, shown))
    for level in _SHORTER:
        for place, step in enumerate(steps):
            if tokens + others <= room:
                return [measured for step_shown in shown for measured in step_shown]
            shorter = source.step(step, level)
            tokens += tokens_of(shorter) - tokens_of(shown[place])
            shown[place] = shorter
    quarter = min(room // 4, room - _PROMPT_TOKENS_MIN)
    while shown and tokens + others > room and tokens > quarter:
        tokens -= tokens_of(shown.pop(0))
    return [measured for step_shown in shown for measured in step_shown]
