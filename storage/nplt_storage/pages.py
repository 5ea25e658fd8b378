"""Pages of a conversation's messages or entries.

Pure functions over anything that can be read in both directions. A page is ordered
oldest first. Without a cursor it is the newest page; `before` and `after` exclude the
cursor, `around` includes it. A page holds at most `limit` messages and `bytes_max`
bytes and is never empty while there is something to show: what does not fit is dropped
on the side away from the cursor, and a single message that is too large is cut. The
`before` and `after` of a page are cursors for the next ones: paging in either direction
meets every message exactly once, since lines are only added at the end. The messages
view has the active messages; the entries view also has what a rollback took back.

Messages are in the order of the log, or in the order of the turns: each prompt with its
answer, also where it was sent while an earlier one was being answered (`TurnOrder`).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Final, Literal, Protocol, TypeGuard

import orjson
from msgspec import Struct

from nplt_storage.codec import entry_as_json
from nplt_storage.entries import (
    AttachmentEntry,
    ClearEntry,
    Entry,
    EpochEntry,
    ForkedEntry,
    LaterChangeEntry,
    LaterPromptEntry,
    LevelOfDetail,
    ModelInputEntry,
    ModelOutputEntry,
    RollbackEntry,
    ToolResultsEntry,
    ends_turn,
)
from nplt_storage.json_values import JsonObject, JsonValue
from nplt_storage.messages import (
    LevelMaker,
    MessageEntry,
    ResultsByCall,
    chat_message,
    no_levels,
)
from nplt_storage.rows import ConversationRow, Ranges, state_seqs_of

__all__ = [
    "EntrySource",
    "MessagePage",
    "PageQuery",
    "cut_message_to_fit",
    "read_page",
    "size_as_json",
]


# ------------------------------------------------------------------------------
# Making one message fit where it does not.
#
# Texts are cut at a code point, all at the same length, so that a long answer
# does not push its tool results out altogether. What was cut says so:
# `"truncated": true` and the `"size"` of the whole text in code points, which is
# what a reader needs to ask for the rest. If texts are not the reason it is too
# large, the largest other parts go, one by one.


_TEXTS = ("content", "reasoning", "screen")
_TEXTS_OF_CALLS = ("result", "raw_arguments")
_DISPENSABLE = (
    *("sections", "parts", "error", "usage", "options", "attachments", "metadata", "tool_calls"),
    "state",  # a widget's, a checkpoint's; that of an answer is a word and stays
)


def size_as_json(message: JsonObject, bracket_bytes: int = 1) -> int:
    """The bytes of the message as JSON, if each `[` in it takes `bracket_bytes`."""
    data = orjson.dumps(message)
    return len(data) + (bracket_bytes - 1) * data.count(b"[")


def cut_message_to_fit(message: JsonObject, size_max: int, bracket_bytes: int = 1) -> JsonObject:
    """The message itself if it fits, or else as much of it as does. If not even an empty one fits,
    the empty one is returned, so that a reader can get past it."""

    def fits_in(message: JsonObject) -> bool:
        return size_as_json(message, bracket_bytes) <= size_max

    if fits_in(message):
        return message
    bare = message
    for bare in _ever_barer(message):
        if fits_in(cut_texts(bare, 0)):
            break
    fits, too_long = 0, max(size_max, 0) + 1  # a code point takes at least a byte
    while too_long - fits > 1:
        length = (fits + too_long) // 2
        if fits_in(cut_texts(bare, length)):
            fits = length
        else:
            too_long = length
    return cut_texts(bare, fits)


def cut_texts(message: JsonObject, length: int) -> JsonObject:
    """The message with every text cut to that length, and marked where it was cut."""
    cut: dict[str, Any] = dict(message)
    content = cut.get("content")
    whole = len(content) if isinstance(content, str) else 0
    for name in _TEXTS:
        if isinstance(cut.get(name), str):
            cut[name] = cut[name][:length]
    if isinstance(cut.get("tool_calls"), list):
        cut["tool_calls"] = [_cut_call(call, length) for call in cut["tool_calls"]]
    return cut | {"truncated": True, "size": whole}


def _cut_call(call: Any, length: int) -> Any:
    if not isinstance(call, dict):
        return call
    cut = dict(call)
    for name in _TEXTS_OF_CALLS:
        text = cut.get(name)
        if isinstance(text, str) and len(text) > length:
            cut[name] = text[:length]
            if name == "result":
                cut |= {"truncated": True, "size": len(text)}
    return cut


def _ever_barer(message: JsonObject) -> Iterator[JsonObject]:
    yield message
    barer: dict[str, Any] = dict(message)
    if isinstance(calls := barer.get("tool_calls"), list):
        without = {"arguments": {}, "truncated": True}
        barer["tool_calls"] = [
            {name: call[name] for name in call if name != "sections"} | without
            if isinstance(call, dict)
            else call
            for call in calls
        ]
    yield barer
    for name in _DISPENSABLE:
        if name in barer and not isinstance(barer[name], str):
            nothing = type(barer[name])() if isinstance(barer[name], list | dict) else None
            barer = barer | {name: nothing}
            yield barer


_LOOKED_AT_MAX: Final = 64
"""The number of entries before the prompt that are searched."""


def attachments_of(prompt: ModelInputEntry, newest_first: Iterator[Entry]) -> list[JsonValue]:
    """The prompt's attachments; `newest_first` are the entries before the prompt, hidden or not.
    A prompt has only their ids. Their names are in attachment entries, mostly right before it; a
    file that was uploaded long before is shown by its id alone."""
    due = set(prompt.attachments)
    found: dict[str, JsonObject] = {}
    for entry in islice(newest_first, _LOOKED_AT_MAX):
        if isinstance(entry, AttachmentEntry) and entry.file_id in due:
            attachment: JsonObject = {
                "file_id": entry.file_id,
                "filename": entry.filename,
                "size": entry.size,
            }
            if entry.content_type is not None:
                attachment["content_type"] = entry.content_type
            found[entry.file_id] = attachment
            due.remove(entry.file_id)
        if not due:
            break
    return [found.get(file_id, {"file_id": file_id}) for file_id in prompt.attachments]


class PageQuery(Struct, frozen=True, kw_only=True):
    before: int | None = None
    after: int | None = None
    around: int | None = None
    limit: int = 20
    bytes_max: int = 60_000
    roles: tuple[str, ...] = ("user", "assistant")
    view: Literal["messages", "entries"] = "messages"
    order: Literal["turns", "log"] = "log"
    """The order of messages; entries are always in log order."""
    detail: LevelOfDetail = "live"
    bracket_bytes: int = 1
    """The size of a `[` in `bytes_max`; the sender of the page may escape it."""

    def __post_init__(self) -> None:
        if [self.before, self.after, self.around].count(None) < 2:
            raise ValueError("a page has one cursor: before, after or around")
        if self.limit < 1:
            raise ValueError("a page holds at least one message")

    @property
    def cursor(self) -> int | None:
        cursors = (self.before, self.after, self.around)
        return next((cursor for cursor in cursors if cursor is not None), None)


class MessagePage(Struct, frozen=True, kw_only=True):
    messages: tuple[JsonObject, ...]
    has_more_before: bool
    has_more_after: bool
    before: int
    after: int


class EntrySource(Protocol):
    """The entries of a conversation as of one moment."""

    @property
    def head_seq(self) -> int: ...
    def before(self, seq: int) -> Iterator[Entry]:
        """Entries below `seq`, newest first."""
        ...

    def after(self, seq: int) -> Iterator[Entry]:
        """Entries above `seq`, oldest first."""
        ...


class ActiveRanges:
    """The entries without the hidden ranges, which are not even read."""

    def __init__(self, source: EntrySource, hidden: Ranges) -> None:
        self.head_seq = source.head_seq
        self._source = source
        self._hidden = hidden

    def before(self, seq: int) -> Iterator[Entry]:
        for first, last in reversed(self._hidden):
            if first < seq:
                if last < seq - 1:
                    yield from _until(self._source.before(seq), last + 1)
                seq = first
        yield from self._source.before(seq)

    def after(self, seq: int) -> Iterator[Entry]:
        seq = max(seq, 0)
        for first, last in self._hidden:
            if last > seq:
                if first > seq + 1:
                    yield from _until(self._source.after(seq), first - 1)
                seq = last
        yield from self._source.after(seq)


class TurnOrder:
    """The messages of a conversation, each prompt directly with its answers.

    Prompts are in the order of the log, and so are outputs. An output comes after the
    prompt of its turn (of the latest turn that had any output by then, should the
    outputs of two turns be mixed) and before the next prompt. Only queued prompts move by
    that: past the rest of the answers that were being given when they came. Faults and
    instructions are ordered as prompts are.

    From any message the next one is found by reading as far as a prompt waited, and
    the whole of its turn, in either direction: never the whole conversation.
    """

    def __init__(self, source: EntrySource, running_seq: int | None) -> None:
        """`running_seq` is the prompt of the first turn that has not ended."""
        self.head_seq = source.head_seq
        self._source = source
        self._running_seq = running_seq

    def before(self, seq: int) -> Iterator[Entry]:
        """Messages before that one, newest first. If there is no such message, those
        before the first prompt from that number on."""
        here = self._at(seq)
        asked = here if _follows_prompt(here) else None
        outputs: deque[ModelOutputEntry] = deque()
        """Outputs waiting for the prompt they follow, newest first."""
        firsts: dict[str | None, int] = {}
        """The first known output of each turn."""
        if asked is not None:
            outputs.append(asked)
        else:
            outputs.extend(reversed(self._given_late(seq)))
        firsts.update((output.turn_id, output.seq) for output in outputs)
        is_met = asked is None
        """Whether the walk has come to the prompt that the message itself follows."""
        for entry in self._source.before(seq):
            if _follows_prompt(entry):
                outputs.append(entry)
                firsts[entry.turn_id] = entry.seq
            elif isinstance(entry, MessageEntry):
                is_prompt = isinstance(entry, ModelInputEntry)
                first = firsts.pop(entry.turn_id, None) if is_prompt else None
                while first is not None and outputs and outputs[0].seq >= first:
                    is_met = True
                    output = outputs.popleft()
                    if output is not asked:
                        yield output
                if is_met:
                    yield entry
        yield from (output for output in outputs if output is not asked)

    def after(self, seq: int) -> Iterator[Entry]:
        """Messages after that one, oldest first. Waiting prompts are left out, because the rest of
        the running turn comes before them."""
        here = self._at(seq)
        is_met = _follows_prompt(here)
        """Whether outputs that follow this message's prompt, or a later one, have come."""
        waiting = self._passed_by(here) if _follows_prompt(here) else deque()
        prompts = {entry.turn_id: entry.seq for entry in waiting}
        if isinstance(here, ModelInputEntry):
            prompts[here.turn_id] = seq
        for entry in self._source.after(seq):
            if _follows_prompt(entry):
                prompt_seq = prompts.get(entry.turn_id, 0)
                is_met = is_met or prompt_seq > 0
                while waiting and waiting[0].seq <= prompt_seq:
                    yield waiting.popleft()
                if is_met:
                    yield entry
            elif isinstance(entry, MessageEntry):
                waiting.append(entry)
                if isinstance(entry, ModelInputEntry):
                    prompts[entry.turn_id] = entry.seq
        for entry in waiting:
            if self._running_seq is None or entry.seq <= self._running_seq:
                yield entry

    def since(self, seq: int) -> Iterator[Entry]:
        """Gives that message, if it exists, and those after it."""
        here = self._at(seq)
        if isinstance(here, MessageEntry):
            yield here
        yield from self.after(seq)

    def _at(self, seq: int) -> Entry | None:
        entry = next(self._source.after(seq - 1), None)
        return entry if entry is not None and entry.seq == seq else None

    def _given_late(self, seq: int) -> list[ModelOutputEntry]:
        """Outputs from that number on that follow an earlier prompt."""
        late: list[ModelOutputEntry] = []
        prompted: set[str | None] = set()
        for entry in self._source.after(seq - 1):
            if isinstance(entry, ModelInputEntry):
                prompted.add(entry.turn_id)
            elif isinstance(entry, ForkedEntry):
                break  # all turns are over
            elif _follows_prompt(entry):
                if entry.turn_id in prompted:
                    break
                late.append(entry)
        return late

    def _passed_by(self, output: ModelOutputEntry) -> deque[MessageEntry]:
        """The messages that precede this output in the log and follow it in turn order, oldest
        first."""
        passed: deque[MessageEntry] = deque()
        answered = {output.turn_id}
        for entry in self._source.before(output.seq):
            if _follows_prompt(entry):
                answered.add(entry.turn_id)
            elif isinstance(entry, ModelInputEntry) and entry.turn_id in answered:
                break
            elif isinstance(entry, MessageEntry):
                passed.appendleft(entry)
        return passed


