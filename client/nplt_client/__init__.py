"""The client library of nplt: conversations with language models, kept by a server.

    async with nplt_client.connect("nplt://127.0.0.1:9999") as client:
        print(await client.ask_text("hello"))

`nplt_client.sync` is the same for code without async. Names are loaded when they are
first used, so that importing the package is quick and short commands load no event loop.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nplt_client.client import Client, PromptFields, Turn, Watch, connect
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
    from nplt_client.wire.reconnect_policy import (
        ConnectionState,
        Offline,
        Online,
        Patience,
        Reconnecting,
    )
    from nplt_client.wire.transport import EventFeed
    from nplt_protocol.messages import (
        AgentThought,
        ApprovalRequest,
        Attached,
        ContextAccount,
        EntryAdded,
        EpochBegun,
        ErrorReport,
        Event,
        FileStored,
        HistoryPage,
        ModelChoice,
        Receipt,
        RolledBack,
        SeenMark,
        SessionChanged,
        SessionCreated,
        SessionDeleted,
        SessionEvent,
        SessionRow,
        Status,
        TextDelta,
        ToolFinished,
        ToolList,
        ToolStarted,
        TurnFinished,
        TurnStarted,
        UsageAccount,
        Welcome,
    )

_NAMES_OF = {
    "nplt_client.client": ("Client", "PromptFields", "Turn", "Watch", "connect"),
    "nplt_client.errors": (
        "AuthenticationFailed",
        "CannotConnect",
        "ConfigurationError",
        "ConnectionLost",
        "LimitExceeded",
        "MovedElsewhere",
        "NpltError",
        "ProtocolViolation",
        "ProviderFailed",
        "RequestRefused",
        "TimedOut",
        "TurnInterrupted",
    ),
    "nplt_client.wire.reconnect_policy": (
        "ConnectionState",
        "Offline",
        "Online",
        "Patience",
        "Reconnecting",
    ),
    "nplt_client.wire.transport": ("EventFeed",),
    "nplt_protocol.messages": (
        "AgentThought",
        "ApprovalRequest",
        "Attached",
        "ContextAccount",
        "EntryAdded",
        "EpochBegun",
        "ErrorReport",
        "Event",
        "FileStored",
        "HistoryPage",
        "ModelChoice",
        "Receipt",
        "RolledBack",
        "SessionCreated",
        "SeenMark",
        "SessionChanged",
        "SessionDeleted",
        "SessionEvent",
        "SessionRow",
        "Status",
        "TextDelta",
        "ToolFinished",
        "ToolList",
        "ToolStarted",
        "TurnFinished",
        "TurnStarted",
        "UsageAccount",
        "Welcome",
    ),
}
"""The module that defines each name; it is imported when the name is first used."""
_MODULE_OF = {name: module for module, names in _NAMES_OF.items() for name in names}

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
    "SeenMark",
    "SessionChanged",
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
    "Watch",
    "Welcome",
    "connect",
]


def __getattr__(name: str) -> object:
    if name == "sync":
        return import_module("nplt_client.sync")
    if (module := _MODULE_OF.get(name)) is not None:
        value: object = getattr(import_module(module), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "sync"})
