"""Steps of a running turn, cut to the room there is for them.

A result says of itself how to read what was cut out of it. Where not even that
fits, the whole step goes: a call without its result would be worse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from nplt_server.context.attachments import without_contents
from nplt_server.context.measuring import CALL_TOKENS, MESSAGE_TOKENS, Measure, Measured, tokens_of
from nplt_server.context.messages import (
    ModelInputMessage,
    ModelOutputMessage,
    ToolResultsMessage,
)
from nplt_server.context.scene import Scene
from nplt_server.context.shortening import cut_middle, left_out
from nplt_server.context.steps import Step
from nplt_storage.facts.tool_calls import ToolCallResult


def cut_step(scene: Scene, step: Step, tokens_max: int) -> list[Measured]:
    live = scene.step(step, "live")
    if tokens_of(live) <= tokens_max:
        return live
    if len(live) == 1:
        return cut_text(live[0], tokens_max, scene.measure)
    output = _output_within(scene, step, tokens_max // 4)
    results = _cut_results(live[1], tokens_max - output.tokens, scene.measure)
    return [] if results is None else [output, results]


def cut_text(measured: Measured, tokens_max: int, measure: Measure) -> list[Measured]:
    """A prompt or an answer; nothing, if there is no room for a word of it."""
    message, tokens = measured
    if tokens <= tokens_max:
        return [measured]
    if not isinstance(message, ModelInputMessage | ModelOutputMessage):
        return []
    taken = MESSAGE_TOKENS
    if isinstance(message, ModelInputMessage) and message.attachments:
        bare = without_contents(message.attachments, "attachment_no_room")
        message = replace(message, attachments=bare, level="cut")
        measured = measure.message(message)
        if measured.tokens <= tokens_max:
            return [measured]
        taken = measured.tokens - measure.text(message.content)
    content = cut_middle(message.content, tokens_max - taken, count=measure.text)
    return [measure.message(replace(message, content=content, level="cut"))] if content else []


def _output_within(scene: Scene, step: Step, tokens_max: int) -> Measured:
    """With its calls, whose results come after it."""
    output = scene.step(step[:1], "live")[0]
    if output.tokens > tokens_max:
        output = scene.step(step[:1], "summary")[0]
    if output.tokens > tokens_max:
        output = scene.step(step[:1], "gist")[0]
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
        results.append(replace(result, result=text))
    return measure.message(replace(message, results=tuple(results), level="cut"))


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
    """How much each may take: who needs little gets it, the others share the rest."""
    shares = [0] * len(sizes)
    left = max(0, room)
    smallest_first = sorted(range(len(sizes)), key=sizes.__getitem__)
    for done, place in enumerate(smallest_first):
        shares[place] = min(sizes[place], left // (len(sizes) - done))
        left -= shares[place]
    return shares