def _follows_prompt(entry: Entry | None) -> TypeGuard[ModelOutputEntry]:
    return isinstance(entry, ModelOutputEntry) and entry.turn_id is not None


def _until(entries: Iterator[Entry], seq: int) -> Iterator[Entry]:
    for entry in entries:
        yield entry
        if entry.seq == seq:
            return


class StoredEntries(EntrySource, Protocol):
    """The entries of a file or a stream, with the number of bytes read so far."""

    @property
    def bytes_read(self) -> int: ...
    def at(self, seq: int) -> Entry | None: ...


_SOME: Final = 1 / 16
"""The share of `enough` that is read even if models see less."""
_FAR: Final = 4
"""Turns of an epoch are read up to this many times `enough`. Without the rest of them a new epoch
begins, which costs the provider's cache."""


class WindowSize(Struct, frozen=True, kw_only=True):
    bytes: int = 8 * 1024 * 1024
    entries: int = 5_000


def read_end(
    source: StoredEntries, row: ConversationRow, *, enough: WindowSize | None = None
) -> list[Entry]:
    """The entries that the next turn needs, in order. They may begin late, and have gaps where
    entries are hidden. State entries and the epoch are read by their numbers, wherever they are.

    A conversation may be a gigabyte long, and the next turn needs the last few megabytes. It is
    read backward until there is enough. Where it is known what models still see (a clear hides
    everything before it, an epoch omits older turns), that much and some more is read, for prompts
    that are sent again and for rollbacks. Reading goes on until every turn that was met has its
    prompt, and every unfinished turn is complete."""
    enough = enough or WindowSize()
    epoch = source.at(row.epoch_seq) if row.epoch_seq else None
    unmet = {seq for _, seq in row.unfinished}
    """Prompts of turns that have not ended, by number."""
    prompted: set[str] = set()
    headless: set[str] = set()
    """Turns whose prompt has not been reached yet."""
    has_met_clear = False
    newest_first: list[Entry] = []
    bytes_before = source.bytes_read
    for entry in ActiveRanges(source, row.hidden).before(source.head_seq + 1):
        newest_first.append(entry)
        unmet.discard(entry.seq)
        if isinstance(entry, ClearEntry):
            has_met_clear = True
        elif isinstance(entry, EpochEntry) and not isinstance(epoch, EpochEntry):
            epoch = entry
        elif isinstance(entry, ModelInputEntry) and entry.turn_id is not None:
            prompted.add(entry.turn_id)
            headless.discard(entry.turn_id)
        elif isinstance(entry, LaterPromptEntry | LaterChangeEntry):
            pass  # the turn has not begun, or its prompt is here
        elif entry.turn_id is not None and entry.turn_id not in prompted:
            headless.add(entry.turn_id)
        needed: float = _SOME if has_met_clear else 1
        if not has_met_clear and isinstance(epoch, EpochEntry):
            needed = _SOME if entry.seq <= epoch.omitted_through + 1 else _FAR
        bytes_read = source.bytes_read - bytes_before
        found = max(bytes_read / enough.bytes, len(newest_first) / enough.entries)
        # A turn without any prompt (another program wrote it) must not lead
        # back to the very beginning.
        if not unmet and found >= (2 * max(1, needed) if headless else needed):
            break
    entries = newest_first[::-1]
    first_seq = entries[0].seq if entries else 0
    wanted = {*state_seqs_of(row).values(), row.epoch_seq} - {0}
    far = [source.at(seq) for seq in sorted(wanted) if seq < first_seq]
    return [*(entry for entry in far if entry is not None), *entries]


