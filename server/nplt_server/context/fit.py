"""Shortens a context that does not fit, without a model and for one call only.

For a window too small for the running epoch, a giant prompt, or results that pile up inside one
turn. In this order:

    older turns             as a new epoch would show them, down to none
    the head                cut to a quarter of the room
    the turn's older steps  to summary, to gist, then removed one by one
    its newest results      cut in their middle; a tool can read the rest
    the prompt              cut in its middle, last

Tool calls and results stay together. The same record gives the same context. The current live
screen is shown in the head. If the instruction and the tools alone don't fit, `WindowTooSmall`
is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

from msgspec import structs

from nplt_server.context.messages import (
    CALL_TOKENS,
    MESSAGE_TOKENS,
    ModelInputMessage,
    ModelOutputMessage,
    ToolResultsMessage,
)
from nplt_server.context.selection import (
    ContextParts,
    ContextView,
    Selection,
    head_tokens_max,
    measure_head,
    measure_step,
    measure_steps,
    measure_system,
    measure_turns,
    older_turns,
    own_steps,
    plan_levels,
    turn_counter,
    view_of,
    with_screen_in_head,
    with_selection,
)
from nplt_server.context.steps import ContextStep, Measure, Measured, left_out, tokens_of
from nplt_server.digest.text import place_to_resume, place_to_stop
from nplt_server.errors import WindowTooSmall
from nplt_storage.entries import LevelOfDetail, ModelInputEntry, ToolCallResult

_FILLED: Final = 0.7
"""How much of the budget is filled, so that a few more calls of the same turn fit."""
_PROMPT_TOKENS_MIN: Final = 32
"""Enough for the mark that replaces the middle of a prompt."""
_SHORTER: Final[tuple[LevelOfDetail, ...]] = ("summary", "gist")


def fit(parts: ContextParts) -> ContextView:
    assert parts.call_budget.budget_tokens is not None
    budget = parts.call_budget.budget_tokens
    parts = with_screen_in_head(parts)
    system = measure_system(parts)
    room = budget - parts.call_budget.tools_tokens - tokens_of(system)
    if room < _PROMPT_TOKENS_MIN:
        needed = budget - room
        raise WindowTooSmall(
            f"instruction and tools alone take {needed:,} of {budget:,} tokens, "
            "and leave no room for a prompt; shorten the instruction or choose another model",
            needed_tokens=needed,
        )
    head_room = min(head_tokens_max(parts), room // 4)
    own = _fit_own(parts, room - head_room)
    selection = _choose_turns(parts, own, fixed=budget - room + head_room)
    parts = with_selection(parts, selection)
    turns = measure_turns(parts, older_turns(parts))
    head = measure_head(parts)
    if tokens_of(head) > head_room:
        message = head[0].message
        assert isinstance(message, ModelInputMessage)
        # Summary and screen are cut as one text.
        text = cut_middle(message.text, head_room - MESSAGE_TOKENS, count=parts.measure.text)
        cut = structs.replace(message, content=text, live_screen=None, level="cut")
        head = [parts.measure.message(cut)] if text else []
    return view_of(parts, [*system, *head, *turns, *own], has_head=bool(head), is_trimmed=True)


def _choose_turns(parts: ContextParts, own: list[Measured], *, fixed: int) -> Selection:
    """Chooses the older turns by the size of the prompt alone if the rest of the running
    turn fits too: then all calls of the turn see the same older turns."""
    budget, all_own = parts.call_budget.budget_tokens or 0, tokens_of(own)
    selection = parts.selection
    for regarded in (tokens_of(own[:1]), all_own):
        plan = plan_levels(
            older_turns(parts, newest_first=True),
            budget=budget,
            fixed=fixed + regarded,
            tokens=turn_counter(parts),
            keep=_FILLED,
        )
        selection = parts.selection.within(plan, parts.shown_turns)
        chosen = structs.replace(parts, selection=selection)
        if fixed + all_own + tokens_of(measure_turns(chosen, older_turns(chosen))) <= budget:
            break
    return selection


def _fit_own(parts: ContextParts, room: int) -> list[Measured]:
    steps = own_steps(parts)
    prompt: list[Measured] = []
    if steps and isinstance(steps[0][0], ModelInputEntry):
        prompt, steps = measure_step(parts, steps[0]), steps[1:]
    newest = measure_steps(parts, steps[-1:])
    older = _fit_older(parts, steps[:-1], room, tokens_of(prompt) + tokens_of(newest))
    left = room - tokens_of(older)
    if tokens_of(prompt) + tokens_of(newest) > left:
        for_prompt = min(tokens_of(prompt), _PROMPT_TOKENS_MIN)
        for_newest = min(max(left - tokens_of(prompt), left // 2), left - for_prompt)
        newest = [cut for step in steps[-1:] for cut in _cut_step(parts, step, for_newest)]
        left -= tokens_of(newest)
        prompt = [cut for each in prompt for cut in _cut_text(each, left, parts.measure)]
    return [*prompt, *older, *newest]


def _fit_older(
    parts: ContextParts, steps: list[ContextStep], room: int, others: int
) -> list[Measured]:
    """Shortens the steps, oldest first, and then removes them, until the others fit or the
    steps take no more than a quarter of the room."""
    shown = [measure_step(parts, step) for step in steps]
    tokens = sum(map(tokens_of, shown))
    for level, place in product(_SHORTER, range(len(steps))):
        if tokens + others <= room:
            break
        shorter = measure_step(parts, steps[place], level)
        tokens += tokens_of(shorter) - tokens_of(shown[place])
        shown[place] = shorter
    quarter = min(room // 4, room - _PROMPT_TOKENS_MIN)
    while shown and tokens + others > room and tokens > quarter:
        tokens -= tokens_of(shown.pop(0))
    return [measured for step in shown for measured in step]


def _cut_step(parts: ContextParts, step: ContextStep, tokens_max: int) -> list[Measured]:
    """A cut result says how to read the rest. If not even that fits, the whole step is left out:
    providers refuse a tool call without its result."""
    live = measure_step(parts, step)
    if tokens_of(live) <= tokens_max:
        return live
    message = live[-1].message
    if not isinstance(message, ToolResultsMessage):
        rest = live[1:]  # of a rejected answer: the request to mend it
        cut = _cut_text(live[0], tokens_max - tokens_of(rest), parts.measure)
        return [*cut, *rest] if cut else []
    # The output and its tool calls, in as much detail as fits; at least its gist.
    output = live[0]
    for level in _SHORTER:
        if output.tokens > tokens_max // 4:
            output = measure_step(parts, step[:1], level)[0]
    results = _cut_results(message, tokens_max - output.tokens, parts.measure)
    return [] if results is None else [output, results]


def _cut_text(measured: Measured, tokens_max: int, measure: Measure) -> list[Measured]:
    """A prompt or an answer, cut in its middle; an empty list if there is no room for it."""
    message = measured.message
    if measured.tokens <= tokens_max:
        return [measured]
    if not isinstance(message, ModelInputMessage | ModelOutputMessage):
        return []
    taken = MESSAGE_TOKENS
    if isinstance(message, ModelInputMessage) and (message.attachments or message.schema):
        bare = tuple(one.without_contents("attachment_no_room") for one in message.attachments)
        message = structs.replace(message, attachments=bare, schema="", level="cut")
        measured = measure.message(message)
        if measured.tokens <= tokens_max:
            return [measured]
        taken = measured.tokens - measure.text(message.content)
    content = cut_middle(message.content, tokens_max - taken, count=measure.text)
    cut = structs.replace(message, content=content, level="cut")
    return [measure.message(cut)] if content else []


def _cut_results(message: ToolResultsMessage, tokens_max: int, measure: Measure) -> Measured | None:
    marks = MESSAGE_TOKENS + len(message.results) * CALL_TOKENS
    sizes = [measure.text(result.result) for result in message.results]
    shares = fair_shares(sizes, tokens_max - marks)
    results: list[ToolCallResult] = []
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

    text = cut_middle(result.result, tokens_max, count=measure.text, mark=readable)
    return text or cut_middle(result.result, tokens_max, count=measure.text, mark=left_out)


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


_CHARACTERS_PER_TOKEN_MAX: Final = 8
"""The first try keeps this many characters per token; few texts have more."""
_CHARACTERS_MIN: Final = 16
"""With fewer characters left around the mark, only the mark is shown."""


def cut_middle(
    text: str,
    tokens_max: int,
    *,
    count: Callable[[str], int],
    mark: Callable[[int], str] = left_out,
) -> str:
    """Beginning, mark and end of a text that is too long; empty if not even the mark fits.
    `mark`: says how many characters are left out."""
    kept = min(len(text), tokens_max * _CHARACTERS_PER_TOKEN_MAX)
    while kept >= _CHARACTERS_MIN:
        stop = place_to_stop(text, 0, kept * 2 // 3)
        resume = place_to_resume(text, max(stop, len(text) - kept // 3), len(text))
        shown = text
        if resume > stop:
            shown = f"{text[:stop]}\n{mark(resume - stop)}\n{text[resume:]}"
        tokens = count(shown)
        if tokens <= tokens_max:
            return shown
        kept = min(kept * 15 // 16, kept * tokens_max // tokens)
    alone = mark(len(text))
    return alone if count(alone) <= tokens_max else ""
