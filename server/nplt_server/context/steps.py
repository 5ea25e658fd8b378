"""A turn, step by step: what must be shown together or not at all.

A step is a prompt, an answer, or an output with calls and the results of these.
Providers refuse a call without a result as they refuse a result without a call;
so where a record lacks one (another program wrote it, a turn was cut) the other
is left out too. A prompt or an answer in quarantine is left out; of a call or its
results only the words are, for a model that does not know what it has done does it
again. While the tools of a running turn work, the output that called them is not
shown yet: with its results it will stand where it would have stood.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Final, TypeAlias

from nplt_server.context.levels import ContextEntry
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import ModelInputEntry, ModelOutputEntry, ToolResultsEntry
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

Step: TypeAlias = tuple[ContextEntry, ...]

HIDDEN_RESULT: Final = "(this ran; its output can't be shown)"


def steps_of(turn: Turn, quarantined: Collection[int]) -> Iterator[Step]:
    return (step for step, _ in steps_from(turn, quarantined, 0) if step)


def steps_from(turn: Turn, quarantined: Collection[int], place: int) -> Iterator[tuple[Step, int]]:
    """From that place among the turn's entries on; each step, which may be empty,
    with the place after it. What follows later never changes what came before."""
    entries = turn.entries
    while place < len(entries):
        entry = entries[place]
        after = entries[place + 1] if place + 1 < len(entries) else None
        if _waits_for_results(entry, after, turn):
            return
        taken = 2 if _calls_tools(entry) and isinstance(after, ToolResultsEntry) else 1
        step = tuple(entries[place : place + taken])
        place += taken
        yield _hiding(_whole(step), quarantined), place


def _waits_for_results(entry: ContextEntry, after: ContextEntry | None, turn: Turn) -> bool:
    return _calls_tools(entry) and after is None and not turn.is_over


def _calls_tools(entry: ContextEntry) -> bool:
    return isinstance(entry, ModelOutputEntry) and bool(entry.tool_calls)


def _whole(step: Step) -> Step:
    match step:
        case (ModelInputEntry(),):
            return step
        case (ModelOutputEntry() as output,):
            return _answer(output)
        case (ModelOutputEntry() as output, ToolResultsEntry() as results):
            return _paired(output, results)
        case _:  # results nobody asked for
            return ()


def _answer(output: ModelOutputEntry) -> Step:
    if not output.content.strip():
        return ()
    return (replace(output, tool_calls=()) if output.tool_calls else output,)


def _paired(output: ModelOutputEntry, results: ToolResultsEntry) -> Step:
    asked = [call.tool_call_id for call in output.tool_calls]
    given = [result.tool_call_id for result in results.results]
    if asked == given:
        return output, results
    by_id = {result.tool_call_id: result for result in results.results}
    calls = {call.tool_call_id: call for call in output.tool_calls if call.tool_call_id in by_id}
    if not calls:
        return _answer(output)
    return (
        replace(output, tool_calls=tuple(calls.values())),
        replace(results, results=tuple(by_id[call_id] for call_id in calls)),
    )


def _hiding(step: Step, quarantined: Collection[int]) -> Step:
    if all(entry.seq not in quarantined for entry in step):
        return step
    if len(step) == 1:
        return ()
    return tuple(_wordless(entry) if entry.seq in quarantined else entry for entry in step)


def _wordless(entry: ContextEntry) -> ContextEntry:
    match entry:
        case ModelOutputEntry():
            calls = tuple(map(_wordless_call, entry.tool_calls))
            return replace(
                entry, content="", reasoning="", tool_calls=calls, sections=None, parts=()
            )
        case ToolResultsEntry():
            return replace(entry, results=tuple(map(_wordless_result, entry.results)))
        case ModelInputEntry():
            return entry  # never a part of a larger step


def _wordless_call(call: ToolCallRequest) -> ToolCallRequest:
    return replace(call, raw_arguments="{}", arguments={}, parse_error=None, parse_warning=None)


def _wordless_result(result: ToolCallResult) -> ToolCallResult:
    return replace(result, result=HIDDEN_RESULT, blob=None, sections=None)