def read_page(
    query: PageQuery,
    source: EntrySource,
    hidden: Ranges = (),
    unfinished: Sequence[tuple[str, int]] = (),
    levels: LevelMaker = no_levels,
) -> MessagePage:
    """`hidden` and `unfinished` are the row's: the entries that were rolled back, and the turns
    that have not ended. `levels` makes a level of detail that the record does not hold."""
    running_seq = min((seq for _, seq in unfinished), default=None)
    page = _Page(query, source, hidden if query.view == "messages" else (), levels)
    turns: TurnOrder | None = None
    if query.order == "turns" and query.view == "messages":
        turns = TurnOrder(page.active, running_seq)
    order: EntrySource = turns or page.active
    newer: Iterator[Entry] = iter(())
    older: Iterator[Entry] = iter(())
    if query.after is not None:
        newer = order.after(query.after)
    elif query.around is not None:
        newer = turns.since(query.around) if turns else order.after(query.around - 1)
        older = order.before(query.around)
    else:
        older = order.before(order.head_seq + 1 if query.before is None else query.before)
    has_newer, has_older = page.fill(newer, older)
    found = page.found
    first = last = query.cursor or 0
    if found:
        first, last = found[0][0], found[-1][0]
    if query.after is not None:
        has_older = page.shows_any(order.before(first))
    elif query.before is not None:
        has_newer = page.shows_any(order.after(last))
    if turns and running_seq is not None and found:
        # The last message that no other will come before. Prompts that wait are shown on
        # the newest page; who reads on from there must not miss the answer that runs.
        settled = [
            seq for seq, message in found if seq <= running_seq or message["role"] == "assistant"
        ]
        last = settled[-1] if settled else running_seq
    return MessagePage(
        messages=tuple(message for _, message in found),
        has_more_before=has_older,
        has_more_after=has_newer,
        before=first,
        after=last,
    )


