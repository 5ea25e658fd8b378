"""How the entries of a turn become messages, and how many tokens these take.

A turn's entries are grouped into steps, which are shown whole or not at all: a prompt, an answer,
an output with tool calls and their results, or a rejected answer with the request to mend it,
which is no entry of its own. Providers refuse a tool call without a result and a result without a
tool call; if one is missing, the other is left out. While the tools of a running turn work, the
output that called them is not shown.

A quarantined prompt or answer is left out. Quarantined tool calls and results lose only their
text, because a model that does not see its calls repeats them.

An entry is shown at one of three levels of detail. Summary and gist are made by rule when they
are first needed, unless they are in the record; a short entry is shown whole. Live screens are
shown at the live level, within the current epoch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, TypeAlias, assert_never

import orjson
from msgspec import Struct, structs

from nplt_server.context.messages import (
    AttachmentContents,
    ContextMessage,
    ModelInputMessage,
    ModelOutputMessage,
    SourceEntry,
    ToolResultsMessage,
    tokens_in,
)
from nplt_server.digest import levels_of
from nplt_server.digest.text import cut
from nplt_server.tokens import TokenCounter
from nplt_storage.entries import (
    LevelOfDetail,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.messages import text_at_level
from nplt_storage.turns import ContextEntry, Turn

ContextStep: TypeAlias = tuple[ContextEntry, ...]

HIDDEN_RESULT: Final = "(this ran; its output can't be shown)"
_REPAIR_REQUEST: Final = (
    "This answer does not fit the JSON schema: {fault}. Answer again, with one JSON value that "
    "fits it, and with nothing else."
)


def steps_of(turn: Turn, quarantined: Collection[int]) -> Iterator[ContextStep]:
    return (step for step, _ in steps_from(turn, quarantined, 0) if step)


def steps_from(
    turn: Turn, quarantined: Collection[int], place: int
) -> Iterator[tuple[ContextStep, int]]:
    """The steps from index `place` of the turn's entries on. Each step, which may be empty,
    comes with the index after it. Later entries never change earlier steps."""
    entries = turn.entries
    while place < len(entries):
        entry = entries[place]
        after = entries[place + 1] if place + 1 < len(entries) else None
        calls_tools = isinstance(entry, ModelOutputEntry) and bool(entry.tool_calls)
        if calls_tools and after is None and not turn.is_over:
            return  # the tools' results are yet to come
        taken = 2 if calls_tools and isinstance(after, ToolResultsEntry) else 1
        step = tuple(entries[place : place + taken])
        place += taken
        whole = _whole(step)
        yield _without_quarantined(whole, quarantined) if quarantined else whole, place


def _whole(step: ContextStep) -> ContextStep:
    match step:
        case (ModelInputEntry() as prompt,):
            return step if prompt.content or not prompt.is_silent else ()
        case (ModelOutputEntry(rejected=str(fault)) as output,) if output.content.strip():
            request = ModelInputEntry(content=_REPAIR_REQUEST.format(fault=fault))
            return output, structs.replace(request, seq=output.seq, timestamp=output.timestamp)
        case (ModelOutputEntry() as output,):
            pass
        case (ModelOutputEntry() as output, ToolResultsEntry() as results):
            call_ids = [call.tool_call_id for call in output.tool_calls]
            if call_ids == [result.tool_call_id for result in results.results]:
                return step
            by_id = {result.tool_call_id: result for result in results.results}
            calls = {call.tool_call_id: call for call in output.tool_calls}
            calls = {call_id: call for call_id, call in calls.items() if call_id in by_id}
            if calls:
                return (
                    structs.replace(output, tool_calls=tuple(calls.values())),
                    structs.replace(results, results=tuple(by_id[call_id] for call_id in calls)),
                )
        case _:  # results without tool calls
            return ()
    if not output.content.strip():
        return ()
    return (structs.replace(output, tool_calls=()) if output.tool_calls else output,)


def _without_quarantined(step: ContextStep, quarantined: Collection[int]) -> ContextStep:
    if all(entry.seq not in quarantined for entry in step):
        return step
    match step:
        case (ModelOutputEntry() as output, ToolResultsEntry() as results):
            pass
        case _:
            return ()
    if output.seq in quarantined:
        calls = tuple(
            structs.replace(
                call, raw_arguments="{}", arguments={}, parse_error=None, parse_warning=None
            )
            for call in output.tool_calls
        )
        output = structs.replace(
            output, content="", reasoning="", tool_calls=calls, sections=None, parts=()
        )
    if results.seq in quarantined:
        hidden = tuple(
            structs.replace(result, result=HIDDEN_RESULT, blob=None, sections=None)
            for result in results.results
        )
        results = structs.replace(results, results=hidden)
    return output, results


_NO_CONTENTS: Final = AttachmentContents()
_ARGUMENT_CHARACTERS_MAX: Final[dict[LevelOfDetail, int]] = {"summary": 1_000, "gist": 200}


def message_of(
    entry: ContextEntry,
    level: LevelOfDetail,
    *,
    with_screen: bool = True,
    takes_images: bool = False,
    takes_pdfs: bool = False,
    contents: AttachmentContents = _NO_CONTENTS,
) -> ContextMessage:
    """The message for an entry. Screen and opaque parts are included only within the current
    epoch (`with_screen`), where the prefix is unchanged."""
    is_live = level == "live"
    is_unchanged = with_screen and is_live
    screen = screen_in(entry) if is_unchanged else None
    files = contents.shown_with(
        entry, is_live=is_live, takes_images=takes_images, takes_pdfs=takes_pdfs
    )
    source = SourceEntry()
    source.entry = entry
    match entry:
        case ModelInputEntry():
            schema = entry.options.get("schema") if is_live else None
            return ModelInputMessage(
                seq=entry.seq,
                level=level,
                source=source,
                content=text_at_level(entry.content, entry.sections, level, levels_of),
                live_screen=screen,
                attachments=files,
                schema=orjson.dumps(schema).decode() if isinstance(schema, dict) else "",
            )
        case ModelOutputEntry():
            calls = entry.tool_calls
            if not is_live:
                calls = tuple(shorten_call(each, _ARGUMENT_CHARACTERS_MAX[level]) for each in calls)
            return ModelOutputMessage(
                seq=entry.seq,
                level=level,
                source=source,
                content=text_at_level(entry.content, entry.sections, level, levels_of),
                tool_calls=calls,
                invocation=entry.invocation,
                reasoning=entry.reasoning if entry.parts and is_unchanged else "",
                parts=entry.parts if is_unchanged else (),
            )
        case ToolResultsEntry():
            return ToolResultsMessage(
                seq=entry.seq,
                level=level,
                source=source,
                results=tuple(_result_at(result, level) for result in entry.results),
                live_screen=screen,
                images=tuple(one for one in files if one.is_image),
            )
    assert_never(entry)


def screen_in(entry: ContextEntry) -> str | None:
    """The live screen written into the entry."""
    if isinstance(entry, ToolResultsEntry):
        all_sections = [result.sections for result in reversed(entry.results)]
    else:
        all_sections = [entry.sections]
    for sections in all_sections:
        if sections is not None:
            screen = sections.without_live_screen()[1]
            if screen is not None:
                return screen
    return None


def _result_at(result: ToolCallResult, level: LevelOfDetail) -> ToolCallResult:
    text = text_at_level(result, result.sections, level, levels_of)
    if result.blob is not None and level == "live":
        more = result.blob.size - len(result.result.encode())
        # Named, because models see the ids of their vendor, or none.
        how = f'read_result reads them, tool_call_id "{result.tool_call_id}"'
        text += f"\n[… {more:,} bytes more: {how} …]"
    return result if text is result.result else structs.replace(result, result=text)


_ARGUMENT_CHARACTERS_MIN: Final = 16


def shorten_call(call: ToolCallRequest, characters_max: int) -> ToolCallRequest:
    """The arguments stay a JSON object with the same keys, because providers accept nothing
    else."""
    if len(call.raw_arguments) <= characters_max:
        return call
    if call.arguments is None:
        return structs.replace(call, raw_arguments=cut(call.raw_arguments, characters_max))
    each = max(_ARGUMENT_CHARACTERS_MIN, characters_max // max(1, len(call.arguments)))
    arguments = dict(call.arguments)
    for name, value in arguments.items():
        text = value if isinstance(value, str) else orjson.dumps(value).decode()
        if len(text) > each:
            arguments[name] = cut(text, each)
    raw = orjson.dumps(arguments)
    if len(raw) > 4 * characters_max:
        # The names of the arguments alone are too long.
        arguments = {"arguments": left_out(len(call.raw_arguments))}
        raw = orjson.dumps(arguments)
    return structs.replace(call, raw_arguments=raw.decode(), arguments=arguments)


def left_out(characters: int) -> str:
    return f"[… {characters:,} characters left out …]"


class Measured(Struct, frozen=True, gc=False):
    message: ContextMessage
    tokens: int


class Measure:
    """Builds the messages of one conversation's entries, counts their tokens and remembers
    both. Bound to one token counter."""

    def __init__(
        self,
        counter: TokenCounter,
        *,
        attachments: AttachmentContents | None = None,
        remembered_max: int = 16_384,
    ) -> None:
        self.attachments = attachments or AttachmentContents()
        self._counter = counter
        self._remembered_max = remembered_max
        self._remembered: dict[
            tuple[str, LevelOfDetail, bool, bool, bool], tuple[ContextEntry, Measured]
        ] = {}
        self.counted = 0
        """Messages counted so far; a counter for tests."""

    def text(self, text: str) -> int:
        return self._counter.count(text) if text else 0

    def message(self, message: ContextMessage) -> Measured:
        self.counted += 1
        return Measured(message, tokens_in(message, self.text))

    def entry(
        self,
        entry: ContextEntry,
        level: LevelOfDetail,
        *,
        with_screen: bool = False,
        takes_images: bool = False,
        takes_pdfs: bool = False,
    ) -> Measured:
        key = (entry.id, level, with_screen, takes_images, takes_pdfs)
        known = self._remembered.get(key)
        # A redacted entry, or a copy made for showing, has the same id.
        if known is not None and known[0] is entry:
            return known[1]
        message = message_of(
            entry,
            level,
            with_screen=with_screen,
            takes_images=takes_images,
            takes_pdfs=takes_pdfs,
            contents=self.attachments,
        )
        measured = self.message(message)
        if entry.id:
            if len(self._remembered) >= self._remembered_max:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[key] = entry, measured
        return measured


def tokens_of(measured: Iterable[Measured]) -> int:
    return sum(each.tokens for each in measured)
