"""`nplt chat --no-alt-screen`: connect, talk, and say how to come back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from nplt_client.arriving import chat_with_a_server, find_wanted, say_way_back
from nplt_client.background import state_dir
from nplt_client.chat_order import ChatOrder
from nplt_client.connecting import connect
from nplt_client.connection_states import ConnectionState
from nplt_client.fullscreen.visit import Visit
from nplt_client.linemode.chat import LineChat
from nplt_client.opening import COMMAND_NAME
from nplt_client.patience import Patience
from nplt_client.settings import Address, find_reconnect_seconds
from nplt_client.terminal import say


def chat_in_lines(order: ChatOrder) -> int:
    return chat_with_a_server(order, _chat)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ended:
    session_id: str | None
    wants_anew: bool
    draft: str


async def _chat(order: ChatOrder, address: Address) -> int:
    """One connection after the other, as long as the person wants another one."""
    ended = await _chat_once(order, address, draft="")
    while ended.wants_anew:
        order = replace(order, go_on=False, new=False, resume=ended.session_id)
        ended = await _chat_once(order, address, draft=ended.draft)
    if ended.session_id is not None:
        say_way_back(order, ended.session_id)
    return 0


async def _chat_once(order: ChatOrder, address: Address, *, draft: str) -> _Ended:
    news = _ConnectionNews()
    # A person may wait for a server as long as they like.
    patience = Patience(give_up_seconds=find_reconnect_seconds(None))
    connecting = connect(
        str(address), client_name=COMMAND_NAME, reconnect=patience, on_connection=news
    )
    async with connecting as client:
        wanted = await find_wanted(client, order, address)
        visit = Visit(client, model=order.model)
        if wanted is not None:
            await visit.come_to(wanted)
        say(f"{client.welcome.server} · {visit.model} · /help for help", dimmed=True)
        chat = LineChat(visit, state_dir())
        news.tell = chat.connection_changed
        try:
            await chat.talk(draft)
        finally:
            news.tell = None
        return _Ended(
            session_id=client.session_id if visit.is_stored else None,
            wants_anew=chat.wants_anew,
            draft=chat.draft,
        )


class _ConnectionNews:
    """Between the connection, which is there first, and the chat that shows its news."""

    def __init__(self) -> None:
        self.tell: Callable[[ConnectionState], None] | None = None

    def __call__(self, state: ConnectionState) -> None:
        if self.tell is not None:
            self.tell(state)