class _Page:
    """The messages of a page that is being read."""

    def __init__(
        self, query: PageQuery, whole: EntrySource, hidden: Ranges, levels: LevelMaker
    ) -> None:
        self.active = _ResultFinder(whole, hidden)
        self._query = query
        self._levels = levels
        self._whole = whole
        self._room = query.bytes_max
        self._newer: list[tuple[int, JsonObject]] = []
        self._older: list[tuple[int, JsonObject]] = []

    @property
    def found(self) -> list[tuple[int, JsonObject]]:
        return [*reversed(self._older), *self._newer]

    def fill(self, newer: Iterator[Entry], older: Iterator[Entry]) -> tuple[bool, bool]:
        """Takes messages alternately from both sides, nearest first; returns whether there are more
        on each side."""
        sides = self._shown(newer), self._shown(older)
        found = self._newer, self._older
        following = [next(side, None) for side in sides]
        side = 0
        while any(following) and len(self._newer) + len(self._older) < self._query.limit:
            if following[side] is None:
                side = 1 - side
            entry = following[side]
            if entry is None or not self._take(entry, found[side]):
                break
            following[side] = next(sides[side], None)
            side = 1 - side
        return following[0] is not None, following[1] is not None

    def shows_any(self, entries: Iterator[Entry]) -> bool:
        return next(self._shown(entries), None) is not None

    def _shown(self, entries: Iterator[Entry]) -> Iterator[Entry]:
        for entry in entries:
            asked_for = isinstance(entry, MessageEntry) and entry.role in self._query.roles
            if asked_for or self._query.view == "entries":
                yield entry

    def _take(self, entry: Entry, side: list[tuple[int, JsonObject]]) -> bool:
        query, message = self._query, self._project(entry)
        size = size_as_json(message, query.bracket_bytes) + 1
        if size > self._room:
            if self._newer or self._older:
                return False
            message = cut_message_to_fit(message, query.bytes_max - 1, query.bracket_bytes)
            size = size_as_json(message, query.bracket_bytes) + 1
        self._room -= size
        side.append((entry.seq, message))
        return True

    def _project(self, entry: Entry) -> JsonObject:
        if self._query.view == "entries" or not isinstance(entry, MessageEntry):
            return entry_as_json(entry)
        results = self.active.results_for(entry)
        message = chat_message(entry, results, self._query.detail, self._levels).as_json()
        if isinstance(entry, ModelInputEntry) and entry.attachments:
            message["attachments"] = attachments_of(entry, self._whole.before(entry.seq))
        return message


