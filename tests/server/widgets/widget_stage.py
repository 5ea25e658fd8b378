"""A conversation without a server: its state, a pen, and a host for its tools."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from msgspec.structs import replace

from nplt_protocol.json_text import JsonObject
from nplt_server.conversations.agent_state import AgentState
from nplt_server.conversations.record import ConversationRecord
from nplt_server.widgets import default_widgets
from nplt_storage.codec import decode_line, encode_line
from nplt_storage.entries import (
    UNSTAMPED,
    Entry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    NotebookEntry,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.search import SearchHit

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
WIDGETS = default_widgets()
INVOCATION = ModelInvocationDescriptor(provider="p", specification="s", model="m")

_T = TypeVar("_T")


def moment(number: int) -> datetime:
    return EPOCH + timedelta(seconds=number)


def now(work: Coroutine[Any, Any, _T]) -> _T:
    """What it gives, of something that never has to wait."""
    try:
        work.send(None)
    except StopIteration as over:
        value: _T = over.value
        return value
    raise AssertionError("it waits")


class Stage:
    """Clock and ids count up. What is written goes through its line on disk."""

    turn_id = "t1"
    session_id = "s1"
    user = "local"

    def __init__(self, turns_max: int | None = None) -> None:
        self.history = ConversationHistory(self.session_id, turns_max=turns_max)
        self.state = AgentState(cast("ConversationRecord", self), widgets=WIDGETS)

    # As a record

    def exclusive(self) -> nullcontext[None]:
        return nullcontext()

    async def append(
        self,
        draft: Entry,
        *,
        check: Callable[[Entry], Entry] | None = None,
        with_event: bool = True,
    ) -> Entry:
        return self.put(draft if check is None else check(draft))

    def put(self, draft: Entry) -> Entry:
        number = self.history.head_seq + 1
        entry = self.history.stamp(draft, id=f"id{number}", timestamp=moment(number))
        self.history.add(decode_line(encode_line(entry)))
        return entry

    def put_again(self, entry: Entry) -> None:
        """Says what was said there once more, through the door it came in by."""
        draft = replace(entry, seq=0, id="", timestamp=UNSTAMPED)
        state = self.state
        match draft:
            case ModelInputEntry():
                now(state.append_model_input(replace(draft, sections=None)))
            case ModelOutputEntry():
                now(state.append_model_output(replace(draft, sections=None)))
            case ToolResultsEntry(results=results):
                bare = tuple(replace(result, sections=None) for result in results)
                now(state.append_tool_results(replace(draft, results=bare)))
            case SystemInstructionEntry(content=text):
                now(state.set_system_instruction(text))
            case NotebookEntry(content=text, turn_id=turn_id):
                now(state.update_memory_notebook(text, turn_id=turn_id))
            case WidgetEntry(widget=name, state=shown, turn_id=turn_id):
                now(state.update_widget(name, lambda _: dict(shown), turn_id=turn_id))
            case _:
                self.put(draft)

    # What happens in a conversation

    def ask(self, turn_id: str, text: str = "hello") -> ModelInputEntry:
        draft = ModelInputEntry(turn_id=turn_id, content=text)
        return now(self.state.append_model_input(draft))

    def answer(self, turn_id: str, text: str = "hi", *, call: int = 0) -> ModelOutputEntry:
        draft = ModelOutputEntry(turn_id=turn_id, content=text, call=call, invocation=INVOCATION)
        return now(self.state.append_model_output(draft))

    def call_tools(self, turn_id: str, *call_ids: str, call: int = 0) -> ModelOutputEntry:
        calls = tuple(
            ToolCallRequest(tool_call_id=id_, tool_name="now", raw_arguments="{}", arguments={})
            for id_ in call_ids
        )
        draft = ModelOutputEntry(
            turn_id=turn_id, content="", tool_calls=calls, call=call, invocation=INVOCATION
        )
        return now(self.state.append_model_output(draft))

    def give_results(self, turn_id: str, *call_ids: str, text: str = "ok") -> ToolResultsEntry:
        results = tuple(tool_result(id_, text) for id_ in call_ids)
        draft = ToolResultsEntry(turn_id=turn_id, results=results)
        return now(self.state.append_tool_results(draft))

    # As tools see it

    def use(self, name: str, **arguments: Any) -> str:
        (tool,) = [
            tool for tool in self.state.enumerate_widget_tools() if tool.description.name == name
        ]
        return now(_awaited(tool.run(arguments, self)))

    @property
    def notebook(self) -> str:
        return self.state.notebook

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        return await self.state.update_memory_notebook(change)

    def widget_state(self, name: str) -> JsonObject:
        return self.state.widget_state(name)

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        return await self.state.update_widget(name, change)

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        raise AssertionError("no widget asks for that")

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        raise AssertionError("no widget asks for that")

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        raise AssertionError("no widget asks for that")

    async def messages_around(self, session_id: str, seq: int, limit: int) -> Sequence[JsonObject]:
        raise AssertionError("no widget asks for that")

    async def keep_file(self, filename: str, content_type: str, data: bytes) -> str:
        raise NotImplementedError


def tool_result(tool_call_id: str, text: str = "ok") -> ToolCallResult:
    return ToolCallResult(
        tool_call_id=tool_call_id,
        tool_name="now",
        status="success",
        result=text,
        duration=0.5,
        timestamp=EPOCH,
    )


async def _awaited(work: Awaitable[_T]) -> _T:
    return await work
