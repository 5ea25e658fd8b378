"""The client library of nplt: conversations with language models, kept by a server.

    async with nplt_client.connect("nplt://127.0.0.1:9999") as client:
        print(await client.ask_text("hello"))

`nplt_client.sync` is the same for code without async. Names are loaded when
they are first used: importing the package costs next to nothing, and the short
commands never load an event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nplt_client.client import Client
    from nplt_client.connecting import connect
    from nplt_client.connection_states import ConnectionState, Offline, Online, Reconnecting
    from nplt_client.errors import (
        AuthenticationFailed,
        CannotConnect,
        ConfigurationError,
        ConnectionLost,
        LimitExceeded,
        MovedElsewhere,
        NpltError,
        ProtocolViolation,
        ProviderFailed,
        RequestRefused,
        TimedOut,
        TurnInterrupted,
    )
    from nplt_client.mailbox import EventFeed
    from nplt_client.patience import Patience
    from nplt_client.turn import PromptFields, Turn
    from nplt_protocol.events import (
        AgentThought,
        ApprovalRequest,
        EntryAdded,
        ErrorReport,
        Event,
        SessionEvent,
        TextDelta,
        ToolFinished,
        ToolStarted,
        TurnFinished,
        TurnStarted,
    )
    from nplt_protocol.replies import (
        Attached,
        ContextAccount,
        EpochBegun,
        FileStored,
        HistoryPage,
        ModelChoice,
        Receipt,
        RolledBack,
        SessionCreated,
        SessionDeleted,
        SessionRow,
        Status,
        ToolList,
        UsageAccount,
        Welcome,
    )

_HOMES = (
    "nplt_client.errors",
    "nplt_protocol.events",
    "nplt_protocol.replies",
    "nplt_client.mailbox",
    "nplt_client.connection_states",
    "nplt_client.patience",
    "nplt_client.turn",
    "nplt_client.client",
    "nplt_client.connecting",
)
"""Where the names below live; each needs those before it anyway."""

__all__ = [
    "AgentThought",
    "ApprovalRequest",
    "Attached",
    "AuthenticationFailed",
    "CannotConnect",
    "Client",
    "ConfigurationError",
    "ConnectionLost",
    "ConnectionState",
    "ContextAccount",
    "EntryAdded",
    "EpochBegun",
    "ErrorReport",
    "Event",
    "EventFeed",
    "FileStored",
    "HistoryPage",
    "LimitExceeded",
    "ModelChoice",
    "MovedElsewhere",
    "NpltError",
    "Offline",
    "Online",
    "Patience",
    "PromptFields",
    "ProtocolViolation",
    "ProviderFailed",
    "Receipt",
    "Reconnecting",
    "RequestRefused",
    "RolledBack",
    "SessionCreated",
    "SessionDeleted",
    "SessionEvent",
    "SessionRow",
    "Status",
    "TextDelta",
    "TimedOut",
    "ToolFinished",
    "ToolList",
    "ToolStarted",
    "Turn",
    "TurnFinished",
    "TurnInterrupted",
    "TurnStarted",
    "UsageAccount",
    "Welcome",
    "connect",
]


def __getattr__(name: str) -> object:
    if name == "sync":
        return import_module("nplt_client.sync")
    if name in __all__:
        for home in map(import_module, _HOMES):
            if name in vars(home):
                value: object = vars(home)[name]
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "sync"})
