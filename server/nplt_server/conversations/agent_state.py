"""Holds the state of one conversation as its turns see it: `AgentState`.

The history holds everything; this module has the methods that append to it, and the context
that is rendered from it. An append is checked, and includes the live screen if that changed
since the model last saw it. A change of the instruction, the notebook or a widget is an entry
too; if nothing changed, none is written. So replaying the history up to any seq gives the state
at that seq.

A draft is made while its writer holds the write lock, so two concurrent changes are applied one
after the other. A draft that can't be stored raises `BadEntry`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Sequence
from datetime import datetime
from typing import Final, TypeAlias

import orjson
from msgspec.structs import replace

from nplt_protocol.json_text import JsonObject
from nplt_server.context.messages import SystemMessage
from nplt_server.context.projection import Policy, Projection
from nplt_server.context.screens import ScreensInTurns, screen_sources
from nplt_server.context.selection import CallBudget, ContextView, PromptReference
from nplt_server.context.steps import Measure
from nplt_server.conversations.record import ConversationRecord
from nplt_server.tokens import CharacterCounter
from nplt_server.tools import Tool
from nplt_server.widgets import NOTEBOOK_BYTES_MAX, Widget, WidgetView, notebook_bytes, widget_tools
from nplt_storage.entries import (
    LIVE_SCREEN,
    DebugEntry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    NotebookEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.history import ConversationHistory

_WHOLE: Final = CallBudget()
MessageEntry: TypeAlias = ModelInputEntry | ModelOutputEntry | ToolResultsEntry


class AgentState:
    def __init__(
        self,
        record: ConversationRecord,
        *,
        widgets: Sequence[Widget],
        policy: Policy = "epochs",
        measure: Measure | None = None,
    ) -> None:
        self._record = record
        self._widgets = tuple(widgets)
        self._policy: Policy = policy
        self.measure = measure or Measure(CharacterCounter())
        """How the context is counted, and what it shows of attached files."""
        self._projection: Projection | None = None
        self._screens: tuple[ConversationHistory, ScreensInTurns] | None = None
        """Which screens the models were shown in that history."""
        self._screen: tuple[ConversationHistory, int, str] | None = None
        """The last screen, with the history it was rendered from and its `changed_seq` then."""

    # The current state

    @property
    def history(self) -> ConversationHistory:
        """The history in memory. The record replaces it when it is read again."""
        return self._record.history

    @property
    def system_instruction(self) -> str:
        return self.history.system_instruction or ""

    @property
    def notebook(self) -> str:
        return self.history.notebook or ""

    def widget_state(self, name: str) -> JsonObject:
        return _ReadOnlyState(self.history).widget_state(name)

    def screen(self) -> str:
        """The live screen as the widgets render it now; "" if there is nothing to show."""
        history, known = self._record.history, self._screen
        if known is not None and known[0] is history and known[1] == history.changed_seq:
            return known[2]
        quarantined = history.quarantined
        sources = screen_sources(history).items() if quarantined else ()
        names = [name for name, seq in sources if seq in quarantined]
        screen = render_screen(self._widgets, _ReadOnlyState(history), quarantined=names)
        self._screen = (history, history.changed_seq, screen)
        return screen

    def enumerate_widget_tools(self) -> tuple[Tool, ...]:
        return widget_tools(self._widgets)

    @property
    def projection(self) -> Projection:
        known, history = self._projection, self._record.history
        if known is None or known.history is not history or known.measure is not self.measure:
            known = Projection(history, self.measure, self._shown_screens(), policy=self._policy)
            self._projection = known
        return known

    def _shown_screens(self) -> ScreensInTurns:
        history = self._record.history
        if self._screens is None or self._screens[0] is not history:
            self._screens = (history, ScreensInTurns(history))
        return self._screens[1]

    def render_live_context(
        self, prompt_ref: PromptReference = None, call_budget: CallBudget = _WHOLE
    ) -> ContextView:
        """Renders the context of a call: for the turn with that id, for a prompt that is not
        written yet, or before any prompt. Equal arguments give equal contexts. It begins with the
        system message, even if that is empty; a call leaves out an empty one."""
        view = self.projection.context(prompt_ref, call_budget)
        if view.messages and view.messages[0].role == "system":
            return view
        first = SystemMessage(instruction="")
        return replace(view, messages=(first, *view.messages), sizes=(0, *view.sizes))

    # Messages

    def draft_model_input(self, draft: ModelInputEntry) -> ModelInputEntry:
        """Adds the live screen to a prompt. A prompt that waits behind another turn gets none: it
        would be out of date when the prompt's turn begins, and that other turn shows the
        changes."""
        if not draft.content.strip() and draft.results_seq is None:
            raise BadEntry("a prompt is not blank")
        if self._record.history.unfinished_turns():
            return draft
        sections = self._with_screen(draft.sections, text=draft.content, turn_id=draft.turn_id)
        return draft if sections is draft.sections else replace(draft, sections=sections)

    def _draft_tool_results(self, draft: ToolResultsEntry) -> ToolResultsEntry:
        tool_calls = self.history.open_tool_calls(draft.turn_id or "")
        if not tool_calls:
            raise BadEntry("there are no calls that wait for results")
        if not draft.results and not draft.execute_error:
            raise BadEntry("there are neither results nor an error")
        draft = matched(draft, tool_calls, at=self.history.entries[-1].timestamp)
        *others, last = draft.results
        sections = self._with_screen(last.sections, text=last.result, turn_id=draft.turn_id)
        return replace(draft, results=(*others, replace(last, sections=sections)))

    def append_model_input(self, draft: ModelInputEntry) -> Coroutine[None, None, ModelInputEntry]:
        return self._record.append(draft, check=self.draft_model_input)

    def append_model_output(
        self, draft: ModelOutputEntry
    ) -> Coroutine[None, None, ModelOutputEntry]:
        if draft.invocation is None:
            raise BadEntry("an output names the model that gave it (its invocation)")
        if draft.state == "completed" and not (draft.content or draft.tool_calls):
            raise BadEntry("a completed output has text or tool calls")
        return self._record.append(draft)

    async def append_tool_results(self, draft: ToolResultsEntry) -> ToolResultsEntry:
        """Appends the results. If they did not match the tool calls, a debug entry says how."""
        entry = await self._record.append(draft, check=self._draft_tool_results)
        if (mismatch := entry.metadata.get(_MISMATCH)) is not None:
            content = f"the results of entry {entry.seq} were matched to their calls: {mismatch}"
            await self._record.append(DebugEntry(category="history", content=content))
        return entry

    def append(self, draft: MessageEntry) -> Coroutine[None, None, MessageEntry]:
        """Appends a message of any of the three kinds."""
        match draft:
            case ModelInputEntry():
                return self.append_model_input(draft)
            case ModelOutputEntry():
                return self.append_model_output(draft)
            case ToolResultsEntry():
                return self.append_tool_results(draft)

    # State entries

    async def set_system_instruction(self, text: str) -> bool:
        """Returns False, and writes nothing, if this is the current instruction already."""
        async with self._record.exclusive():
            # Before the first entry, the profile's own instruction may still have to be written.
            if text == self.system_instruction and self.history.head_seq:
                return False
            await self._record.append(SystemInstructionEntry(content=text))
            return True

    async def update_memory_notebook(
        self, change: str | Callable[[str], str], *, turn_id: str | None = None
    ) -> str:
        """Returns the new text. If `change` raises, nothing is written. `turn_id`: the turn in
        which the change was made, for the entry."""
        async with self._record.exclusive():
            text = change if isinstance(change, str) else change(self.notebook)
            if text != self.notebook:
                size = notebook_bytes(text)
                if size > NOTEBOOK_BYTES_MAX:
                    raise BadEntry(
                        f"a notebook has at most {NOTEBOOK_BYTES_MAX:,} bytes, not {size:,}"
                    )
                await self._record.append(NotebookEntry(content=text, turn_id=turn_id))
            return text

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject], *, turn_id: str | None = None
    ) -> JsonObject:
        """Changes the state of a widget, as `update_memory_notebook` changes the notebook."""
        if name not in [widget.name for widget in self._widgets]:
            raise BadEntry(f"there is no widget {name!r} here")
        async with self._record.exclusive():
            state = change(self.widget_state(name))
            if state != self.widget_state(name):
                await self._record.append(WidgetEntry(widget=name, state=state, turn_id=turn_id))
            return state

    def _with_screen(
        self, sections: LevelOfDetailSections | None, *, text: str, turn_id: str | None
    ) -> LevelOfDetailSections | None:
        screen, shown = self.screen(), self._shown_screens().last_shown_to(turn_id)
        if screen == shown or (not screen and shown == BLANK_SCREEN):
            return sections  # the model has seen it already
        shown_sections = sections or LevelOfDetailSections(live=(("", text),))
        return shown_sections.with_live_section(LIVE_SCREEN, screen or BLANK_SCREEN)


class _ReadOnlyState:
    """The state that widgets may read when they render their screens, and nothing to change it."""

    __slots__ = ("_history",)

    def __init__(self, history: ConversationHistory) -> None:
        self._history = history

    @property
    def notebook(self) -> str:
        return self._history.notebook or ""

    def widget_state(self, name: str) -> JsonObject:
        """A deep copy, so that the entry can't be changed."""
        state = self._history.widget_state(name)
        copy: JsonObject = orjson.loads(orjson.dumps(dict(state))) if state else {}
        return copy