class _ResultFinder:
    """Reads the active entries and finds tool results, which come after their calls and may lie
    beyond the page. It collects what the page reads anyway, and reads ahead only for an output
    whose results were not among that: up to the end of its turn, or to a fork or rollback, which
    ended all turns."""

    def __init__(self, whole: EntrySource, hidden: Ranges) -> None:
        self.head_seq = whole.head_seq
        self._source = ActiveRanges(whole, hidden) if hidden else whole
        self._hidden = hidden
        self._whole = whole
        self._forked_at = 0
        self._results: ResultsByCall = {}
        self._ended: set[str | None] = set()
        self._noted_through = 0

    def before(self, seq: int) -> Iterator[Entry]:
        return map(self._noted, self._source.before(seq))

    def after(self, seq: int) -> Iterator[Entry]:
        return map(self._noted, self._source.after(seq))

    def _noted(self, entry: Entry) -> Entry:
        self._noted_through = max(self._noted_through, entry.seq)
        if isinstance(entry, ToolResultsEntry):
            self._results[entry.turn_id, entry.call] = entry
        elif ends_turn(entry):
            self._ended.add(entry.turn_id)
        elif isinstance(entry, ForkedEntry):
            self._forked_at = max(self._forked_at, entry.seq)
        return entry

    def results_for(self, entry: MessageEntry) -> ResultsByCall:
        if not isinstance(entry, ModelOutputEntry) or not entry.tool_calls:
            return self._results
        if entry.awaits_client or not entry.ends_turn:
            noted = max(self._noted_through, entry.seq)
            if not self._is_settled(entry) and (through := self._left_at(entry.seq)) > noted:
                for later in self.after(noted):
                    if self._is_settled(entry, later) or later.seq >= through:
                        break
        return self._results

    def _is_settled(self, entry: ModelOutputEntry, later: Entry | None = None) -> bool:
        """Whether no other results can follow. Those that a client brings come before the next
        output of another turn; `later` is the last entry that was read."""
        results = self._results.get((entry.turn_id, entry.call))
        if results is not None and not results.awaits_client:
            return True
        if any(call.by_client for call in entry.tool_calls):
            return isinstance(later, ModelOutputEntry) and later.turn_id != entry.turn_id
        return entry.turn_id in self._ended or entry.seq < self._forked_at

    def _left_at(self, seq: int) -> float:
        """The last entry before the next hidden range that ends with a rollback; no turn continues
        beyond it. Other hidden ranges are turns that were taken back from between others."""
        place = bisect_right(self._hidden, seq, key=lambda range_: range_[0])
        for first, last in islice(self._hidden, place, None):
            if isinstance(next(self._whole.after(last - 1), None), RollbackEntry):
                return first - 1
        return math.inf
