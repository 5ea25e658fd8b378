"""What a tool is: a name, a schema the model reads, and a function to run.

And what a running tool may ask of the conversation it runs in: `ToolHost`, the
only door. A tool that fails raises whatever it likes; the runner makes a result
of it that the model can read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, TypeAlias

from nplt_protocol.json_values import JsonObject
from nplt_storage.conversation.searching import SearchHit
from nplt_storage.facts.tool_calls import ToolCallResult

ToolClass: TypeAlias = Literal["read", "write", "network"]
"""The worst a tool does outside of its own conversation: look, change, talk to others.
What changes nothing but the conversation (a notebook, say) only reads."""

ToolPolicy: TypeAlias = Literal["allow", "ask", "deny"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescription:
    name: str
    description: str
    parameters: JsonObject
    """JSON Schema of the arguments."""
    tool_class: ToolClass = "read"


class ToolHost(Protocol):
    """The conversation a tool runs in, as far as a tool may see and change it."""

    @property
    def session_id(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def turn_id(self) -> str: ...

    @property
    def notebook(self) -> str: ...

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        """Reads, changes and records as one step; gives the new text. `change` may
        raise `ToolFailed`, and then nothing is changed."""
        ...

    def widget_state(self, name: str) -> JsonObject:
        """Empty if the widget has none yet."""
        ...

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        """As `update_notebook`, of any other widget."""
        ...

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        """Of the results that stand in this conversation and are at hand."""
        ...

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        """A part of what is kept beside the record; offset and length in bytes."""
        ...

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        """In all conversations of this user, newest first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    description: ToolDescription
    run: Callable[[JsonObject, ToolHost], Awaitable[str]]


class ToolFailed(Exception):
    """Raised by a tool with a sentence meant for the model."""
