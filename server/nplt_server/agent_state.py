"""The state of one conversation, as the turn loop sees it: what may be remembered,
and what follows from what is.

Everything is in the history; here are the ways to add to it that mean something.
An append is checked, gets its summary and gist, and carries the live screen where
that differs from the one its model was shown last. A change of the instruction,
the notebook or a widget is an entry too, and none if nothing changed: so the
state at any number is what replay up to it gives.

It has no pen of its own. `write` takes a function that makes the draft in the
moment it is written; two changes at once are therefore one after the other, and
the second is made to what the first left.

    BadEntry (of the storage)   this can't be remembered as it is
        EmptyInput              whoever asks: say something
        EmptyOutput             the provider: it had finished, and gave nothing
        UnmatchedResults        whoever runs the tools: a result for every call, in order
        NotebookTooLong         whoever writes in it: shorten it
        NoSuchWidget            the caller: it is not part of this conversation
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TypeAlias

import orjson

from nplt_protocol.json_values import JsonObject
from nplt_server.context.messages import ContextMessage
from nplt_server.context.projection import render_context
from nplt_server.context.screens import screen_sources
from nplt_server.detail.levels import levels_of, levels_of_result
from nplt_server.tools.base import Tool
from nplt_server.widgets.base import Widget
from nplt_server.widgets.notebook import NOTEBOOK_BYTES_MAX, notebook_bytes
from nplt_server.widgets.screen import render_screen, screen_to_write
from nplt_server.widgets.written import WrittenScreens
from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    Entry,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    SystemInstructionEntry,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.facts.sections import LIVE_SCREEN, LevelOfDetailSections
from nplt_storage.facts.tool_calls import ToolCallRequest, ToolCallResult

Write: TypeAlias = Callable[[Callable[[], Entry | None]], Awaitable[Entry | None]]
"""Calls the function when the pen is free and gives the entry once it is on disk;
neither, if there turns out to be nothing to write."""


class EmptyInput(BadEntry):
    def __init__(self) -> None:
        super().__init__("a prompt is not blank")


class EmptyOutput(BadEntry):
    def __init__(self) -> None:
        super().__init__("a completed output has text or tool calls")


class UnmatchedResults(BadEntry):
    pass


class NotebookTooLong(BadEntry):
    def __init__(self, size: int) -> None:
        super().__init__(f"a notebook has at most {NOTEBOOK_BYTES_MAX:,} bytes, not {size:,}")


class NoSuchWidget(BadEntry):
    def __init__(self, name: str) -> None:
        super().__init__(f"there is no widget {name!r} here")


class AgentState:
    __slots__ = ("_screens", "_widgets", "_write", "history")

    def __init__(
        self, history: ConversationHistory, *, widgets: Sequence[Widget], write: Write
    ) -> None:
        self.history = history
        self._widgets = tuple(widgets)
        self._write = write
        self._screens = WrittenScreens(history)

    # What it is now

    @property
    def system_instruction(self) -> str:
        return self.history.system_instruction or ""

    @property
    def notebook(self) -> str:
        return self.history.notebook or ""

    def widget_state(self, name: str) -> JsonObject:
        """A copy, all the way down: an entry is never changed."""
        state = self.history.widget_state(name)
        copy: JsonObject = orjson.loads(orjson.dumps(dict(state))) if state else {}
        return copy

    def screen(self) -> str:
        """What the widgets show now; empty if that is nothing."""
        quarantined = self.history.quarantined
        sources = screen_sources(self.history).items() if quarantined else ()
        refused = [name for name, seq in sources if seq in quarantined]
        return render_screen(self._widgets, self, refused=refused)

    def enumerate_widget_tools(self) -> tuple[Tool, ...]:
        return tuple(tool for widget in self._widgets for tool in widget.tools)

    def render_live_context(self) -> tuple[ContextMessage, ...]:
        """What the model of a turn that began now would be shown before its prompt."""
        return render_context(self.history)

    # What is said

    def draft_model_input(self, draft: ModelInputEntry, *, waits: bool) -> ModelInputEntry:
        """A prompt that waits behind another turn carries no screen: it would be out
        of date when its time comes, and the turn before it says what changed."""
        if not draft.content.strip():
            raise EmptyInput
        sections = levels_of(draft.content)
        if not waits:
            sections = self._with_screen(sections, said=draft.content, turn_id=draft.turn_id)
        return replace(draft, sections=sections)

    def draft_model_output(self, draft: ModelOutputEntry) -> ModelOutputEntry:
        if draft.state == "completed" and not (draft.content or draft.tool_calls):
            raise EmptyOutput
        return replace(draft, sections=levels_of(draft.content))

    def draft_tool_results(self, draft: ToolResultsEntry) -> ToolResultsEntry:
        check_matched(self.history.open_calls(draft.turn_id or ""), draft.results)
        *others, last = map(_with_levels, draft.results)
        sections = self._with_screen(last.sections, said=last.result, turn_id=draft.turn_id)
        return replace(draft, results=(*others, replace(last, sections=sections)))

    async def append_model_input(
        self, draft: ModelInputEntry, *, waits: bool = False
    ) -> ModelInputEntry:
        entry = await self._write(lambda: self.draft_model_input(draft, waits=waits))
        assert isinstance(entry, ModelInputEntry)
        return entry

    async def append_model_output(self, draft: ModelOutputEntry) -> ModelOutputEntry:
        entry = await self._write(lambda: self.draft_model_output(draft))
        assert isinstance(entry, ModelOutputEntry)
        return entry

    async def append_tool_results(self, draft: ToolResultsEntry) -> ToolResultsEntry:
        entry = await self._write(lambda: self.draft_tool_results(draft))
        assert isinstance(entry, ToolResultsEntry)
        return entry

    # What is changed

    async def set_system_instruction(self, text: str) -> None:
        def prepare() -> Entry | None:
            changes = text != self.system_instruction
            return SystemInstructionEntry(content=text) if changes else None

        await self._write(prepare)

    async def update_memory_notebook(
        self, change: str | Callable[[str], str], *, turn_id: str | None = None
    ) -> str:
        """Gives the new text. Whatever `change` raises is raised here, and nothing is
        changed; with the turn it was done in, the entry says so."""
        text = ""

        def prepare() -> Entry | None:
            nonlocal text
            text = change if isinstance(change, str) else change(self.notebook)
            if text == self.notebook:
                return None
            size = notebook_bytes(text)
            if size > NOTEBOOK_BYTES_MAX:
                raise NotebookTooLong(size)
            return NotebookEntry(content=text, turn_id=turn_id)

        await self._write(prepare)
        return text

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject], *, turn_id: str | None = None
    ) -> JsonObject:
        """As `update_memory_notebook`, of any other widget."""
        if name not in [widget.name for widget in self._widgets]:
            raise NoSuchWidget(name)
        state: JsonObject = {}

        def prepare() -> Entry | None:
            nonlocal state
            state = change(self.widget_state(name))
            changes = state != self.widget_state(name)
            return WidgetEntry(widget=name, state=state, turn_id=turn_id) if changes else None

        await self._write(prepare)
        return state

    def _with_screen(
        self, sections: LevelOfDetailSections | None, *, said: str, turn_id: str | None
    ) -> LevelOfDetailSections | None:
        screen = screen_to_write(self.screen(), self._screens.last_shown_to(turn_id))
        if screen is None:
            return sections
        told = sections or LevelOfDetailSections(live=(("", said),))
        # A level nobody filled is answered by the live one; the screen is not meant then.
        told = replace(told, summary=told.summary or told.live)
        return told.with_live_section(LIVE_SCREEN, screen)


def check_matched(calls: Sequence[ToolCallRequest], results: Sequence[ToolCallResult]) -> None:
    """The history refuses what does not match; this says what is wrong with it."""
    if not calls:
        raise UnmatchedResults("there are no calls that wait for results")
    asked = [(call.tool_call_id, call.tool_name) for call in calls]
    given = [(result.tool_call_id, result.tool_name) for result in results]
    for call, result in zip_longest(asked, given):
        if call != result:
            raise UnmatchedResults(_mismatch(call, result, asked, given))


_Named: TypeAlias = tuple[str, str]


def _mismatch(
    call: _Named | None, result: _Named | None, asked: list[_Named], given: list[_Named]
) -> str:
    if call is not None and call not in given:
        return f"call {call[0]!r} of {call[1]} has no result"
    if result is not None and result not in asked:
        return f"result {result[0]!r} of {result[1]} answers none of the calls"
    if len(given) != len(set(given)):
        return "a call has more than one result"
    return "the results are in another order than their calls"


def _with_levels(result: ToolCallResult) -> ToolCallResult:
    size = None if result.blob is None else result.blob.size
    sections = levels_of_result(result.tool_name, result.status, result.result, size=size)
    return replace(result, sections=sections)
