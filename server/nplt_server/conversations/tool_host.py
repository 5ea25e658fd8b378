"""The conversation as a running tool sees it: the one door of `ToolHost`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from nplt_protocol.json_values import JsonObject
from nplt_server.agent_state import AgentState
from nplt_server.conversations.household import Household
from nplt_server.conversations.ledger import Ledger
from nplt_server.tools.base import ToolFailed
from nplt_storage.conversation.searching import SearchHit, SearchQuery
from nplt_storage.facts.entries import ToolResultsEntry
from nplt_storage.facts.tool_calls import ToolCallResult

_Changed = TypeVar("_Changed")


class TurnToolHost:
    """For the tools of one turn. One that was left behind may still knock when the
    turn is over: then nothing is changed any more."""

    __slots__ = ("_house", "_is_over", "_ledger", "_state", "turn_id")

    def __init__(
        self, turn_id: str, *, state: AgentState, ledger: Ledger, household: Household
    ) -> None:
        self.turn_id = turn_id
        self._state = state
        self._ledger = ledger
        self._house = household
        self._is_over = False

    def close(self) -> None:
        self._is_over = True

    @property
    def session_id(self) -> str:
        return self._ledger.session_id

    @property
    def user(self) -> str:
        return self._ledger.user

    @property
    def notebook(self) -> str:
        return self._state.notebook

    async def update_notebook(self, change: Callable[[str], str]) -> str:
        return await self._state.update_memory_notebook(self._in_time(change), turn_id=self.turn_id)

    def widget_state(self, name: str) -> JsonObject:
        return self._state.widget_state(name)

    async def update_widget(
        self, name: str, change: Callable[[JsonObject], JsonObject]
    ) -> JsonObject:
        return await self._state.update_widget(name, self._in_time(change), turn_id=self.turn_id)

    def find_result(self, tool_call_id: str) -> ToolCallResult | None:
        for entry in reversed(self._ledger.history.standing):
            if isinstance(entry, ToolResultsEntry):
                for result in entry.results:
                    if result.tool_call_id == tool_call_id:
                        return result
        return None

    async def read_blob(self, blob_id: str, offset: int, length: int) -> bytes:
        return await self._ledger.profile.store.blob(self.session_id, blob_id, offset, length)

    async def search(self, query: str, limit: int) -> Sequence[SearchHit]:
        wanted = SearchQuery(text=query, limit=limit)
        return list((await self._house.library.search(self.user, wanted)).hits)

    def _in_time(self, change: Callable[[_Changed], _Changed]) -> Callable[[_Changed], _Changed]:
        """Looked at when the pen is free, not when it was asked for."""

        def checked(before: _Changed) -> _Changed:
            if self._is_over:
                raise ToolFailed("the turn is over")
            return change(before)

        return checked
