"""How a chat with an event loop begins and ends, whatever it looks like.

A server is started where none is named and nobody listens; the conversation that
is meant is found; and whoever leaves is told how to come back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from nplt_client.background import compare_versions, ensure_running, find_server
from nplt_client.chat_order import ChatOrder
from nplt_client.client import Client
from nplt_client.errors import CannotConnect
from nplt_client.settings import Address, find_address
from nplt_client.terminal import say


def chat_with_a_server(
    order: ChatOrder, chat: Callable[[ChatOrder, Address], Awaitable[int]]
) -> int:
    async def talk() -> int:
        return await chat(order, address)

    address = find_address(order.server)
    try:
        return asyncio.run(talk())
    except CannotConnect as error:
        if not (address.is_default and error.nobody_listens):
            raise
    ensure_running(address)
    return asyncio.run(talk())


async def find_wanted(client: Client, order: ChatOrder, address: Address) -> str | None:
    """The conversation to go to; `None`: a new one."""
    if address.is_default and find_server() is not None:
        compare_versions(client.welcome.server)
    return await _most_recent(client) if order.go_on else order.resume or address.session


def say_way_back(order: ChatOrder, session_id: str) -> None:
    server = f" {order.server}" if order.server else ""
    say(f"come back with: nplt chat{server} --resume {session_id}")


async def _most_recent(client: Client) -> str | None:
    """Lists are newest first but for what is pinned, which stands above them."""
    newest = None
    async for row in client.sessions():
        if newest is None or row.updated_at > newest.updated_at:
            newest = row
        if not row.pinned:
            break
    if newest is None:
        say("there is no conversation yet; this is a new one")
        return None
    return newest.session_id
