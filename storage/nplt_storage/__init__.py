"""Keeps conversations as append-only entries, in files, in Redis or in memory.

    entries, codec          the types of entries, and how one is written as a line
    history                 one conversation in memory, its turns
    rows, messages, pages   what lists and readers are shown of it
    search, redaction       finding and erasing what was said
    store                   the interface every backend implements
    partial_answers         the stored text of a call that has no entry yet
    files                   the default backend: one JSON file per conversation
    index                   SQLite index beside the files, for lists and search
    redis                   a backend with one stream per conversation
    memory                  a backend that ends with the process
    opening                 opens a backend from its configuration
    copying, attachments    forks and moves; uploaded files
    maintenance             doctor, repair, import, export, migrate
    testing                 the conformance rules, also for your own backend

Import from here, and the types of entries from `nplt_storage.entries`; other modules
may move. Names are loaded when they are first used.

`storage/FORMAT.md` specifies what is on disk. This package knows nothing of the
wire, of providers or of clients.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nplt_storage.codec import decode_line, encode_line, entry_as_json
    from nplt_storage.copying import NewFork, fork
    from nplt_storage.errors import (
        BadEntry,
        ConversationDamaged,
        ConversationExists,
        ConversationHeld,
        ConversationNotFound,
        ConversationReadOnly,
        DataDirectoryInUse,
        StorageError,
        StorageUnavailable,
        WrittenElsewhere,
    )
    from nplt_storage.files.append import Durability
    from nplt_storage.files.directory import FileSettings
    from nplt_storage.files.store import JsonFileStore
    from nplt_storage.history import ConversationHistory, HistorySnapshot, NotInReach
    from nplt_storage.memory import MemoryStore
    from nplt_storage.messages import ChatMessage, ToolCall
    from nplt_storage.opening import BadStoreConfig, StoreConfig, StoreContext, open_store
    from nplt_storage.pages import MessagePage, PageQuery
    from nplt_storage.partial_answers import PartialAnswer
    from nplt_storage.redis.store import RedisStore
    from nplt_storage.rows import BadCursor, ConversationRow, RowPage, RowQuery
    from nplt_storage.search import SearchHit, SearchPage, SearchQuery
    from nplt_storage.sent_before import SentBefore
    from nplt_storage.store import (
        Builder,
        ConversationStore,
        Opened,
        Origin,
        Record,
        StoreDescription,
    )
    from nplt_storage.store_backend import StoreBackend, create_history_backend

__all__ = [
    "BadCursor",
    "BadEntry",
    "BadStoreConfig",
    "Builder",
    "ChatMessage",
    "ConversationDamaged",
    "ConversationExists",
    "ConversationHeld",
    "ConversationHistory",
    "ConversationNotFound",
    "ConversationReadOnly",
    "ConversationRow",
    "ConversationStore",
    "DataDirectoryInUse",
    "Durability",
    "FileSettings",
    "HistorySnapshot",
    "JsonFileStore",
    "MemoryStore",
    "MessagePage",
    "NewFork",
    "NotInReach",
    "Opened",
    "Origin",
    "PageQuery",
    "PartialAnswer",
    "Record",
    "RedisStore",
    "RowPage",
    "RowQuery",
    "SearchHit",
    "SearchPage",
    "SearchQuery",
    "SentBefore",
    "StorageError",
    "StorageUnavailable",
    "StoreBackend",
    "StoreConfig",
    "StoreContext",
    "StoreDescription",
    "ToolCall",
    "WrittenElsewhere",
    "create_history_backend",
    "decode_line",
    "encode_line",
    "entry_as_json",
    "fork",
    "open_store",
]

_HOMES = (
    "nplt_storage.errors",
    "nplt_storage.codec",
    "nplt_storage.rows",
    "nplt_storage.messages",
    "nplt_storage.history",
    "nplt_storage.sent_before",
    "nplt_storage.partial_answers",
    "nplt_storage.pages",
    "nplt_storage.search",
    "nplt_storage.store",
    "nplt_storage.copying",
    "nplt_storage.opening",
    "nplt_storage.memory",
    "nplt_storage.store_backend",
    "nplt_storage.files.append",
    "nplt_storage.files.directory",
    "nplt_storage.files.store",
    "nplt_storage.redis.store",
)
"""The modules that define these names. Each depends mostly on those before it; Redis is last
because it may not be installed."""


def __getattr__(name: str) -> object:
    if name in __all__:
        for home in _HOMES:
            module = import_module(home)
            if name in vars(module):
                value: object = vars(module)[name]
                globals()[name] = value
                return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
