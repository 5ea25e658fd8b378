"""One conversation in memory: append-only, and what can be asked about it.

`stamp` checks a draft and gives it a number, an id and a time. Nothing changes until
`add`, which the caller does once the entry is durable. Questions are answered from
state that `add` keeps up to date, never by going through the entries again; only a
rollback rebuilds that state.

An entry is *active* unless a rollback has taken it back; the ranges of numbers that are
taken back are called `hidden`, as in the files (`active_entries`). *Held* entries are those that
are loaded.

A history may be given only the newest entries, and the conversation's row for the
rest. It then answers for what it has loaded and raises `NotInReach` where that is not
enough. What it returns is a copy or immutable. No I/O, no clock.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import pairwise, takewhile
from typing import Final, TypeAlias, TypeVar

import orjson
from msgspec import Struct, field
from msgspec.structs import replace

from nplt_storage.active_entries import (
    ActiveEntries,
    EntriesSoFar,
    HiddenEntries,
    as_ranges,
    hidden_from,
    hidden_in,
    is_in,
    place_after,
    ranges_without,
    reach,
    skip_hidden,
)
from nplt_storage.entries import (
    ArchivedEntry,
    CheckpointEntry,
    CompactionEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ModelSwitchedEntry,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    Role,
    RollbackEntry,
    ToolCallRequest,
    ToolResultsEntry,
    UnknownEntry,
    WidgetEntry,
    wrong_reference,
)
from nplt_storage.errors import BadEntry, StorageError
from nplt_storage.json_values import JsonObject, JsonValue, check_object
from nplt_storage.messages import ChatMessage, MessageEntry, chat_message
from nplt_storage.rows import (
    COMPACTION,
    INSTRUCTION,
    NOTEBOOK,
    ConversationRow,
    Ranges,
    StateEntry,
    StateKey,
    fold_all,
    hidden_after,
    name_from,
    preview_of,
    read_checkpoint,
    row_from_entries,
    state_seqs_of,
    through,
    widget_key,
)
from nplt_storage.turns import Turn, TurnState, check_step

__all__ = ["ConversationHistory", "HistorySnapshot", "NotInReach", "Ranges"]


class NotInReach(StorageError):
    """The answer depends on entries that are not loaded: ask again with the whole record."""

    def __init__(self, seq: int) -> None:
        super().__init__(f"entry {seq} lies too far back: not all that followed it is held here")
        self.seq = seq


class UnloadedPart(Struct, frozen=True, kw_only=True):
    """The part of the conversation before the loaded entries.

    A long conversation is loaded from its end: all active entries from some number on, and a few
    older ones that still matter (instruction, notebook, widgets' states). The rest is known from
    the row, or from a checkpoint."""

    first_seq: int = 1
    """Every active entry from here on is loaded."""
    trimmed_through: int = 0
    """Entries up to here have been trimmed."""
    message_count: int = 0
    state_seqs: Mapping[StateKey, int | None] = field(default_factory=dict)
    """The state entries in force at `first_seq`; `None` if unknown."""
    is_known: bool = True
    """Whether `state_seqs` names every state entry before `first_seq`."""

    def state_seq(self, key: StateKey) -> int | None:
        """The number of the state entry; 0 if there is none, `None` if unknown."""
        return self.state_seqs.get(key, 0 if self.is_known else None)


def check_next(entry: Entry, active: ActiveEntries, head_seq: int) -> None:
    """Raises `BadEntry` if the entry must not follow. It is called before an entry gets its number,
    so that a record never holds a result without its call, an answer without a prompt, or output
    after the end of a turn. Stored entries are not checked by these rules."""
    turn = active.turns.get(entry.turn_id)
    match entry:
        case ModelInputEntry() | ModelOutputEntry() | ToolResultsEntry() | FaultEntry():
            check_step(entry, turn)
        case RenamedEntry():
            if not entry.name.strip():
                raise BadEntry("a name is not blank")
        case RollbackEntry(to_seq=seq):
            _check_reference(entry, seq, head_seq)
            _check_rollback(entry, active, head_seq)
        case (
            CompactionEntry(through_seq=seq)
            | QuarantineEntry(target_seq=seq)
            | ForkedEntry(at_seq=seq)
        ):
            _check_reference(entry, seq, head_seq)
        case UnknownEntry():
            raise BadEntry(f"this version does not know entries of kind {entry.kind!r}")
        case _:
            if isinstance(entry, EpochEntry):
                _check_reference(entry, entry.summary_through, head_seq)
            if turn is not None and turn.is_over:
                raise BadEntry(f"turn {entry.turn_id} has ended")


def _check_rollback(entry: RollbackEntry, active: ActiveEntries, head_seq: int) -> None:
    if entry.to_seq == head_seq and not entry.turns:
        raise BadEntry(f"there is nothing after entry {head_seq} to take back")
    if active.unfinished:
        raise BadEntry("an answer is still running: nothing can be taken back until it has ended")


def _check_reference(entry: Entry, seq: int, head_seq: int) -> None:
    """`seq`: the highest number that the entry names; 0 where that means none."""
    if wrong := wrong_reference(entry):
        raise BadEntry(wrong)
    if seq > head_seq:
        raise BadEntry(f"a {entry.kind} can't name entry {seq}: there are 1 to {head_seq}")


METADATA_BYTES_MAX: Final = 2048

_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_E = TypeVar("_E", bound=Entry)
_Rollback = TypeVar("_Rollback", bound=RollbackEntry)
_Setting: TypeAlias = RenamedEntry | ModelSwitchedEntry | PinnedEntry | ArchivedEntry
_STATE_KEYS: Final = (INSTRUCTION, NOTEBOOK, COMPACTION)


def check_metadata(metadata: Mapping[str, JsonValue]) -> None:
    if not metadata and type(metadata) is dict:
        return
    check_object(metadata, "metadata")
    for name in metadata:
        if not _SNAKE_CASE.fullmatch(name):
            raise BadEntry(f"the metadata key {name!r} is not snake_case")
    if metadata and len(orjson.dumps(dict(metadata))) > METADATA_BYTES_MAX:
        raise BadEntry(f"metadata is larger than {METADATA_BYTES_MAX} bytes as JSON")


class HistorySnapshot(Struct, frozen=True, kw_only=True):
    """A conversation as of one moment; later changes do not show."""

    session_id: str
    head_seq: int
    entries: Sequence[Entry]
    """The active entries."""
    message_count: int
    name: str | None
    model: str | None
    system_instruction: str | None
    notebook: str | None
    pinned: bool
    archived: bool


_MESSAGES: Final = (ModelInputEntry, ModelOutputEntry, ToolResultsEntry)


class ConversationHistory:
    def __init__(
        self,
        session_id: str,
        entries: Iterable[Entry] = (),
        *,
        row: ConversationRow | None = None,
        turns_max: int | None = None,
    ) -> None:
        """The entries are in order. With `row`, the conversation's row at the last entry or
        earlier, they may begin late and leave out hidden ones."""
        self.session_id = session_id
        self.turns_max = turns_max
        """The number of earlier turns a model may see; `None` for all."""
        self._held = held = list(entries)
        for last_seq, seq in pairwise((0, *(entry.seq for entry in held))):
            if seq <= last_seq:
                raise BadEntry(f"entry {seq} can't follow entry {last_seq}")
        self._hidden_first: tuple[int, Ranges] = (0, ())
        """An entry's number, and the hidden ranges when it was the newest; every later entry is
        loaded."""
        self._created_at = None if row is None else row.created_at
        if row is not None:
            known_seq = row.head_seq
            self._hidden_first = known_seq, row.hidden
            row = fold_all(row, (entry for entry in held if entry.seq > known_seq))
        elif held and held[0].seq > 1:
            first = row_from_entries(held[:1])
            self._hidden_first = (first.head_seq, first.hidden) if first else (held[0].seq - 1, ())
            row = row_from_entries(held)
        if row is not None:
            self.head_seq, self.hidden = row.head_seq, row.hidden
        else:
            self.head_seq, self.hidden = held[-1].seq if held else 0, hidden_in(held)
        self.changed_seq = self.head_seq
        """The newest entry other than a prompt, an output or results. While it stays the same, so
        do the instruction, state, epoch, quarantines and hidden ranges."""
        self._active = ActiveEntries(held, self.hidden)
        self.awaiting_client: Mapping[str | None, Turn] = self._active.awaiting_client
        """The turns that ended with calls whose results their clients have yet to bring."""
        first_seq = reach(held, self.hidden, self.head_seq)
        self._before = UnloadedPart(first_seq=first_seq, is_known=first_seq == 1)
        if row is not None and first_seq > 1:
            # Where the first that is held is a checkpoint, it has the number of the last
            # entry that is gone: that one came before, too.
            held_from = max(first_seq, row.first_seq)
            state_seqs = state_seqs_of(row).items()
            self._before = UnloadedPart(
                first_seq=first_seq,
                trimmed_through=row.first_seq - 1,
                message_count=max(0, row.message_count - len(self._active.spoken)),
                state_seqs={key: seq if seq < held_from else None for key, seq in state_seqs},
            )
        self._lost_at: int | None = None
        """The target of a rollback that could not be followed."""
        # A rollback does not undo what follows: it was set by people, or has to stay known.
        self.name: str | None = None
        """The name that a user gave, or else one made from the first prompt."""
        self.model: str | None = None
        self.options: Mapping[str, str | int | float] = {}
        self.pinned = False
        self.archived = False
        self._prompts: dict[str, ModelInputEntry] = {}
        """The prompts by message id, because a prompt that is sent twice runs once."""
        self._quoted: dict[int, StateEntry] = {}
        """The entries that checkpoints quote, by number; they may have been trimmed."""
        for entry in held:
            self._take_setting(entry)
        if row is not None:
            self.name = row.name if row.named else None
            self.model, self.pinned, self.archived = row.model, row.pinned, row.archived
            self.options = dict(row.options)

    @classmethod
    def replay(
        cls, session_id: str, entries: Iterable[Entry], through_seq: int
    ) -> ConversationHistory:
        """The conversation as it was when that entry was the newest."""
        history = cls(session_id, takewhile(lambda entry: entry.seq <= through_seq, entries))
        if history.head_seq != through_seq:
            raise BadEntry(f"there is no entry {through_seq}")
        return history

    # What it is now

    @property
    def entries(self) -> Sequence[Entry]:
        """All loaded entries, active or not."""
        return EntriesSoFar(self._held)

    @property
    def active(self) -> Sequence[Entry]:
        return EntriesSoFar(self._all_active.entries)

    @property
    def is_in_reach(self) -> bool:
        """Whether the active entries are loaded. If not, the conversation must be opened again;
        until then it grows, and knows its head, counts, settings and running turns."""
        return self._lost_at is None

    @property
    def first_seq(self) -> int:
        """Every active entry from here on is loaded; 1 if all are."""
        return self._before.first_seq

    @property
    def messages(self) -> list[ChatMessage]:
        """Copies of the loaded messages that no clear has hidden, oldest first."""
        return self.recent(self.head_seq)

    @property
    def created_at(self) -> datetime | None:
        """The time of the conversation's creation; `None` if nothing is stored."""
        first = self._held[0].timestamp if self._held else None
        return self._created_at or first

    @property
    def updated_at(self) -> datetime | None:
        """The time of the newest entry."""
        return self._held[-1].timestamp if self._held else self._created_at

    @property
    def holds_all(self) -> bool:
        """Whether every entry of the conversation is loaded, hidden ones too."""
        return len(self._held) == self.head_seq

    @property
    def message_count(self) -> int:
        return self._before.message_count + len(self._active.spoken)

    @property
    def system_instruction(self) -> str | None:
        return getattr(self._state_entry(INSTRUCTION), "content", None)

    @property
    def notebook(self) -> str | None:
        return getattr(self._state_entry(NOTEBOOK), "content", None)

    def widget_state(self, name: str) -> Mapping[str, JsonValue] | None:
        """The newest state, or `None`. An erased one is empty."""
        entry = self._state_entry(widget_key(name))
        return entry.state if isinstance(entry, WidgetEntry) else None

    @property
    def widget_states(self) -> dict[str, Mapping[str, JsonValue]]:
        names = sorted(name for kind, name in self._state_keys() if kind == WidgetEntry.kind)
        states = {name: self.widget_state(name) for name in names}
        return {name: state for name, state in states.items() if state is not None}

    @property
    def epoch(self) -> EpochEntry | None:
        return self._all_active.epoch

    @property
    def compactions(self) -> tuple[CompactionEntry, ...]:
        """The loaded compactions since the last clear. The newest one is loaded wherever it is."""
        held: Sequence[StateEntry] = self._all_active.state_entries.get(COMPACTION, ())
        newest = self._state_entry(COMPACTION)
        known = held if newest is None or newest in held[-1:] else (newest,)
        since_clear = takewhile(lambda entry: isinstance(entry, CompactionEntry), reversed(known))
        return tuple(entry for entry in since_clear if isinstance(entry, CompactionEntry))[::-1]

    @property
    def quarantined(self) -> dict[int, QuarantineEntry]:
        """The newest quarantine of each entry that is hidden from some model, by its number."""
        return {seq: known[-1] for seq, known in self._all_active.quarantined.items()}

    @property
    def quarantines(self) -> dict[int, tuple[QuarantineEntry, ...]]:
        """All quarantines in force, by the number of the entry."""
        return dict(self._all_active.quarantined)

    def hidden_from(self, provider: str) -> HiddenEntries:
        return hidden_from(provider, self._all_active.quarantined)

    def state_seqs(self) -> dict[StateKey, int]:
        """The numbers of the state entries that are in force."""
        entries = {key: self._state_entry(key) for key in self._state_keys()}
        return {key: entry.seq for key, entry in entries.items() if entry is not None}

    def snapshot(self) -> HistorySnapshot:
        return HistorySnapshot(
            session_id=self.session_id,
            head_seq=self.head_seq,
            entries=self.active,
            message_count=self.message_count,
            name=self.name,
            model=self.model,
            system_instruction=self.system_instruction,
            notebook=self.notebook,
            pinned=self.pinned,
            archived=self.archived,
        )

    def entries_after(self, seq: int) -> list[Entry] | None:
        """Every entry after that one, active or not; `None` if not all are loaded."""
        found = self._held[place_after(self._held, seq) :]
        return found if len(found) == max(0, self.head_seq - max(seq, 0)) else None

    def newest_after(self, seq: int) -> list[Entry]:
        """The loaded entries after that one, newest first."""
        return self._held[place_after(self._held, seq) :][::-1]

    # Turns

    def prompt_by_message_id(self, message_id: str) -> ModelInputEntry | None:
        """The prompt with that message_id, even if a rollback hid it, because a prompt that is sent
        twice runs once."""
        return self._prompts.get(message_id)

    def turn(self, turn_id: str) -> Turn | None:
        return self._active.turns.get(turn_id)

    def turn_state(self, turn_id: str) -> TurnState | None:
        turn = self.turn(turn_id)
        return None if turn is None else turn.state

    def end_of_turn(self, turn_id: str) -> ModelOutputEntry | ToolResultsEntry | FaultEntry | None:
        turn = self.turn(turn_id)
        return None if turn is None else turn.end

    def unfinished_turns(self) -> list[ModelInputEntry]:
        return list(self._active.unfinished.values())

    def open_tool_calls(self, turn_id: str) -> tuple[ToolCallRequest, ...]:
        turn = self.turn(turn_id)
        return () if turn is None else turn.open_tool_calls

    # What is shown

    @property
    def shown_turns(self) -> Sequence[Turn]:
        """The ended turns, as in `ActiveEntries.shown`; each turn is shown those with a lower
        number than its own. Callers must not change the list."""
        return self._all_active.shown

    def get_context(
        self, max_turns: int = 5, *, num_messages: int | None = None
    ) -> list[JsonObject]:
        """The last turns, or the last so many messages, that no clear has hidden, as JSON."""
        if num_messages is not None:
            return [message.as_json() for message in self.recent(num_messages)]
        turns_max = max_turns if self.turns_max is None else min(max_turns, self.turns_max)
        shown = self.shown_turns
        return [
            chat_message(entry, self._active.results).as_json()
            for turn in shown[max(0, len(shown) - max(0, turns_max)) :]
            for entry in turn.entries
            if not isinstance(entry, ToolResultsEntry)
        ]

    def recent(self, n: int) -> list[ChatMessage]:
        """The last `n` messages of people and models that no clear has hidden."""
        return self._messages(self._all_active.spoken_since_clear(n) if n > 0 else [])

    def by_role(self, role: Role) -> list[ChatMessage]:
        """Like `messages`; those of the system stay when the rest is cleared."""
        active = self._all_active
        entries: Iterable[Entry] = active.entries
        if role != "system":
            entries = active.spoken_since_clear(self.head_seq)
        messages = (entry for entry in entries if isinstance(entry, MessageEntry))
        return self._messages(entry for entry in messages if entry.role == role)

    # Growing

    def check(self, draft: Entry) -> None:
        """Raises `BadEntry` if the draft must not follow."""
        check_metadata(draft.metadata)
        check_next(draft, self._active, self.head_seq)

    def stamp(self, draft: _E, *, id: str, timestamp: datetime) -> _E:  # noqa: A002
        self.check(draft)
        if not id:
            raise BadEntry("an entry needs an id")
        entry = replace(draft, seq=self.head_seq + 1, id=id, timestamp=timestamp)
        # What follows from the record is known better here than to who asks.
        if isinstance(entry, ToolResultsEntry):
            turn = self._active.turns.get(entry.turn_id)
            return replace(entry, call=turn.last_call if turn else entry.call)
        if isinstance(entry, RollbackEntry):
            try:
                return self._completed(entry)
            except NotInReach:
                if entry.hidden is None:
                    raise
                # Drafted by who holds the whole record, and says all of it.
        return entry

    # A rollback is drafted here. `BadEntry` if there is nothing to take back or a turn has
    # not ended; `NotInReach` if it concerns what lies before the entries that are held:
    # then a history of the whole record knows, and what it drafts with `in_full` can be
    # stamped here.

    def rollback_to(self, to_seq: int, *, in_full: bool = False) -> RollbackEntry:
        """Drafts a rollback of everything after that entry."""
        return self._checked(RollbackEntry(to_seq=to_seq), in_full)

    def rollback_turns(self, turns: Sequence[str], *, in_full: bool = False) -> RollbackEntry:
        """Drafts a rollback of exactly those turns."""
        return self._checked(RollbackEntry(to_seq=self.head_seq, turns=tuple(turns)), in_full)

    def redo(self, *, in_full: bool = False) -> RollbackEntry:
        """Drafts a rollback of the last rollback, if no message came since. Several rollbacks can
        be taken back one after the other, the last one first."""
        return self._checked(RollbackEntry(to_seq=self._before_last_rollback(), redo=True), in_full)

    def _checked(self, draft: RollbackEntry, in_full: bool) -> RollbackEntry:
        check_next(draft, self._active, self.head_seq)
        return self._completed(draft, in_full=in_full)

    def turns_from(self, seq: int) -> list[str]:
        """The turn of that entry, if it is active, and those whose prompts came after it. Raises
        `NotInReach` if it lies before the loaded entries."""
        if seq < self._before.first_seq:
            raise NotInReach(seq)
        entries = self._all_active.entries
        since = entries[place_after(entries, seq - 1) :]
        first = self._active.turns.get(since[0].turn_id) if since and since[0].seq == seq else None
        if first is not None:
            since = entries[place_after(entries, first.number - 1) :]
        prompts = (entry for entry in since if isinstance(entry, ModelInputEntry))
        return list(dict.fromkeys(entry.turn_id for entry in prompts if entry.turn_id))

    def add(self, entry: Entry, after: ActiveEntries | None = None) -> None:
        """Adds the next entry. For a rollback, `after` is the result of `active_after` if the
        caller has it."""
        if entry.seq != self.head_seq + 1:
            raise BadEntry(f"entry {entry.seq} can't follow entry {self.head_seq}")
        if not isinstance(entry, _MESSAGES):
            self.changed_seq = entry.seq
        if not isinstance(entry, RollbackEntry):
            self._held.append(entry)
            self._take_setting(entry)
            self._active.add(entry)
        elif (active := after or self.active_after(entry)) is not None:
            self._held.append(entry)
            self.hidden = hidden_after(self.hidden, entry)
            self._active = active
            self.awaiting_client = self._active.awaiting_client
        else:
            self._begin_at(entry)
        self.head_seq = entry.seq

    def active_after(self, rollback: RollbackEntry) -> ActiveEntries | None:
        """The active entries after this rollback; `None` if they are not all loaded. Changes
        nothing, and takes time in proportion to the number of entries."""
        try:
            return self._left_by(rollback, hidden_after(self.hidden, rollback)[:-1])[1]
        except (NotInReach, BadEntry):
            return None

    def _begin_at(self, rollback: RollbackEntry) -> None:
        """Starts over from a rollback to an entry that is not loaded, made by another server. The
        loaded entries may be active or not, with gaps between them, so only the rollback's own
        fields are known."""
        self._lost_at = rollback.to_seq
        self.hidden = hidden_after(self.hidden, rollback)
        self._hidden_first = (rollback.seq, self.hidden)
        state_seqs = state_seqs_of(rollback)
        in_force = set(state_seqs.values())
        kept = [entry for entry in self._held if entry.seq in in_force]
        self._held = [*kept, rollback]
        self._active = ActiveEntries(kept)
        self.awaiting_client = self._active.awaiting_client
        self._before = UnloadedPart(
            first_seq=rollback.to_seq + 1,
            trimmed_through=self._before.trimmed_through,
            message_count=rollback.message_count,
            state_seqs=state_seqs,
        )

    def _take_setting(self, entry: Entry) -> None:
        match entry:
            case ModelInputEntry():
                if entry.message_id is not None:
                    self._prompts.setdefault(entry.message_id, entry)
                if self.name is None:
                    self.name = name_from(entry.content)
            case RenamedEntry():
                self.name = entry.name
            case ModelSwitchedEntry():
                self.model = entry.model or self.model
                if entry.options is not None:
                    self.options = entry.options
            case PinnedEntry():
                self.pinned = entry.pinned
            case ArchivedEntry():
                self.archived = entry.archived
            case CheckpointEntry():
                checkpoint = read_checkpoint(entry)
                if checkpoint is not None:
                    self._quoted |= {entry.seq: entry for entry in checkpoint.state_entries}
            case _:
                pass

    # Rollbacks
    #
    # What a draft says is taken from the entries that are active after it.

    def _completed(self, draft: _Rollback, *, in_full: bool = False) -> _Rollback:
        """The draft with all its fields filled in. The rules are checked elsewhere."""
        if draft.turns:
            draft, hidden = self._without_turns(draft)
        else:
            trimmed_through = self._before.trimmed_through
            if trimmed_through and draft.to_seq <= trimmed_through:
                raise BadEntry(f"entry {draft.to_seq} is no longer kept")
            in_full = in_full or is_in(self.hidden, draft.to_seq)
            hidden = self._hidden_at(draft.to_seq)
        is_implied = hidden == through(self.hidden, draft.to_seq)
        named = None if is_implied and not in_full else hidden
        return replace(self._left_by(draft, hidden)[0], hidden=named)

    def _without_turns(self, draft: _Rollback) -> tuple[_Rollback, Ranges]:
        """The draft with `to_seq` for its turns, and the ranges up to `to_seq` that it hides."""
        entries = self._active.entries
        taken = self._entries_of(draft.turns)
        taken_seqs = [entry.seq for entry in taken]
        if [entry.seq for entry in entries[-len(taken) :]] == taken_seqs:
            to_seq = skip_hidden(taken_seqs[0] - 1, list(self.hidden))
            return replace(draft, to_seq=to_seq), through(self.hidden, to_seq)
        hidden = tuple(sorted([*self.hidden, *as_ranges(taken_seqs)]))
        return replace(draft, to_seq=self.head_seq), hidden

    def _entries_of(self, turns: Sequence[str]) -> list[Entry]:
        """The entries that go when these turns are taken back, in order: the turns' own, the
        summaries that cover them, and the epochs since."""
        first_seq, held_from = self.head_seq, self._before.first_seq
        for turn_id in turns:
            turn = self._active.turns.get(turn_id)
            if turn is None and held_from > 1:
                raise NotInReach(held_from - 1)
            if turn is None:
                raise BadEntry(f"there is no turn {turn_id} here, or it was taken back before")
            if held_from > 1 and (turn.prompt is None or turn.number < held_from):
                raise NotInReach(turn.number)
            first_seq = min(first_seq, turn.number)
        entries, wanted = self._active.entries, set(turns)
        taken: list[Entry] = []
        own: list[int] = []
        for entry in entries[place_after(entries, first_seq - 1) :]:
            if entry.turn_id in wanted:
                own.append(entry.seq)
                taken.append(entry)
            elif isinstance(entry, EpochEntry):
                taken.append(entry)
            elif isinstance(entry, CompactionEntry):
                place = bisect_right(own, entry.through_seq)
                if place and own[place - 1] >= entry.from_seq:
                    taken.append(entry)
        return taken

    def _before_last_rollback(self) -> int:
        seq = self.head_seq
        while seq:
            place = place_after(self._held, seq) - 1
            entry = self._held[place] if place >= 0 else None
            if entry is None or entry.seq != seq:
                raise NotInReach(seq)
            if isinstance(entry, RollbackEntry):
                if not entry.redo:
                    return seq - 1
                seq = entry.to_seq
            elif isinstance(entry, _Setting):
                seq -= 1  # a rollback does not undo these
            else:
                break
        raise BadEntry("there is nothing to bring back: nothing was taken back just before")

    def _hidden_at(self, seq: int) -> Ranges:
        """The hidden ranges as they were when that entry was the newest."""
        first, hidden = self._hidden_first
        if seq < first:
            if not is_in(self.hidden, seq) and not (self.hidden and self.hidden[-1][1] > seq):
                return self.hidden  # no rollback came after it
            if not is_in(self.hidden, seq) and not through(self.hidden, seq):
                return ()  # what is active at an active entry is not hidden there
            if place_after(self._held, seq) != seq:
                raise NotInReach(seq)
            first, hidden = 0, ()
        places = range(place_after(self._held, first), place_after(self._held, seq))
        return hidden_in((self._held[place] for place in places), hidden)

    def _left_by(self, draft: _Rollback, hidden: Ranges) -> tuple[_Rollback, ActiveEntries]:
        """The draft with the fields that describe the remaining entries, and these entries.
        `hidden` are the hidden ranges up to `to_seq`."""
        after: Ranges = (*hidden, (draft.to_seq + 1, self.head_seq + 1))
        self._check_changes(after, draft.to_seq)
        left, before = ActiveEntries(self._held, after), self._before
        # Others may have followed an entry below `first_seq` that are not held.
        spoken = takewhile(lambda entry: entry.seq >= before.first_seq, reversed(left.spoken))
        preview = next(filter(None, (preview_of(entry.content) for entry in spoken)), "")
        if not preview and before.message_count:
            raise NotInReach(draft.to_seq)
        state_seqs: dict[StateKey, int] = {}
        for key in (*_STATE_KEYS, *self._state_keys(), *left.state_entries):
            entries = left.state_entries.get(key)
            is_held = entries is not None and entries[-1].seq >= before.first_seq
            seq = entries[-1].seq if entries and is_held else before.state_seq(key)
            if seq is None:
                raise NotInReach(draft.to_seq)
            state_seqs[key] = seq
        kind = WidgetEntry.kind
        widgets = [(key[1], seq) for key, seq in state_seqs.items() if key[0] == kind and seq]
        draft = replace(
            draft,
            message_count=before.message_count + len(left.spoken),
            preview=preview,
            system_seq=state_seqs[INSTRUCTION],
            notebook_seq=state_seqs[NOTEBOOK],
            compaction_seq=state_seqs[COMPACTION],
            widget_seqs=tuple(sorted(widgets)),
        )
        return draft, left

    def _check_changes(self, after: Ranges, to_seq: int) -> None:
        """Raises unless every entry that becomes active or hidden with these ranges is loaded."""
        first_seq, held = self._before.first_seq, self._held
        for first, last in ranges_without(self.hidden, after):
            if first <= self._before.trimmed_through:
                raise BadEntry(f"entry {first} is no longer kept")
            found = place_after(held, last) - place_after(held, first - 1)
            if first < first_seq or found != last - first + 1:
                raise NotInReach(to_seq)
        if any(first < first_seq for first, _ in ranges_without(after, self.hidden)):
            raise NotInReach(to_seq)

    # Inside

    @property
    def _all_active(self) -> ActiveEntries:
        if self._lost_at is not None:
            raise NotInReach(self._lost_at)
        return self._active

    def _messages(self, messages: Iterable[MessageEntry]) -> list[ChatMessage]:
        return [chat_message(entry, self._active.results).copy() for entry in messages]

    def _state_keys(self) -> Iterable[StateKey]:
        return self._before.state_seqs.keys() | self._active.state_entries.keys()

    def _state_entry(self, key: StateKey) -> StateEntry | None:
        entries = self._active.state_entries.get(key)
        earlier_seq = self._before.state_seq(key)
        if entries and entries[-1].seq >= (earlier_seq or 0):
            return entries[-1]
        quoted = self._quoted.get(earlier_seq or 0)
        # Whoever opened it handed in what there is: what is missing was erased.
        if quoted is None and earlier_seq and not self.is_in_reach:
            raise NotInReach(earlier_seq)
        return quoted
