"""`nplt chat` on a real terminal: connect, show, and say how to come back.

Until there is a connection, what goes wrong is said in lines, as everywhere
else; and so is the way back, on the screen that was there before.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from nplt_client.arriving import chat_with_a_server, find_wanted, say_way_back
from nplt_client.background import state_dir
from nplt_client.chat_order import ChatOrder
from nplt_client.connecting import connect
from nplt_client.fullscreen.app import Anew, ChatApp
from nplt_client.fullscreen.visit import Visit
from nplt_client.opening import COMMAND_NAME
from nplt_client.settings import Address


def chat_fullscreen(order: ChatOrder) -> int:
    return chat_with_a_server(order, _chat)


async def _chat(order: ChatOrder, address: Address) -> int:
    """One connection after the other, as long as the person wants another one."""
    ended = await _chat_once(order, address, draft="")
    while ended.anew is not None:
        order = replace(order, go_on=False, new=False, resume=ended.session_id)
        ended = await _chat_once(order, address, draft=ended.anew.draft)
    return ended.code


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    code: int
    session_id: str | None
    anew: Anew | None


async def _chat_once(order: ChatOrder, address: Address, *, draft: str) -> Ended:
    async with connect(str(address), client_name=COMMAND_NAME) as client:
        wanted = await find_wanted(client, order, address)
        visit = Visit(client, model=order.model)
        if wanted is not None:
            await visit.come_to(wanted)
        app = ChatApp(visit, state_dir(), draft=draft)
        anew = await app.run_async()
        if visit.is_stored and anew is None:
            say_way_back(order, client.session_id)
        return Ended(
            code=app.return_code or 0,
            session_id=client.session_id if visit.is_stored else None,
            anew=anew,
        )
