"""The three methods of a history backend, on every store: `create_history_backend`.

    backend = create_history_backend({"type": "memory", "max_turns": 20})
    await backend.append_message("session_123", "user", "Hello")
    await backend.get_history("session_123")

The messages are entries of a conversation like any other. The store is opened at the first use,
and a conversation belongs to the backend from its first message until `aclose`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from nplt_storage.entries import (
    ClearEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    SystemInstructionEntry,
)
from nplt_storage.errors import BadEntry, ConversationNotFound
from nplt_storage.files.format import LOCAL_USER
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import new_entry_id
from nplt_storage.messages import ChatMessage
from nplt_storage.opening import Options, StoreConfig, check_config, open_store
from nplt_storage.rows import new_row
from nplt_storage.store import ConversationStore, Opened

_CLEARED: Final = "cleared"


class StoreBackend:
    """A `HistoryBackend` over a store."""

    def __init__(
        self,
        open_it: Callable[[], Awaitable[ConversationStore]],
        *,
        clock: Callable[[], datetime],
        max_turns: int | None = None,
    ) -> None:
        self._open_store = open_it
        self._clock = clock
        self._max_turns = max_turns
        self._store: ConversationStore | None = None
        self._opened: dict[str, Opened] = {}
        self._lock = asyncio.Lock()

    async def get_history(self, session_id: str) -> Sequence[Mapping[str, str]]:
        """The messages since the last clear; of the last `max_turns` prompts, if there is a
        limit."""
        async with self._lock:
            opened = await self._conversation(session_id)
            history = None if opened is None else await self._whole(opened.history)
        messages = [] if history is None else history.messages
        first = _first_of_turns(messages, self._max_turns)
        return [{"role": each.role, "content": each.content} for each in messages[first:]]

    async def append_message(self, session_id: str, role: str, content: str) -> None:
        """Raises `BadEntry` for a message that can't follow: an answer without a prompt, say."""
        async with self._lock:
            opened = await self._conversation(session_id)
            history = ConversationHistory(session_id) if opened is None else opened.history
            draft = _draft(history, role, content)
            history.check(draft)
            if opened is None:
                opened = await self._create(session_id)
            await self._append(opened, draft)

    async def clear_history(self, session_id: str) -> None:
        async with self._lock:
            opened = await self._conversation(session_id)
            if opened is None:
                return
            for prompt in opened.history.unfinished_turns():
                end = FaultEntry(
                    turn_id=prompt.turn_id, content=_CLEARED, code=_CLEARED, state="interrupted"
                )
                await self._append(opened, end)
            await self._append(opened, ClearEntry())

    async def aclose(self) -> None:
        async with self._lock:
            while self._opened:
                await self._opened.popitem()[1].record.close()
            if self._store is not None:
                await self._store.close()
                self._store = None

    async def _whole(self, history: ConversationHistory) -> ConversationHistory:
        """Loads all entries; only the end of a long conversation is in memory."""
        if history.first_seq == 1 or self._store is None:
            return history
        batches = self._store.entries(history.session_id)
        entries = [entry async for batch in batches for entry in batch]
        return ConversationHistory(history.session_id, entries)

    async def _conversation(self, session_id: str) -> Opened | None:
        if session_id not in self._opened:
            if self._store is None:
                self._store = await self._open_store()
            try:
                self._opened[session_id] = await self._store.open(session_id)
            except ConversationNotFound:
                return None
        return self._opened[session_id]

    async def _create(self, session_id: str) -> Opened:
        assert self._store is not None
        record = await self._store.create(session_id, user=LOCAL_USER)
        row = new_row(session_id, user=LOCAL_USER, created_at=self._clock())
        opened = Opened(record=record, history=ConversationHistory(session_id), row=row)
        self._opened[session_id] = opened
        return opened

    async def _append(self, opened: Opened, draft: Entry) -> None:
        entry = opened.history.stamp(draft, id=new_entry_id(), timestamp=self._clock())
        await opened.record.append(entry)
        opened.history.add(entry)


def _draft(history: ConversationHistory, role: str, content: str) -> Entry:
    match role:
        case "user":
            return ModelInputEntry(turn_id=new_entry_id(), content=content)
        case "assistant":
            waiting = history.unfinished_turns()
            if not waiting:
                raise BadEntry("an assistant's message follows a prompt, and there is none")
            turn_id = waiting[-1].turn_id or ""
            turn = history.turn(turn_id)
            call = 0 if turn is None else turn.last_call + 1
            return ModelOutputEntry(turn_id=turn_id, content=content, call=call)
        case "system":
            return SystemInstructionEntry(content=content)
        case _:
            raise BadEntry(f"there is no role {role!r}; there are user, assistant and system")


def _first_of_turns(messages: Sequence[ChatMessage], max_turns: int | None) -> int:
    prompts = [place for place, message in enumerate(messages) if message.role == "user"]
    return prompts[-max_turns] if max_turns and len(prompts) > max_turns else 0


def _utc_now() -> datetime:
    return datetime.now(UTC)


def create_history_backend(
    config: Mapping[str, Any],
    *,
    data_dir: Path | str = ".",
    clock: Callable[[], datetime] = _utc_now,
) -> StoreBackend:
    """The backend of the settings `backend` of a history: `type`, and the options of that type.
    Raises `BadStoreConfig` for a mistake in them. `data_dir` is for type `json`."""
    options: Options = {name: value for name, value in config.items() if name != "type"}
    store_config = StoreConfig(type=str(config.get("type", "json")), options=options)
    check_config(store_config)
    open_it = partial(open_store, store_config, data_dir=Path(data_dir), clock=clock)
    return StoreBackend(open_it, clock=clock, max_turns=options.get("max_turns"))
