"""A host for tools that run outside of any conversation: there is nothing to ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

from nplt_protocol.json_values import JsonObject
from nplt_server.tools.base import ToolFailed
from nplt_storage.conversation.searching import SearchHit
from nplt_storage.facts.tool_calls import ToolCallResult


class OutsideAnyConversation:
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


def _refuse() -> NoReturn:
    raise ToolFailed("there is no conversation here to ask")
