"""One conversation in memory: append-only, and what can be asked of it.

`stamp` checks a draft and gives it number, id and time; nothing has changed
until `add`, which the caller does once the entry is on disk. Every question is
answered from bookkeeping done in `add`, never by going through the entries
again; only a rollback is followed by putting together what stands now.

It may be given the newest entries only, and the conversation's row for the
rest: then it answers for what it holds, and says `NotInReach` where that would
be wrong; once someone who holds more has gone back to before what is held here,
that is whenever what stands is asked for. What is handed out is a copy or can't
be changed. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import takewhile
from typing import TypeVar

from nplt_storage.conversation.choices import Choices
from nplt_storage.conversation.landmarks import (
    COMPACTION,
    INSTRUCTION,
    NOTEBOOK,
    Landmark,
    Told,
    widget_landmark,
)
from nplt_storage.conversation.rollbacks import NotInReach
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.conversation.rules import check_next
from nplt_storage.conversation.stamping import stamp
from nplt_storage.conversation.standing import EntriesSoFar, Ranges, Standing
from nplt_storage.conversation.timeline import Timeline
from nplt_storage.conversation.turns import Turn, TurnState
from nplt_storage.conversation.views import ChatMessage, MessageEntry, chat_message
from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    QuarantineEntry,
    Role,
    RollbackEntry,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.facts.json_values import JsonObject, JsonValue
from nplt_storage.facts.tool_calls import ToolCallRequest

__all__ = ["ConversationHistory", "HistorySnapshot", "NotInReach"]

_E = TypeVar("_E", bound=Entry)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistorySnapshot:
    """A conversation as it stood at one moment; what comes later does not show."""

    session_id: str
    head_seq: int
    entries: Sequence[Entry]
    """Those that stood."""
    message_count: int
    name: str | None
    model: str | None
    system_instruction: str | None
    notebook: str | None
    pinned: bool
    archived: bool


class ConversationHistory:
    def __init__(
        self,
        session_id: str,
        entries: Iterable[Entry] = (),
        *,
        row: ConversationRow | None = None,
        turns_max: int | None = None,
    ) -> None:
        """Entries in order; with `row`, the conversation's at the last of them or
        earlier, they may begin late and leave out what it calls hidden."""
        self.session_id = session_id
        self.turns_max = turns_max
        """How many of the turns before its own a model may see; `None`: all."""
        self._timeline = Timeline(entries, row)
        self._choices = Choices(self._timeline.held.entries, self._timeline.row)

    @classmethod
    def replay(
        cls, session_id: str, entries: Iterable[Entry], through_seq: int
    ) -> ConversationHistory:
        """The conversation exactly as it was when that entry was the last one."""
        history = cls(session_id, takewhile(lambda entry: entry.seq <= through_seq, entries))
        if history.head_seq != through_seq:
            raise BadEntry(f"there is no entry {through_seq}")
        return history

    # What it is now

    @property
    def entries(self) -> Sequence[Entry]:
        """All that are held, whether they stand or not."""
        return self._timeline.held.so_far()

    @property
    def standing(self) -> Sequence[Entry]:
        return EntriesSoFar(self._all_standing.entries)

    @property
    def is_in_reach(self) -> bool:
        """Whether what stands is held. If not, the conversation must be opened again;
        until then it grows, and knows its head, counts, choices and running turns."""
        return self._timeline.lost_at is None

    @property
    def head_seq(self) -> int:
        return self._timeline.head_seq

    @property
    def first_seq(self) -> int:
        """Everything that stands from here on is held; 1: everything there is."""
        return self._timeline.before.first_seq

    @property
    def holds_all(self) -> bool:
        """Also what does not stand: nothing is known elsewhere that is not known here."""
        return len(self._timeline.held.entries) == self.head_seq

    @property
    def hidden(self) -> Ranges:
        return self._timeline.hidden

    @property
    def name(self) -> str | None:
        return self._choices.name

    @property
    def model(self) -> str | None:
        return self._choices.model

    @property
    def pinned(self) -> bool:
        return self._choices.pinned

    @property
    def archived(self) -> bool:
        return self._choices.archived

    @property
    def message_count(self) -> int:
        return self._timeline.before.message_count + len(self._standing.spoken)

    @property
    def system_instruction(self) -> str | None:
        return self._text(INSTRUCTION)

    @property
    def notebook(self) -> str | None:
        return self._text(NOTEBOOK)

    def widget_state(self, name: str) -> Mapping[str, JsonValue] | None:
        """As it was told last; `None`: it never was. An erased one is empty."""
        told = self._told(widget_landmark(name))
        return told.state if isinstance(told, WidgetEntry) else None

    @property
    def widget_states(self) -> dict[str, Mapping[str, JsonValue]]:
        known = self._timeline.before.landmarks.keys() | self._standing.told.keys()
        names = sorted(name for kind, name in known if kind == WidgetEntry.kind)
        states = {name: self.widget_state(name) for name in names}
        return {name: state for name, state in states.items() if state is not None}

    @property
    def epoch(self) -> EpochEntry | None:
        return self._all_standing.epoch

    @property
    def compactions(self) -> tuple[CompactionEntry, ...]:
        """Those that are held and that no clear came after; the newest is held, wherever
        it stands."""
        held: Sequence[Told] = self._all_standing.told.get(COMPACTION, ())
        newest = self._told(COMPACTION)
        known = held if newest is None or newest in held[-1:] else (newest,)
        since_clear = takewhile(lambda told: isinstance(told, CompactionEntry), reversed(known))
        return tuple(told for told in since_clear if isinstance(told, CompactionEntry))[::-1]

    @property
    def quarantined(self) -> dict[int, QuarantineEntry]:
        """By the number of the entry that is not shown to models."""
        return dict(self._all_standing.quarantined)

    def told_seqs(self) -> dict[Landmark, int]:
        """What holds until it is told anew, and the numbers of the entries that tell it."""
        known = self._timeline.before.landmarks.keys() | self._standing.told.keys()
        told = {landmark: self._told(landmark) for landmark in known}
        return {landmark: entry.seq for landmark, entry in told.items() if entry is not None}

    def snapshot(self) -> HistorySnapshot:
        return HistorySnapshot(
            session_id=self.session_id,
            head_seq=self.head_seq,
            entries=self.standing,
            message_count=self.message_count,
            name=self.name,
            model=self.model,
            system_instruction=self.system_instruction,
            notebook=self.notebook,
            pinned=self.pinned,
            archived=self.archived,
        )

    def entries_after(self, seq: int) -> list[Entry] | None:
        """Every entry after that one, standing or not; `None` if not all are held."""
        return self._timeline.held.after(seq, self.head_seq)

    # Growing

    def stamp(self, draft: _E, *, id: str, timestamp: datetime) -> _E:  # noqa: A002
        return stamp(draft, self._timeline, id=id, timestamp=timestamp)

    def rollback_to(self, to_seq: int, *, in_full: bool = False) -> RollbackEntry:
        """The draft that takes back what came after that entry. `BadEntry` if there is
        nothing to take back or a turn has not ended; `NotInReach` if it lies before
        what is held: then a history of the whole record knows, and what it drafts with
        `in_full` can be stamped here."""
        check_next(RollbackEntry(to_seq=to_seq), self._standing.turns, self.head_seq)
        draft = self._timeline.rollback_draft(to_seq)
        if in_full and draft.hidden is None:
            hidden = tuple(range_ for range_ in self.hidden if range_[1] <= to_seq)
            return replace(draft, hidden=hidden)
        return draft

    def add(self, entry: Entry) -> None:
        self._timeline.add(entry)
        self._choices.add(entry)

    # Turns

    def prompt_with(self, message_id: str) -> ModelInputEntry | None:
        """Also one that was taken back: what is sent twice runs once."""
        return self._choices.prompts.get(message_id)

    def turn(self, turn_id: str) -> Turn | None:
        return self._standing.turns.get(turn_id)

    def turn_state(self, turn_id: str) -> TurnState | None:
        turn = self._standing.turns.get(turn_id)
        return None if turn is None else turn.state

    def end_of_turn(self, turn_id: str) -> ModelOutputEntry | FaultEntry | None:
        turn = self._standing.turns.get(turn_id)
        return None if turn is None else turn.end

    def unfinished_turns(self) -> list[ModelInputEntry]:
        return self._standing.turns.unfinished()

    def open_calls(self, turn_id: str) -> tuple[ToolCallRequest, ...]:
        turn = self._standing.turns.get(turn_id)
        return () if turn is None else turn.open_calls

    # What is shown

    @property
    def shown_turns(self) -> Sequence[Turn]:
        """Ended turns, as `turns.Turns.shown`; each turn is shown those with a lower
        number than its own. To be looked at, not to be changed."""
        return self._all_standing.turns.shown

    def get_context(self, max_turns: int = 5) -> list[JsonObject]:
        turns_max = max_turns if self.turns_max is None else min(max_turns, self.turns_max)
        shown = self._all_standing.turns.shown
        return [
            chat_message(entry, self._standing.results).as_json()
            for turn in shown[max(0, len(shown) - max(0, turns_max)) :]
            for entry in turn.entries
            if not isinstance(entry, ToolResultsEntry)
        ]

    def recent(self, n: int) -> list[ChatMessage]:
        return self._messages(self._all_standing.spoken[-n:] if n > 0 else [])

    def by_role(self, role: Role) -> list[ChatMessage]:
        said: Sequence[MessageEntry] = self._all_standing.spoken
        if role == "system":
            said = self._all_standing.said_by_system
        return self._messages([entry for entry in said if entry.role == role])

    @property
    def _standing(self) -> Standing:
        """Of what is held."""
        return self._timeline.standing

    @property
    def _all_standing(self) -> Standing:
        if self._timeline.lost_at is not None:
            raise NotInReach(self._timeline.lost_at)
        return self._timeline.standing

    def _messages(self, said: Iterable[MessageEntry]) -> list[ChatMessage]:
        return [chat_message(entry, self._standing.results).copy() for entry in said]

    def _text(self, landmark: Landmark) -> str | None:
        told = self._told(landmark)
        return getattr(told, "content", None)

    def _told(self, landmark: Landmark) -> Told | None:
        told = self._standing.told.get(landmark)
        earlier_seq = self._timeline.before.told_at(landmark)
        if told and told[-1].seq >= (earlier_seq or 0):
            return told[-1]
        quoted = self._choices.quoted.get(earlier_seq or 0)
        # Whoever opened it handed in what there is: what is missing was erased.
        if quoted is None and earlier_seq and not self.is_in_reach:
            raise NotInReach(earlier_seq)
        return quoted
