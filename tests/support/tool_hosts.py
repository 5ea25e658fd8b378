"""A tool host and a turn for tools that run without a conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from nplt_protocol.json_text import JsonObject
from nplt_server.tools import ToolFailed, ToolHost
from nplt_storage.entries import ToolCallRequest, ToolCallResult
from nplt_storage.search import SearchHit


class NoConversationHost:
    """A `ToolHost` with empty hands."""

    session_id: str = ""
    user: str = ""
    turn_id: str = ""
    notebook: str = ""

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        _refuse()

    def widget_state(self, name: str) -> JsonObject:
        return {}

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        _refuse()

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        return None

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        _refuse()

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        return ()

    async def messages_around(self, session_id: str, seq: int, limit: int) -> Sequence[JsonObject]:
        _refuse()

    async def keep_file(self, filename: str, content_type: str, data: bytes) -> str:
        _refuse()


class RecordingTurn:
    """A `ToolTurn` that keeps what it is told, and that denies every tool it is asked about."""

    def __init__(
        self, tool_host: ToolHost | None = None, *, why_stopped: str = "cancelled"
    ) -> None:
        self.tool_host = tool_host or NoConversationHost()
        self.started: list[ToolCallRequest] = []
        self.results: list[ToolCallResult] = []
        self._why_stopped = why_stopped

    def tool_started(self, tool_call: ToolCallRequest) -> None:
        self.started.append(tool_call)

    def tool_finished(self, result: ToolCallResult) -> None:
        self.results.append(result)

    async def ask(self, tool_call: ToolCallRequest) -> str | None:
        return f"nobody allows {tool_call.tool_name}"

    def why_denied(self, tool_name: str) -> str | None:
        return None

    async def why_not_now(self) -> str | None:
        return None

    def why_stopped(self) -> str:
        return self._why_stopped


def _refuse() -> NoReturn:
    raise ToolFailed("there is no conversation here to ask")
