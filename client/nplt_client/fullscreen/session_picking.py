"""The session picker, opened: what it shows comes from the server, what it does goes there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from nplt_client.client import Client
from nplt_client.fullscreen.session_screen import SessionScreen
from nplt_protocol.replies import Attached

HITS_MAX = 100


async def pick(
    client: Client, wanted: str, show: Callable[[SessionScreen], Awaitable[str | None]]
) -> Awaitable[Attached] | None:
    """The way to the one that was chosen. `None`: we stay where we are.

    Whoever deletes the conversation he stands in is put into a fresh one.
    """
    here = client.session_id
    rows = [row async for row in client.sessions()]
    chosen = await show(SessionScreen(rows, ServerShelf(client), wanted))
    if chosen is not None and chosen != client.session_id:
        return client.switch(chosen)
    return client.attach(client.session_id) if client.session_id != here else None


class ServerShelf:
    """All conversations of this user."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def rename(self, session_id: str, name: str) -> None:
        await self._client.rename(name, session_id)

    async def delete(self, session_id: str) -> None:
        await self._client.delete(session_id)

    async def find_inside(self, wanted: str) -> dict[str, str]:
        found: dict[str, str] = {}
        looked_at = 0
        async for hit in self._client.search(wanted):
            found.setdefault(hit.session_id, hit.snippet)
            looked_at += 1
            if looked_at == HITS_MAX:
                break
        return found