# The live screen

_HEADING: Final = "# [Live Screen]"

BLANK_SCREEN: Final = f"{_HEADING}\n\nThere is nothing on it any more."
"""Written once when nothing is left to show; without it the last screen would stay
current."""


QUARANTINED_STATE: Final = "(what stands here can't be shown; it is shown again once it is changed)"


def render_screen(
    widgets: Sequence[Widget], view: WidgetView, *, quarantined: Collection[str] = ()
) -> str:
    """The live screen, or "" if there is nothing to show. `quarantined`: the widgets whose state
    is quarantined; the screen says that they have a state, so that the model keeps it."""
    fragments = [
        f"## {widget.name.capitalize()}\n{QUARANTINED_STATE}"
        if widget.name in quarantined
        else widget.render_live_screen(view)
        for widget in widgets
    ]
    shown = [fragment.rstrip() for fragment in fragments if fragment and not fragment.isspace()]
    return "\n\n".join([_HEADING, *shown]) if shown else ""


def matched(
    draft: ToolResultsEntry, tool_calls: Sequence[ToolCallRequest], *, at: datetime
) -> ToolResultsEntry:
    """The draft with one result for each tool call, in the order of the calls. A call without a
    result is recorded as failed, with `execute_error` as the reason if there is one. A result
    that belongs to no call is dropped. The first mismatch is noted in the metadata."""
    called = [(tool_call.tool_call_id, tool_call.tool_name) for tool_call in tool_calls]
    named = [(result.tool_call_id, result.tool_name) for result in draft.results]
    # If a call has several results, the first one counts.
    given = dict(zip(reversed(named), reversed(draft.results), strict=True))
    why = draft.execute_error or "the tool gave no result"
    results = tuple(
        given.get((tool_call_id, tool_name))
        or ToolCallResult(
            tool_call_id=tool_call_id,
            tool_name=tool_name,
            status="failed",
            result=why,
            duration=0.0,
            timestamp=at,
        )
        for tool_call_id, tool_name in called
    )
    mismatch = _mismatch(called, named)
    if mismatch is None or (draft.execute_error and not draft.results):
        return replace(draft, results=results)
    noted = {**draft.metadata, _MISMATCH: mismatch[:_NOTE_CHARACTERS_MAX]}
    return replace(draft, results=results, metadata=noted)


_NOTE_CHARACTERS_MAX: Final = 300
_MISMATCH: Final = "tool_result_mismatch"


def _mismatch(called: list[tuple[str, str]], given: list[tuple[str, str]]) -> str | None:
    """Describes how the results differ from the calls (both as id and name), or returns
    `None`."""
    if called == given:
        return None
    for tool_call in called:
        if tool_call not in given:
            return f"call {tool_call[0]!r} of {tool_call[1]} has no result"
    for result in given:
        if result not in called:
            return f"result {result[0]!r} of {result[1]} answers none of the calls"
    if len(given) != len(set(given)):
        return "a call has more than one result"
    return "the results are in another order than their calls"
