"""A turn, step by step: what must be shown together or not at all.

A step is a prompt, an answer, or an output with calls and the results of these.
Providers refuse a call without a result as they refuse a result without a call;
so where a record lacks one (another program wrote it, a turn was cut) the other
is left out too, and so is whatever goes with an entry in quarantine. While the
tools of a running turn work, the output that called them is not shown yet: with
its results it will stand where it would have stood.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import TypeAlias

from nplt_server.context.levels import ContextEntry
from nplt_storage.conversation.turns import Turn
from nplt_storage.facts.entries import ModelInputEntry, ModelOutputEntry, ToolResultsEntry

Step: TypeAlias = tuple[ContextEntry, ...]


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
        yield () if any(entry.seq in quarantined for entry in step) else _whole(step), place


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
