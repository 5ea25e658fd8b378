"""What may be asked again when the connection went before the answer came. Pure.

What changes nothing is simply asked again; so is a move, which takes us where
we already are at worst, and a prompt, since its `message_id` makes it run once;
and an approval, since only the first answer counts.
Everything else (a new conversation, a rename, a deletion, a clear, an upload …)
may have happened or not: that is for the asker to find out, not for us to do
twice.
"""

from __future__ import annotations

from nplt_protocol.requests import (
    Approval,
    Attach,
    Cancel,
    ContextRequest,
    Detach,
    FileGet,
    HistoryRequest,
    ModelSwitch,
    Ping,
    Prompt,
    Request,
    Search,
    SessionList,
    SessionSwitch,
    StatusRequest,
    Tools,
    Usage,
)

_HARMLESS = (
    Approval,
    Attach,
    ContextRequest,
    Detach,
    FileGet,
    HistoryRequest,
    Ping,
    Search,
    SessionList,
    SessionSwitch,
    StatusRequest,
    Tools,
    Usage,
)


def may_repeat(request: Request) -> bool:
    match request:
        case Prompt():
            return request.message_id is not None
        case ModelSwitch():
            return request.model is None
        case Cancel():  # without an id: the turn of a connection that is gone
            return request.turn_id is not None
        case _:
            return isinstance(request, _HARMLESS)
