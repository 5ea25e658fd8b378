"""One conversation in memory: append-only, and what can be asked of it.

`stamp` checks a draft and gives it number, id and time; nothing has changed
until `add`, which the caller does once the entry is on disk. Every question is
answered from bookkeeping done in `add`, never by going through the entries
again. What is handed out is a copy or can't be changed. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar, overload

from nplt_storage.checks import check_entry, check_metadata, check_time
from nplt_storage.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    RenamedEntry,
    Role,
    SystemInstructionEntry,
    ToolResultsEntry,
)
from nplt_storage.errors import BadEntry
from nplt_storage.json_values import JsonObject
from nplt_storage.rules import check_next
from nplt_storage.tool_calls import ToolCallRequest
from nplt_storage.turns import Turns, TurnState
from nplt_storage.views import ChatMessage, ResultsByCall, chat_message

_E = TypeVar("_E", bound=Entry)


class EntriesSoFar(Sequence[Entry]):
    """The entries up to the moment it was asked for: no copy, and no way to change them."""

    __slots__ = ("_entries", "_length")

    def __init__(self, entries: list[Entry]) -> None:
        self._entries = entries
        self._length = len(entries)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | Sequence[Entry]:
        places = range(self._length)[index]
        if isinstance(places, range):
            return [self._entries[place] for place in places]
        return self._entries[places]


class ConversationHistory:
    def __init__(self, session_id: str, entries: Iterable[Entry] = ()) -> None:
        self.session_id = session_id
        self.name: str | None = None
        self.model: str | None = None
        self.system_instruction: str | None = None
        self._entries: list[Entry] = []
        self._turns = Turns()
        self._prompts: dict[str, ModelInputEntry] = {}
        self._spoken: list[ModelInputEntry | ModelOutputEntry] = []
        self._said_by_system: list[FaultEntry | SystemInstructionEntry] = []
        self._results: ResultsByCall = {}
        for entry in entries:
            self.add(entry)

    @property
    def entries(self) -> Sequence[Entry]:
        return EntriesSoFar(self._entries)

    @property
    def head_seq(self) -> int:
        return self._entries[-1].seq if self._entries else 0

    @property
    def message_count(self) -> int:
        return len(self._spoken)

    # Growing

    def stamp(self, draft: _E, *, id: str, timestamp: datetime) -> _E:  # noqa: A002
        check_metadata(draft.metadata)
        check_entry(draft)
        check_time(timestamp, "timestamp")
        if not id:
            raise BadEntry("an entry needs an id")
        check_next(draft, self._turns)
        entry = replace(draft, seq=self.head_seq + 1, id=id, timestamp=timestamp)
        if isinstance(entry, ToolResultsEntry):
            # They can answer only one call, so the number is known better here.
            turn = self._turns.get(entry.turn_id)
            return replace(entry, call=turn.last_call if turn else entry.call)
        return entry

    def add(self, entry: Entry) -> None:
        if entry.seq != self.head_seq + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {self.head_seq}")
        self._entries.append(entry)
        self._turns.add(entry)
        match entry:
            case ModelInputEntry():
                self._spoken.append(entry)
                if entry.message_id is not None:
                    self._prompts.setdefault(entry.message_id, entry)
            case ModelOutputEntry():
                self._spoken.append(entry)
            case ToolResultsEntry():
                self._results[entry.turn_id, entry.call] = entry
            case FaultEntry():
                self._said_by_system.append(entry)
            case SystemInstructionEntry():
                self._said_by_system.append(entry)
                self.system_instruction = entry.content
            case RenamedEntry():
                self.name = entry.name
            case ModelSwitchedEntry():
                self.model = entry.model
            case _:
                pass

    # Turns

    def prompt_with(self, message_id: str) -> ModelInputEntry | None:
        return self._prompts.get(message_id)

    def turn_state(self, turn_id: str) -> TurnState | None:
        turn = self._turns.get(turn_id)
        return None if turn is None else turn.state

    def end_of_turn(self, turn_id: str) -> ModelOutputEntry | FaultEntry | None:
        turn = self._turns.get(turn_id)
        return None if turn is None else turn.end

    def unfinished_turns(self) -> list[ModelInputEntry]:
        return self._turns.unfinished()

    def open_calls(self, turn_id: str) -> tuple[ToolCallRequest, ...]:
        turn = self._turns.get(turn_id)
        return () if turn is None else turn.open_calls

    # What is shown

    def context_entries(self, turn_id: str) -> list[Entry]:
        """Turns that ended before, in the order they ended, then this turn's own
        entries; an id that is not there is taken as a turn yet to come."""
        shown: list[Entry] = []
        for turn in self._turns.shown_to(turn_id):
            shown += turn.entries
        own = self._turns.get(turn_id)
        return [*shown, *own.entries] if own else shown

    def get_context(self, max_turns: int = 5) -> list[JsonObject]:
        return [
            chat_message(entry, self._results).as_json()
            for turn in self._turns.recent(max_turns)
            for entry in turn.entries
            if not isinstance(entry, ToolResultsEntry)
        ]

    def recent(self, n: int) -> list[ChatMessage]:
        newest = self._spoken[-n:] if n > 0 else []
        return [chat_message(entry, self._results) for entry in newest]

    def by_role(self, role: Role) -> list[ChatMessage]:
        said = self._said_by_system if role == "system" else self._spoken
        return [chat_message(entry, self._results) for entry in said if entry.role == role]
