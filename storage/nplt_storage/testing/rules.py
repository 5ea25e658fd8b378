"""The conformance rules: writing, reading, durability, deleting, trimming.

First what they share: store makers, the rule book, expectations, small conversations. Every
public coroutine function here that asks for `make`, `store` (of that maker) and `writer` (of
the conversation "s1" in that store), and for nothing else, is a rule, and its name says what
must hold. Those after `where` are for some stores only.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction, signature
from itertools import count
from typing import Any, ClassVar, Literal, TypeAlias
from unittest import SkipTest

import anyio
import anyio.lowlevel
from msgspec import Struct, field
from msgspec.structs import replace

from nplt_storage.entries import (
    ApprovalEntry,
    ArchivedEntry,
    AttachmentEntry,
    BlobReference,
    CheckpointEntry,
    ClearEntry,
    CompactionEntry,
    DebugEntry,
    Entry,
    EpochEntry,
    FaultEntry,
    ForkedEntry,
    ModelInputEntry,
    ModelInvocationDescriptor,
    ModelOutputEntry,
    ModelSwitchedEntry,
    NotebookEntry,
    PinnedEntry,
    QuarantineEntry,
    RenamedEntry,
    SentContext,
    SystemInstructionEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
    WidgetEntry,
)
from nplt_storage.errors import (
    BadEntry,
    ConversationExists,
    ConversationNotFound,
    ConversationReadOnly,
    StorageError,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import new_entry_id
from nplt_storage.pages import MessagePage, PageQuery, size_as_json
from nplt_storage.partial_answers import DeltaKind, PartialAnswer
from nplt_storage.redaction import REDACTED
from nplt_storage.rows import BadCursor, ConversationRow, RowQuery, fold_all, new_row
from nplt_storage.search import SearchQuery
from nplt_storage.sent_before import SentBefore
from nplt_storage.store import ConversationStore as Store
from nplt_storage.store import Opened, Origin, Record

# ------------------------------------------------------------------------------
# Store makers
#
# A maker stands for one place where conversations are kept, empty at first. All stores it
# opens use that place. `can` lists what it can do beyond opening one store:
#
#     last      what one store wrote is there for the next, once it was closed
#     crash     likewise when its process died: `end` ends a store that way
#     share     a second store may be opened beside the first, as by another process
#     trim      `open_store(max_turns=…)` gives one that keeps that many turns
#     expire    `open_store(ttl_seconds=…)` gives one that forgets; `pass_time` ages it

Ability: TypeAlias = Literal["last", "crash", "share", "trim", "expire"]

START = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)


def ticking_clock() -> Callable[[], datetime]:
    """A clock that advances by a second on every call."""
    seconds = count()
    return lambda: START + timedelta(seconds=next(seconds))


class StoreMaker(ABC):
    can: ClassVar[frozenset[Ability]] = frozenset()

    def __init__(self) -> None:
        self.clock = ticking_clock()
        self._open: list[Store] = []

    @abstractmethod
    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> Store:
        """Opens a store. Options are only given to makers that can `trim` or `expire`."""

    async def end(self, store: Store) -> None:
        """Ends the store as the death of its process would: nothing is completed and nothing is
        announced."""
        raise NotImplementedError

    async def pass_time(self, seconds: int) -> None:
        raise NotImplementedError

    # For the rules

    async def store(self, **options: int) -> Store:
        store = await self.open_store(**options)
        self._open.append(store)
        return store

    async def reopened(self, store: Store) -> Store:
        await store.close()
        self._open.remove(store)
        return await self.store()

    async def after_crash(self, store: Store) -> Store:
        await self.end(store)
        self._open.remove(store)
        return await self.store()

    async def close(self) -> None:
        """Closes everything it has opened; a subclass with more resources closes these too."""
        while self._open:
            await self._open.pop().close()


Maker: TypeAlias = StoreMaker
Check: TypeAlias = Callable[..., Awaitable[None]]


class Rule(Struct, frozen=True):
    name: str
    check: Check
    needs: Ability | None = None
    options: dict[str, int] = field(default_factory=dict)
    """The options of the store that the rule is given."""

    async def run(self, make: StoreMaker) -> None:
        """Raises `RuleBroken`, or the store's own error, if the rule does not hold."""
        if self.needs is not None and self.needs not in make.can:
            raise SkipTest(f"these stores don't {self.needs}")
        given: dict[str, object] = {"make": make}
        needed = signature(self.check).parameters
        try:
            if "store" in needed or "writer" in needed:
                given["store"] = store = await make.store(**self.options)
                if "writer" in needed:
                    given["writer"] = await Writer.create(make, store)
            await self.check(**{name: given[name] for name in needed})
        finally:
            await make.close()


def where(ability: Ability, **options: int) -> Callable[[Check], Rule]:
    """Marks a rule for stores whose maker has that ability."""
    return lambda check: Rule(check.__name__, check, ability, options)


def rules_in(names: Mapping[str, Any]) -> tuple[Rule, ...]:
    """The rules in the order of their definition."""
    rules: list[Rule] = []
    for name, found in names.items():
        is_public = iscoroutinefunction(found) and not name.startswith("_")
        if isinstance(found, Rule):
            rules.append(found)
        elif is_public and signature(found).parameters.keys() <= {"make", "store", "writer"}:
            rules.append(Rule(name, found))
    return tuple(rules)


# ------------------------------------------------------------------------------
# Expectations, without pytest


class RuleBroken(AssertionError):
    pass


def expect(condition: object, otherwise: str) -> None:
    if not condition:
        raise RuleBroken(otherwise)


def expect_equal(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise RuleBroken(f"{what}: found {_short(found)}, not {_short(wanted)}")


async def refused(
    asked: Awaitable[object], errors: type[Exception] | tuple[type[Exception], ...], what: str
) -> None:
    try:
        await asked
    except errors:
        return
    raise RuleBroken(f"{what} should have raised {errors}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 600 else f"{text[:400]} … {text[-150:]}"


# ------------------------------------------------------------------------------
# Small conversations

HOSTILE_IDS = (
    *("", "..", "../s1", "/etc/passwd", "a/b", "a\\b", "a b", "a\n", "s1\x00", "-a", "_a", "é"),
    *("x" * 65, "s*", "s1.json", "s1:log", "@user:ada"),
)


class Writer(Struct):
    """A record and the history that goes with it."""

    record: Record
    history: ConversationHistory
    clock: Callable[[], datetime]

    @classmethod
    async def create(
        cls, make: StoreMaker, store: Store, session_id: str = "s1", user: str = "ada"
    ) -> Writer:
        record = await store.create(session_id, user=user)
        return cls(record, ConversationHistory(session_id), make.clock)

    @classmethod
    def of(cls, make: StoreMaker, opened: Opened) -> Writer:
        return cls(opened.record, opened.history, make.clock)

    async def opened_again(self, store: Store) -> Opened:
        """Closes the record and opens the conversation once more."""
        await self.record.close()
        return await store.open(self.record.session_id)

    async def reopened(self, store: Store) -> Writer:
        opened = await self.opened_again(store)
        return Writer(opened.record, opened.history, self.clock)

    def stamped(self, draft: Entry) -> Entry:
        return self.history.stamp(draft, id=new_entry_id(), timestamp=self.clock())

    async def write(self, *drafts: Entry) -> list[Entry]:
        written: list[Entry] = []
        for draft in drafts:
            entry = self.stamped(draft)
            await self.record.append(entry)
            self.history.add(entry)
            written.append(entry)
        return written

    async def append(self, entry: Entry) -> None:
        """Appends through the record alone; the history is not updated."""
        await self.record.append(entry)

    async def journal(self, turn_id: str, call: int, kind: DeltaKind, text: str) -> bool:
        """Journals a piece of a running answer. Returns whether it may be shown."""
        stored = self.record.journal_delta(turn_id, call, kind, text)
        return stored is None or await stored

    async def redact(self, seq: int) -> Entry:
        return await self.record.redact(seq, at=self.clock())

    async def turns(self, first: int, last: int) -> None:
        for number in range(first, last + 1):
            await self.write(*turn(number))


def prompt(turn_id: str, content: str = "hello") -> ModelInputEntry:
    return ModelInputEntry(turn_id=turn_id, content=content)


def answer(turn_id: str, content: str = "hi", *, call: int = 0) -> ModelOutputEntry:
    return ModelOutputEntry(turn_id=turn_id, content=content, call=call)


def fault(turn_id: str) -> FaultEntry:
    return FaultEntry(turn_id=turn_id, content="gone", code="cancelled", state="interrupted")


def asking(turn_id: str) -> ModelOutputEntry:
    call = ToolCallRequest(
        tool_call_id="c1", tool_name="look", raw_arguments='{"at":"it"}', arguments={"at": "it"}
    )
    return ModelOutputEntry(turn_id=turn_id, content="", tool_calls=(call,))


def looking(
    turn_id: str, result: str = "seen", blob: BlobReference | None = None
) -> ToolResultsEntry:
    given = ToolCallResult(
        tool_call_id="c1",
        tool_name="look",
        status="success",
        result=result,
        duration=0.25,
        timestamp=START,
        blob=blob,
    )
    return ToolResultsEntry(turn_id=turn_id, results=(given,))


def turn(number: int) -> list[Entry]:
    """A prompt and its answer; every third turn calls a tool on the way."""
    turn_id = f"t{number}"
    if number % 3:
        return [prompt(turn_id, f"ask {number}"), answer(turn_id, f"say {number}")]
    return [
        prompt(turn_id, f"ask {number}"),
        asking(turn_id),
        looking(turn_id),
        answer(turn_id, f"say {number}", call=1),
    ]


def drafted(make: StoreMaker, turns: int) -> list[Entry]:
    """The entries of a whole conversation that is not stored anywhere."""
    history = ConversationHistory("s1")
    for number in range(1, turns + 1):
        for draft in turn(number):
            history.add(history.stamp(draft, id=new_entry_id(), timestamp=make.clock()))
    return list(history.entries)


async def entries_of(
    store: Store, session_id: str = "s1", *, after: int = 0, through: int | None = None
) -> list[Entry]:
    found: list[Entry] = []
    async for batch in store.entries(session_id, after=after, through=through):
        found += batch
    return found


async def row_of(store: Store, session_id: str = "s1") -> ConversationRow:
    row = await store.row(session_id)
    if row is None:
        raise RuleBroken(f"there is no row of {session_id}")
    return row


async def ids_of(store: Store, user: str = "ada") -> list[str]:
    return [row.session_id for row in (await store.list(user, RowQuery(limit=1000))).rows]


async def all_messages(store: Store, session_id: str = "s1") -> MessagePage:
    return await store.page(session_id, PageQuery(limit=10_000, bytes_max=10**9))


def numbers_in(page: MessagePage) -> list[object]:
    return [message["seq"] for message in page.messages]


def messages_among(entries: Iterable[Entry]) -> list[int]:
    return [e.seq for e in entries if isinstance(e, ModelInputEntry | ModelOutputEntry)]


def without_gaps(entries: Sequence[Entry]) -> bool:
    return [entry.seq for entry in entries] == list(range(1, len(entries) + 1))


# ------------------------------------------------------------------------------
# Pages


async def _walk_back(
    store: Store, limit: int, order: Literal["turns", "log"] = "log"
) -> list[object]:
    page = await store.page("s1", PageQuery(limit=limit, order=order))
    found = numbers_in(page)
    while page.has_more_before:
        page = await store.page("s1", PageQuery(before=page.before, limit=limit, order=order))
        expect(page.messages, "a page leads nowhere")
        found = numbers_in(page) + found
        expect(len(found) == len(set(found)), "a message was met twice")
        await anyio.lowlevel.checkpoint()
    return found


async def _walk_on(store: Store, limit: int, *, through: int) -> list[object]:
    found: list[object] = []
    after = 0
    while after < through:
        page = await store.page("s1", PageQuery(after=after, limit=limit))
        expect(page.after > after, "a page leads nowhere")
        found += numbers_in(page)
        after = page.after
        await anyio.lowlevel.checkpoint()
    return found


async def both_ways_meet_every_message_once(store: Store, writer: Writer) -> None:
    await writer.turns(1, 7)
    messages = messages_among(writer.history.entries)
    for limit in (1, 3, 100):
        expect_equal(await _walk_back(store, limit), messages, f"walking back by {limit}")
        walked = await _walk_on(store, limit, through=messages[-1])
        expect_equal(walked, messages, f"walking on by {limit}")


async def walking_while_it_grows_meets_every_message_once(store: Store, writer: Writer) -> None:
    await writer.turns(1, 4)
    is_done = anyio.Event()

    async def walk_all_back() -> None:
        while not is_done.is_set():
            found = await _walk_back(store, 3)
            messages = messages_among(await entries_of(store))
            expect_equal(found, messages[: len(found)], "walking back while it grows")
            await anyio.lowlevel.checkpoint()

    async def walk_on(limit: int) -> None:
        found: list[object] = []
        after = 0
        while not is_done.is_set() or after < messages_among(writer.history.entries)[-1]:
            is_all_there = is_done.is_set()
            page = await store.page("s1", PageQuery(after=after, limit=limit))
            expect(page.messages or not is_all_there, "what was written last is not there")
            found += numbers_in(page)
            after = max(after, page.after)
            await anyio.lowlevel.checkpoint()
        expect_equal(found, messages_among(writer.history.entries), "walking on while it grows")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(walk_all_back)
        tasks.start_soon(walk_on, 1)
        tasks.start_soon(walk_on, 5)
        for number in range(5, 11):
            await writer.turns(number, number)
            await anyio.lowlevel.checkpoint()  # a store that never waits lets nobody else in
        is_done.set()


async def a_page_around_a_message_holds_it_and_its_neighbours(store: Store, writer: Writer) -> None:
    await writer.turns(1, 7)
    messages = messages_among(writer.history.entries)
    middle = messages[len(messages) // 2]
    page = await store.page("s1", PageQuery(around=middle, limit=5))
    found = numbers_in(page)
    start = next((place for place, seq in enumerate(messages) if seq in found), 0)
    expect(middle in found, "the message itself is missing")
    expect_equal(found, messages[start : start + 5], "a page around a message")
    expect(page.has_more_before and page.has_more_after, "there is more on both sides")


async def a_page_is_not_larger_than_asked_for_and_never_empty(store: Store, writer: Writer) -> None:
    for number in range(8):
        await writer.write(prompt(f"t{number}", "q" * 900), answer(f"t{number}", "a" * 900))
    page = await store.page("s1", PageQuery(bytes_max=3000))
    size = sum(map(size_as_json, page.messages))
    expect(0 < size <= 3000, f"a page of 3000 bytes has {size}")
    expect_equal(numbers_in(page)[-1], 16, "the newest message")
    small = await store.page("s1", PageQuery(bytes_max=600, after=3))
    expect_equal(numbers_in(small), [4], "a page that has no room for a whole message")
    expect_equal(small.messages[0]["truncated"], True, "whether it says that it was cut")


async def a_page_is_the_same_open_or_closed(store: Store, writer: Writer) -> None:
    await writer.turns(1, 6)
    await writer.write(ClearEntry())
    queries = [
        PageQuery(),
        PageQuery(before=11, limit=3),
        PageQuery(around=5, view="entries"),
        PageQuery(after=2, roles=("assistant",)),
    ]
    while_open = [await store.page("s1", query) for query in queries]
    await writer.record.close()
    expect_equal([await store.page("s1", q) for q in queries], while_open, "pages when closed")
    seen = numbers_in(await store.page("s1", PageQuery(view="entries", limit=100)))
    expect_equal(seen, [entry.seq for entry in writer.history.entries], "the entries view")


async def tool_results_are_joined_to_their_calls(store: Store, writer: Writer) -> None:
    await writer.turns(3, 3)
    page = await store.page("s1", PageQuery(before=3))
    calls = page.messages[-1]["tool_calls"]
    results = [call["result"] for call in calls if isinstance(call, dict)]  # type: ignore[union-attr]
    expect_equal(results, ["seen"], "the result of a call, told in a later entry")


async def the_whole_text_of_one_entry_can_be_had(store: Store, writer: Writer) -> None:
    text = "漢\x00" * 100_000
    await writer.write(prompt("t1", text), answer("t1"), ClearEntry())
    expect(await store.text_of("s1", 1) == text, "a long text came back changed")
    expect_equal(await store.text_of("s1", 2), "hi", "a short text")
    for nothing in (3, 4, 0, -1, 10**20):
        expect_equal(await store.text_of("s1", nothing), None, f"the text of entry {nothing}")


async def entries_can_be_had_in_part(make: Maker, store: Store) -> None:
    whole = drafted(make, 40)
    await _build(store, "s1", whole)
    for after, through in ((0, None), (5, None), (0, 7), (3, 4), (4, 4), (len(whole), None)):
        found = await entries_of(store, after=after, through=through)
        what = f"entries after {after} through {through}"
        expect_equal(found, whole[after : len(whole) if through is None else through], what)
    async for batch in store.entries("s1"):
        expect(batch, "a batch is empty")


# ------------------------------------------------------------------------------
# Rows and lists


async def _three(make: Maker, store: Store) -> list[Writer]:
    writers = [await Writer.create(make, store, f"s{number}") for number in range(3)]
    for number, writer in enumerate(writers):
        await writer.write(prompt("t1", f"Topic {number}"))
    return writers


async def rows_are_what_the_entries_say(store: Store, writer: Writer) -> None:
    created = await row_of(store)
    turns: list[list[Entry]] = [
        [prompt("t1", "What now?\nLater."), answer("t1", "This.")],
        [SystemInstructionEntry(content="be brief"), NotebookEntry(content="- milk")],
        [RenamedEntry(name="plans"), ModelSwitchedEntry(model="p/m"), PinnedEntry(pinned=True)],
        [prompt("t2"), prompt("t3"), fault("t3"), ArchivedEntry(archived=True)],
    ]
    for drafts in turns:
        await writer.write(*drafts)
        start = new_row("s1", user="ada", created_at=created.created_at)
        wanted = fold_all(start, await entries_of(store))
        expect_equal(await row_of(store), wanted, "the row")
    row = await row_of(store)
    expect_equal((row.name, row.preview, row.message_count), ("plans", "hello", 4), "the row")


async def a_list_has_pinned_ones_on_top_then_the_newest(make: Maker, store: Store) -> None:
    writers = await _three(make, store)
    expect_equal(await ids_of(store), ["s2", "s1", "s0"], "the list")
    await writers[0].write(answer("t1"))
    expect_equal(await ids_of(store), ["s0", "s2", "s1"], "the list after a word in s0")
    await writers[1].write(PinnedEntry(pinned=True))
    await writers[2].write(answer("t1"))
    expect_equal(await ids_of(store), ["s1", "s2", "s0"], "the list with s1 pinned")
    await writers[1].write(PinnedEntry(pinned=False))
    await writers[0].write(prompt("t2"))
    expect_equal(await ids_of(store), ["s0", "s1", "s2"], "the list with nothing pinned")


async def a_list_is_walked_page_by_page(make: Maker, store: Store) -> None:
    for number in range(11):
        writer = await Writer.create(make, store, f"s{number:02}")
        if number in (3, 7):
            await writer.write(PinnedEntry(pinned=True))
    whole = await ids_of(store)
    expect_equal(sorted(whole), [f"s{number:02}" for number in range(11)], "the whole list")
    expect_equal(sorted(whole[:2]), ["s03", "s07"], "the pinned ones")
    for limit in (1, 4, 11):
        found: list[str] = []
        cursor = None
        while cursor is not None or not found:
            page = await store.list("ada", RowQuery(limit=limit, cursor=cursor))
            expect(0 < len(page.rows) <= limit, f"a page of {limit} has {len(page.rows)} rows")
            found += [row.session_id for row in page.rows]
            expect(len(found) <= len(whole), f"a list of {len(whole)} has no end")
            cursor = page.next_cursor
        expect_equal(found, whole, f"the list by {limit}")


async def a_list_can_be_walked_while_conversations_move(make: Maker, store: Store) -> None:
    writers = {f"s{n}": await Writer.create(make, store, f"s{n}") for n in range(6)}
    first = await store.list("ada", RowQuery(limit=2))
    expect_equal([row.session_id for row in first.rows], ["s5", "s4"], "the first page")
    await writers["s1"].write(prompt("t1"))
    await writers["s5"].write(prompt("t1"))
    rest = await store.list("ada", RowQuery(limit=10, cursor=first.next_cursor))
    found = [row.session_id for row in rest.rows]
    expect_equal(found, ["s3", "s2", "s0"], "the rest: what moved is at the top now")


async def a_list_can_be_narrowed(make: Maker, store: Store) -> None:
    writers = await _three(make, store)
    await writers[0].write(answer("t1"), ArchivedEntry(archived=True))
    await writers[1].write(RenamedEntry(name="Straße nach Süden"))
    await writers[2].write(answer("t1"))

    for query, wanted in (
        (RowQuery(archived=True), ["s0"]),
        (RowQuery(archived=False), ["s2", "s1"]),
        (RowQuery(name_has="STRASSE"), ["s1"]),
        (RowQuery(name_has="topic"), ["s2", "s0"]),
        (RowQuery(name_is="Topic 2"), ["s2"]),
        (RowQuery(name_is="topic 2"), []),
        (RowQuery(id_prefix="s1"), ["s1"]),
        (RowQuery(id_prefix="S"), []),
        (RowQuery(unfinished=True), ["s1"]),
        (RowQuery(archived=True, name_has="topic", id_prefix="s", limit=1), ["s0"]),
    ):
        page = await store.list("ada", query)
        expect_equal([row.session_id for row in page.rows], wanted, f"{query}")


async def conversations_that_need_attention_are_listed(make: Maker, store: Store) -> None:
    writers = await _three(make, store)
    await writers[0].write(answer("t1"))
    await writers[2].write(FaultEntry(turn_id="t1", content="no", code="busy", state="failed"))

    async def listed(limit: int = 10) -> list[str]:
        found: list[str] = []
        cursor: str | None = None
        while True:
            query = RowQuery(attention=True, limit=limit, cursor=cursor)
            page = await store.list("ada", query)
            found += [row.session_id for row in page.rows]
            expect(len(found) <= 3, "the list of what needs attention has no end")
            if (cursor := page.next_cursor) is None:
                return found

    expect_equal(await listed(), ["s2", "s0", "s1"], "one answered, one running, one failed")
    expect_equal(await listed(limit=1), ["s2", "s0", "s1"], "the same in pages")
    await store.mark_seen("s0", 1_000)
    await store.mark_seen("s1", 1_000)
    await store.mark_seen("s2", 1_000)
    expect_equal(await listed(), ["s1"], "a running turn needs attention, seen or not")
    await writers[1].write(answer("t1"))
    expect_equal(await listed(), ["s1"], "its answer is unread")
    await store.mark_seen("s1", 1_000)
    expect_equal(await listed(), [], "all are at rest")
    await store.mark_seen("s0", 1, unread=True)
    expect_equal(await listed(), ["s0"], "one was marked as unread")
    expect_equal((await store.list("bob", RowQuery(attention=True))).rows, (), "another user's")


async def a_mark_of_what_was_seen_moves_forward(make: Maker, store: Store, writer: Writer) -> None:
    expect_equal(await store.seen(["s1", "none"]), {"s1": 0}, "the mark of a new conversation")
    await writer.write(prompt("t1"), answer("t1"), prompt("t2"))
    expect_equal(await store.mark_seen("s1", 2), 2, "the mark that was set")
    expect_equal(await store.mark_seen("s1", 1), 2, "an older one changes nothing")
    expect_equal(await store.mark_seen("s1", 99), 3, "one beyond the head means the head")
    expect_equal(await store.mark_seen("s1", 1, unread=True), 1, "marked as unread")
    expect_equal(await store.seen(["s1"]), {"s1": 1}, "the mark")
    await refused(store.mark_seen("none", 1), ConversationNotFound, "a mark of no conversation")


@where("last")
async def marks_are_kept_for_the_next_store(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"), answer("t1"))
    await store.mark_seen("s1", 1)
    again = await make.reopened(store)
    expect_equal(await again.seen(["s1"]), {"s1": 1}, "the mark")
    await again.open("s1")
    expect_equal(await again.seen(["s1"]), {"s1": 1}, "the mark after opening it")
    listed = await again.list("ada", RowQuery(attention=True))
    expect_equal([row.session_id for row in listed.rows], ["s1"], "what is unread")


async def a_copy_counts_as_seen(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"), answer("t1"))
    origin = await store.origin("s1")
    async with store.build("copy", origin) as builder:
        async for batch in store.entries("s1"):
            await builder.add(batch)
    expect_equal(await store.seen(["copy"]), {}, "a copy has no mark")
    listed = await store.list("ada", RowQuery(attention=True))
    expect_equal([row.session_id for row in listed.rows], ["s1"], "what needs attention")
    await store.open("copy")
    expect_equal(await store.seen(["copy"]), {"copy": 2}, "its mark once it is opened")


async def what_is_no_cursor_is_refused(make: Maker, store: Store) -> None:
    await _three(make, store)
    for bad in ("", "x", "bm9uc2Vuc2U=", "é"):
        await refused(store.list("ada", RowQuery(cursor=bad)), BadCursor, f"the cursor {bad!r}")


async def users_see_their_own_only(make: Maker, store: Store) -> None:
    await _three(make, store)
    await (await Writer.create(make, store, "b1", user="bob")).write(prompt("t1", "Topic of bob"))
    expect_equal(await ids_of(store), ["s2", "s1", "s0"], "the list of ada")
    expect_equal(await ids_of(store, "bob"), ["b1"], "the list of bob")
    expect_equal(await ids_of(store, "eve"), [], "the list of nobody")
    counts = [await store.count(user) for user in ("ada", "bob", "eve")]
    expect_equal(counts, [3, 1, 0], "how many they have")


async def last_access_is_remembered(store: Store) -> None:
    await store.create("s1", user="ada")
    row = await row_of(store)
    at = row.last_accessed + timedelta(days=1)
    store.touch("s1", at)
    store.touch("s1", at - timedelta(hours=1))
    expect_equal(await row_of(store), replace(row, last_accessed=at), "the row")


async def it_says_what_it_is_and_what_it_promises(store: Store) -> None:
    expect(store.description.backend, "the backend has no name")
    expect(store.description.promise, "the backend promises nothing")


# ------------------------------------------------------------------------------
# Search


async def _found(store: Store, text: str, user: str = "ada") -> list[tuple[str, int]]:
    page = await store.search(user, SearchQuery(text=text, limit=100))
    return [(hit.session_id, hit.seq) for hit in page.hits]


async def search_finds_the_newest_first(make: Maker, store: Store) -> None:
    one = await Writer.create(make, store, "s1")
    two = await Writer.create(make, store, "s2")
    await one.write(prompt("t1", "Where is the Blue whale?"), answer("t1", "In the sea."))
    await two.write(prompt("t1", "A blue bird"), NotebookEntry(content="blue, unsaid"))
    await one.write(prompt("t2", "blues"))
    expect_equal(await _found(store, "blue"), [("s1", 3), ("s2", 1), ("s1", 1)], "blue")
    expect_equal(await _found(store, "BLUE whale"), [("s1", 1)], "two words")
    expect_equal(await _found(store, "green"), [], "what nobody said")
    page = await store.search("ada", SearchQuery(text="sea"))
    expect("sea" in page.hits[0].snippet, "the snippet does not show what was found")
    expect_equal(page.hits[0].role, "assistant", "who said it")


async def what_was_found_is_walked_page_by_page(make: Maker, store: Store) -> None:
    for number in range(3):
        writer = await Writer.create(make, store, f"s{number}")
        for turn in range(3):
            await writer.write(prompt(f"t{turn}", f"needle {turn}"), answer(f"t{turn}", "hay"))
    whole = await _found(store, "needle")
    expect_equal(len(whole), 9, "how many were found")
    walked: list[tuple[str, int]] = []
    cursor = None
    while cursor is not None or not walked:
        page = await store.search("ada", SearchQuery(text="needle", limit=4, cursor=cursor))
        expect(page.hits, "a page has no hits")
        walked += [(hit.session_id, hit.seq) for hit in page.hits]
        expect(len(walked) <= len(whole), f"{len(whole)} messages have no end")
        cursor = page.next_cursor
    expect_equal(walked, whole, "what was found, by four")


async def search_finds_no_text_of_other_users(make: Maker, store: Store) -> None:
    await (await Writer.create(make, store, "s1")).write(prompt("t1", "a secret"))
    await (await Writer.create(make, store, "b1", user="bob")).write(prompt("t1", "secret too"))
    expect_equal(await _found(store, "secret"), [("s1", 1)], "what ada finds")
    expect_equal(await _found(store, "secret", "bob"), [("b1", 1)], "what bob finds")
    expect_equal(await _found(store, "secret", "eve"), [], "what a stranger finds")


# ------------------------------------------------------------------------------
# Rollbacks


async def pages_show_what_stands(store: Store, writer: Writer) -> None:
    await writer.turns(1, 8)
    await writer.write(writer.history.rollback_to(4))
    await writer.turns(9, 10)
    wanted = messages_among(writer.history.active)
    expect_equal(wanted[:4], [1, 2, 3, 4], "what stands")
    expect_equal(numbers_in(await all_messages(store)), wanted, "the messages")
    expect_equal(await _walk_back(store, 2), wanted, "the messages by two")


async def nothing_is_erased_by_a_rollback(store: Store, writer: Writer) -> None:
    await writer.turns(1, 4)
    await writer.write(writer.history.rollback_to(2))
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    raw = await store.page("s1", PageQuery(view="entries", limit=100))
    expect_equal(len(raw.messages), writer.history.head_seq, "lines in the entries view")
    expect_equal(await store.text_of("s1", 3), "ask 2", "the text of an entry taken back")


async def rows_and_searches_follow_a_rollback(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1", "keep"), answer("t1", "kept words"))
    await writer.write(prompt("t2", "drop"), answer("t2", "dropped words"))
    await writer.write(writer.history.rollback_to(2))
    row = await row_of(store)
    seen = (row.message_count, row.preview, row.head_seq)
    expect_equal(seen, (2, "kept words", 5), "count, preview and head of the row")
    expect_equal(await _found(store, "words"), [("s1", 2)], "what is found")


async def everything_can_be_taken_back(store: Store, writer: Writer) -> None:
    await writer.turns(1, 2)
    await writer.write(writer.history.rollback_to(0))
    expect_equal(numbers_in(await all_messages(store)), [], "the messages")
    expect_equal((await row_of(store)).message_count, 0, "the count in the row")
    again = await writer.reopened(store)
    expect_equal(list(again.history.active), [], "what stands")
    await again.turns(3, 3)
    wanted = messages_among(again.history.active)
    expect_equal(wanted[0], again.history.active[0].seq, "the first that stands")
    expect_equal(numbers_in(await all_messages(store)), wanted, "the messages after it")


async def it_is_opened_as_it_stands(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(SystemInstructionEntry(content="first"))
    await writer.turns(1, 3)
    await writer.write(SystemInstructionEntry(content="second"))
    await writer.turns(4, 5)
    await writer.write(writer.history.rollback_to(5))
    opened = await writer.opened_again(store)
    history = opened.history
    expect_equal(list(history.active), list(writer.history.active), "what stands")
    expect_equal(history.system_instruction, "first", "the instruction")
    expect_equal(history.message_count, writer.history.message_count, "the count")
    again = Writer.of(make, opened)
    await again.turns(6, 6)
    await again.write(again.history.rollback_to(3))
    wanted = messages_among(again.history.active)
    expect_equal(numbers_in(await all_messages(store)), wanted, "messages after the second")


async def turns_are_taken_back_from_between_others(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"), prompt("t2"), answer("t1", "one"), answer("t2", "two"))
    everything = list(writer.history.active)
    await writer.write(writer.history.rollback_turns(["t2"]))
    expect_equal(numbers_in(await all_messages(store)), [1, 3], "the messages")
    row = await row_of(store)
    expect_equal((row.message_count, row.preview), (2, "one"), "the row")
    again = await writer.reopened(store)
    expect_equal([entry.seq for entry in again.history.active], [1, 3], "what stands")
    whole = ConversationHistory("s1", await entries_of(store))
    await again.write(whole.redo(in_full=True))
    expect_equal(numbers_in(await all_messages(store)), [1, 2, 3, 4], "what is brought back")
    again = await again.reopened(store)
    expect_equal(list(again.history.active), everything, "what stands again")


async def pages_are_had_in_the_order_of_the_turns(store: Store, writer: Writer) -> None:
    for number in range(1, 9):
        await writer.write(prompt(f"t{number}"), prompt(f"t{number}b"))
        await writer.write(answer(f"t{number}"), answer(f"t{number}b"))
    wanted = [4 * turn + seq for turn in range(8) for seq in (1, 3, 2, 4)]
    for limit in (3, 50):
        expect_equal(await _walk_back(store, limit, "turns"), wanted, f"the messages by {limit}")
    await writer.write(prompt("t9"), prompt("t9b"))
    page = await store.page("s1", PageQuery(order="turns", after=32))
    expect_equal(numbers_in(page), [33], "what comes next, while it is answered")


# ------------------------------------------------------------------------------
# State that was set long ago, and billing

_MUCH = "x" * 600_000
"""More text than is read beyond a clear to continue a conversation."""


async def state_set_far_from_the_end_still_holds(store: Store, writer: Writer) -> None:
    await writer.turns(1, 1)
    todo = WidgetEntry(widget="todo", state={"items": ["milk"]})
    shown = EpochEntry(reason="budget", gist_through=1, summary_through=1, screen="- milk")
    summary = CompactionEntry(content="they talked", from_seq=1, through_seq=2)
    await writer.write(WidgetEntry(widget="todo", state={}), todo, summary, shown)
    await writer.write(WidgetEntry(widget="clock", state={"zone": "UTC"}))
    await writer.write(DebugEntry(category="kit", content=_MUCH), ClearEntry())
    await writer.turns(2, 2)
    history = (await writer.opened_again(store)).history
    expected = {"clock": {"zone": "UTC"}, "todo": {"items": ["milk"]}}
    expect_equal(history.widget_states, expected, "the widgets")
    expect_equal(history.compactions, (), "summaries that a clear came after")
    expect_equal(history.epoch, writer.history.epoch, "the epoch")


async def a_summary_far_from_the_end_still_holds(store: Store, writer: Writer) -> None:
    await writer.turns(1, 1)
    summary = CompactionEntry(content="they talked", from_seq=1, through_seq=2)
    await writer.write(summary, DebugEntry(category="kit", content=_MUCH))
    await writer.turns(2, 2)
    await writer.write(
        EpochEntry(reason="budget", omitted_through=4, gist_through=4, summary_through=4)
    )
    await writer.turns(3, 3)
    history = (await writer.opened_again(store)).history
    expect_equal([entry.content for entry in history.compactions], ["they talked"], "the summary")


async def what_was_billed_is_in_the_row(store: Store, writer: Writer) -> None:
    called = ModelInvocationDescriptor(provider="p", specification="chat", model="m")
    usage = {"input_tokens": 20, "output_tokens": 3, "cached_tokens": 15}
    for turn_id in ("t1", "t2"):
        billed = replace(answer(turn_id), invocation=called, usage=dict(usage))
        await writer.write(prompt(turn_id), billed)
    await writer.write(writer.history.rollback_to(2))
    again = await writer.reopened(store)
    await again.write(prompt("t3"), replace(answer("t3"), usage={"input_tokens": 5}))
    wanted = (("p/m", 2, 40, 6, 30), ("", 1, 5, 0, 0))
    expect_equal((await row_of(store)).billed, wanted, "what was billed")


# ------------------------------------------------------------------------------
# Writing entries


async def a_new_conversation_is_empty_and_listed(store: Store) -> None:
    await store.create("s1", user="ada")
    row = await row_of(store)
    seen = (row.session_id, row.user, row.head_seq, row.message_count, row.damaged)
    expect_equal(seen, ("s1", "ada", 0, 0, False), "the row of a new conversation")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal((await all_messages(store)).messages, (), "the messages of a new conversation")
    expect_equal(await entries_of(store), [], "the entries of a new conversation")


async def entries_come_back_in_their_order(store: Store, writer: Writer) -> None:
    await writer.turns(1, 7)
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    opened = await writer.opened_again(store)
    expect_equal(
        list(opened.history.entries), list(writer.history.entries), "the history when opened again"
    )


async def what_was_acknowledged_is_seen_at_once(store: Store, writer: Writer) -> None:
    for number in range(1, 6):
        (entry,) = await writer.write(prompt(f"t{number}"))
        seen = (
            (await row_of(store)).head_seq,
            numbers_in(await all_messages(store))[-1],
            (await entries_of(store))[-1].seq,
        )
        expect_equal(seen, (entry.seq,) * 3, "the head in the row, the page and the entries")


def _one_of_each() -> list[Entry]:
    called = ModelInvocationDescriptor(provider="p", specification="s", model="m")
    return [
        ModelInputEntry(
            turn_id="t",
            content="q",
            message_id="m1",
            model="p/m",
            attachments=("f" * 32,),
            options={"temperature": 0.5, "deep": {"list": [1, None, "é"]}},
            metadata={"client": "kit"},
        ),
        ModelOutputEntry(
            turn_id="t",
            content="half",
            reasoning="because",
            invocation=called,
            usage={"input_tokens": 2**64 - 1},
            state="failed",
            error={"code": "cut"},
            sent=SentContext(tokens=9, budget_tokens=100, tools_digest="d"),
        ),
        prompt("t9"),
        fault("t9"),
        SystemInstructionEntry(content="be brief"),
        NotebookEntry(content="- milk"),
        WidgetEntry(widget="todo", state={"items": [{"text": "milk", "done": False}]}),
        EpochEntry(reason="budget", gist_through=1, summary_through=2, screen="- milk"),
        CompactionEntry(content="they talked", from_seq=1, through_seq=2),
        ClearEntry(),
        QuarantineEntry(target_seq=1, code="odd", content="why"),
        ForkedEntry(from_session_id="s0", at_seq=3),
        DebugEntry(category="kit", content="remark"),
        RenamedEntry(name="plans"),
        PinnedEntry(pinned=True),
        ArchivedEntry(archived=True),
        ModelSwitchedEntry(model="p/n", previous_model="p/m"),
        AttachmentEntry(file_id="f" * 32, filename="a.txt", size=3, sha256="0" * 64),
        ApprovalEntry(approval_id="a", tool_call_id="c", tool_name="t", state="asked"),
    ]


async def every_kind_of_entry_comes_back_as_it_was(store: Store, writer: Writer) -> None:
    await writer.turns(1, 3)
    await writer.write(*_one_of_each())
    await writer.record.append(
        CheckpointEntry(
            seq=writer.history.head_seq + 1, id="c", timestamp=writer.clock(), state={"any": [1]}
        )
    )
    found = await entries_of(store)
    expect_equal(found[:-1], list(writer.history.entries), "the entries")
    expect_equal(found[-1].kind, "checkpoint", "the kind of the last one")


async def any_text_comes_back_as_it_was(store: Store, writer: Writer) -> None:
    texts = [
        "\x00",
        "\r\n\t\x1b[31m",
        "\u2028\u2029\ufeff",
        "漢字🎉e\u0301",
        '"\\',
        "x" * 300_000,
    ]
    for number, text in enumerate(texts):
        await writer.write(prompt(f"t{number}", f"a{text}"), answer(f"t{number}", f"b{text}"))
    found = await entries_of(store)
    expect(found == list(writer.history.entries), "a text came back changed")


async def an_append_gives_the_row_after_it(store: Store, writer: Writer) -> None:
    for draft in (prompt("t1"), answer("t1"), RenamedEntry(name="other")):
        entry = writer.stamped(draft)
        given = await writer.record.append(entry)
        writer.history.add(entry)
        expect_equal(given, await row_of(store), f"the row after entry {entry.seq}")


async def a_gap_is_refused(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"))
    far = replace(writer.stamped(answer("t1")), seq=3)
    await refused(writer.append(far), BadEntry, "entry 3 after entry 1")
    expect_equal(len(await entries_of(store)), 1, "entries after the refusal")


async def a_number_that_is_taken_is_refused(store: Store, writer: Writer) -> None:
    first, second = await writer.write(prompt("t1"), answer("t1"))
    for again in (first, second, replace(second, id="other")):
        await refused(writer.append(again), BadEntry, f"entry {again.seq} once more")
    expect_equal(await entries_of(store), [first, second], "the entries")


async def a_refused_entry_leaves_nothing(store: Store, writer: Writer) -> None:
    good = writer.stamped(prompt("t1", "good"))
    before = await row_of(store)
    half = ModelInputEntry(seq=1, id="e", timestamp=START, turn_id="t", content="\ud800")
    huge = ModelOutputEntry(seq=1, id="e", timestamp=START, content="x", usage={"n": 2**64})
    endless = ModelOutputEntry(
        seq=1, id="e", timestamp=START, content="x", usage={"n": float("nan")}
    )
    for bad in (half, huge, endless, prompt("t1")):
        await refused(writer.append(bad), BadEntry, f"{bad!r}")
    expect_equal(await row_of(store), before, "the row after refusals")
    expect_equal(await entries_of(store), [], "the entries after refusals")
    await writer.record.append(good)
    expect_equal(await entries_of(store), [good], "the entries after a good one")


async def an_opened_conversation_can_be_continued(store: Store, writer: Writer) -> None:
    await writer.turns(1, 2)
    again = await writer.reopened(store)
    await again.turns(3, 4)
    opened = await again.opened_again(store)
    expect_equal(list(opened.history.entries), list(again.history.entries), "the history")
    expect_equal(opened.row, await row_of(store), "the row it was opened with")


@where("last")
async def what_one_store_wrote_is_there_for_the_next(
    make: Maker, store: Store, writer: Writer
) -> None:
    await writer.turns(1, 4)
    row = await row_of(store)
    store = await make.reopened(store)
    expect_equal(await row_of(store), row, "the row")
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    await Writer.of(make, await store.open("s1")).turns(5, 6)


# ------------------------------------------------------------------------------
# Blobs

DATA = bytes(range(256)) * 5_000


async def a_blob_is_read_whole_or_in_part(store: Store, writer: Writer) -> None:
    blob = await writer.record.keep_blob(DATA)
    expect_equal(blob.size, len(DATA), "its size")
    expect_equal(blob.sha256, hashlib.sha256(DATA).hexdigest(), "its digest")
    await writer.write(prompt("t1"), asking("t1"), looking("t1", "its beginning", blob))
    for offset, length in ((0, len(DATA)), (0, 1), (255, 3), (len(DATA) - 2, 10), (5, 0)):
        found = await store.blob("s1", blob.blob_id, offset, length)
        what = f"{length} bytes from {offset}"
        expect_equal(found == DATA[offset : offset + length], True, what)
    expect_equal(await store.blob("s1", blob.blob_id, len(DATA), 10), b"", "beyond its end")
    expect_equal(await store.blob("s1", blob.blob_id, 10**9, 10), b"", "far beyond its end")
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")


async def the_same_bytes_may_be_kept_twice_and_none_at_all(store: Store, writer: Writer) -> None:
    for data in (b"twice", b"twice", b""):
        blob = await writer.record.keep_blob(data)
        expect_equal(await store.blob("s1", blob.blob_id, 0, 10), data, "what was kept")


async def a_blob_that_is_not_there_is_refused(make: Maker, store: Store, writer: Writer) -> None:
    other = await Writer.create(make, store, "s2")
    blob = await other.record.keep_blob(b"of the other")
    await writer.record.keep_blob(b"mine")
    for unknown in ("0" * 64, "", "../s1", "*", blob.blob_id):
        await refused(store.blob("s1", unknown, 0, 10), StorageError, f"the blob {unknown!r}")
    for offset, length in ((-1, 5), (0, -1)):
        what = f"{length} bytes from {offset}"
        await refused(store.blob("s2", blob.blob_id, offset, length), StorageError, what)


# ------------------------------------------------------------------------------
# Building a whole conversation

ORIGIN = Origin(user="ada", created_at=START, extra={"title": "old", "list": [1, None]})


async def _build(store: Store, session_id: str, *batches: list[Entry]) -> None:
    async with store.build(session_id, ORIGIN) as builder:
        for batch in batches:
            await builder.add(batch)


class _GivenUp(Exception):
    pass


async def what_was_built_is_there_in_one_step(make: Maker, store: Store) -> None:
    entries = drafted(make, 10)
    async with store.build("s1", ORIGIN) as builder:
        await builder.add(entries[:7])
        expect_equal(await ids_of(store), [], "the list while it is built")
        expect(await store.row("s1") is None, "there is a row while it is built")
        await builder.add(entries[7:])
        blob = await builder.keep_blob(b"whole")
    expect_equal(await entries_of(store), entries, "the entries")
    wanted = fold_all(new_row("s1", user="ada", created_at=START), entries)
    expect_equal(await row_of(store), wanted, "the row")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal(await store.origin("s1"), ORIGIN, "the origin")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"whole", "the blob")
    expect_equal(len(await _found(store, "ask")), 10, "messages found")
    await Writer.of(make, await store.open("s1")).write(prompt("new"))


async def what_was_given_up_leaves_nothing(make: Maker, store: Store) -> None:
    try:
        async with store.build("s1", ORIGIN) as builder:
            await builder.add(drafted(make, 5))
            await builder.keep_blob(b"half")
            raise _GivenUp
    except _GivenUp:
        pass
    expect_equal(await ids_of(store), [], "the list")
    expect_equal(await _found(store, "ask"), [], "what is found of it")
    await refused(entries_of(store), ConversationNotFound, "reading it")
    await Writer.create(make, store)


async def a_gap_in_what_is_built_is_refused(make: Maker, store: Store) -> None:
    entries = drafted(make, 5)
    for batches in ([entries[1:]], [entries[:2], entries[3:]], [entries[:2], entries[1:]]):
        await refused(_build(store, "s1", *batches), BadEntry, "a gap, or a number twice")
    expect_equal(await ids_of(store), [], "the list")


async def an_empty_one_can_be_built(make: Maker, store: Store) -> None:
    await _build(store, "s1")
    expect_equal((await row_of(store)).head_seq, 0, "the head")
    await Writer.of(make, await store.open("s1")).write(prompt("t1"))


async def building_replaces_nothing(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"))
    await refused(
        _build(store, "s1", drafted(make, 2)), ConversationExists, "building under a taken id"
    )
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    for hostile in HOSTILE_IDS:
        await refused(_build(store, hostile), ConversationNotFound, f"building {hostile!r}")


async def an_id_taken_meanwhile_is_not_taken_away(make: Maker, store: Store) -> None:
    async def build_while_it_is_taken() -> None:
        async with store.build("s1", ORIGIN) as builder:
            await builder.add(drafted(make, 2))
            writer = await Writer.create(make, store, user="bob")
            await writer.write(prompt("t1"))

    await refused(build_while_it_is_taken(), ConversationExists, "an id that is taken meanwhile")
    expect_equal((await row_of(store)).user, "bob", "whose it is")
    expect_equal(len(await entries_of(store)), 1, "entries")


async def the_origin_of_a_created_one_is_known(store: Store) -> None:
    await store.create("s1", user="ada")
    row = await row_of(store)
    expect_equal(await store.origin("s1"), Origin(user="ada", created_at=row.created_at), "origin")


# ------------------------------------------------------------------------------
# One writer at a time

_TRIES_MAX = 10_000


async def a_conversation_is_open_once(store: Store, writer: Writer) -> None:
    await refused(store.open("s1"), ConversationReadOnly, "opening it while it is open")
    await writer.write(prompt("t1"))
    await writer.record.close()
    await store.open("s1")
    await refused(store.open("s1"), ConversationReadOnly, "opening it a second time")


async def a_closed_record_writes_nothing(store: Store, writer: Writer) -> None:
    await writer.record.close()
    second = await writer.reopened(store)
    await refused(writer.write(prompt("t1")), ConversationReadOnly, "appending to a closed record")
    writer.record.journal_delta("t1", 0, "text", "nothing comes of it")
    await second.write(prompt("t2"))
    await writer.record.close()
    await second.write(answer("t2"))
    expect_equal(len(await entries_of(store)), 2, "entries")


async def the_same_id_is_not_given_twice(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"))
    await refused(store.create("s1", user="bob"), ConversationExists, "creating it again")
    expect_equal((await row_of(store)).user, "ada", "whose it is")
    await writer.write(answer("t1"))
    expect_equal(len(await entries_of(store)), 2, "entries")


async def an_id_that_could_be_a_path_is_refused(store: Store) -> None:
    for hostile in HOSTILE_IDS:
        create = store.create(hostile, user="ada")
        await refused(create, ConversationNotFound, f"creating {hostile!r}")
    expect_equal(await ids_of(store), [], "the list")


async def what_is_not_there_is_not_found(make: Maker, store: Store) -> None:
    await store.create("s1", user="ada")
    for unknown in ("s2", *HOSTILE_IDS):
        expect(await store.row(unknown) is None, f"there is a row of {unknown!r}")
        store.touch(unknown, make.clock())
        for what, ask in (
            ("open", lambda id_: store.open(id_)),
            ("page", lambda id_: store.page(id_, PageQuery())),
            ("text_of", lambda id_: store.text_of(id_, 1)),
            ("entries", lambda id_: entries_of(store, id_)),
            ("blob", lambda id_: store.blob(id_, "0" * 64, 0, 1)),
            ("origin", lambda id_: store.origin(id_)),
            ("delete", lambda id_: store.delete(id_)),
            ("undelete", lambda id_: store.undelete(id_)),
        ):
            await refused(ask(unknown), ConversationNotFound, f"{what} of {unknown!r}")
    expect_equal(await ids_of(store), ["s1"], "the list")


@where("share")
async def a_stale_writer_is_refused_and_changes_nothing(make: Maker) -> None:
    first, second = await make.store(), await make.store()
    writer = await Writer.create(make, first)
    await writer.write(prompt("t1"))
    try:
        other = Writer.of(make, await second.open("s1"))
    except ConversationReadOnly:
        return  # it may only be open once, whoever asks: that will do
    await writer.write(answer("t1"))
    row = await row_of(first)
    for _ in range(2):
        append = other.write(answer("t1", "another answer"))
        await refused(append, (BadEntry, ConversationReadOnly), "the append of a stale writer")
    expect_equal(await entries_of(first), list(writer.history.entries), "the entries")
    expect_equal(await row_of(first), row, "the row")
    await other.record.close()
    again = Writer.of(make, await second.open("s1"))
    await again.write(prompt("t2"))
    expect_equal(len(await entries_of(first)), 3, "entries after it was opened again")


@where("share")
async def two_stores_that_contend_lose_and_mix_nothing(make: Maker) -> None:
    first, second = await make.store(), await make.store()
    writer = await Writer.create(make, first)
    await writer.record.close()
    kept: list[str] = []

    async def contend(store: Store, name: str) -> None:
        for number in range(12):
            for _ in range(_TRIES_MAX):
                if await _one_turn(make, store, f"{name}{number}", kept):
                    break
                await anyio.lowlevel.checkpoint()
            else:
                raise RuleBroken(f"{name} never gets to write")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(contend, first, "a")
        tasks.start_soon(contend, second, "b")
    found = await entries_of(first)
    expect(without_gaps(found), "the numbers have gaps")
    expect_equal(sorted(entry.id for entry in found), sorted(kept), "what was acknowledged")
    expect_equal((await row_of(second)).head_seq, 24, "the head in the row")


async def _one_turn(make: Maker, store: Store, turn_id: str, kept: list[str]) -> bool:
    """Whether the prompt was accepted; each attempt sees the current entries."""
    try:
        writer = Writer.of(make, await store.open("s1"))
    except ConversationReadOnly:
        return False
    try:
        (entry,) = await writer.write(prompt(turn_id))
    except (BadEntry, ConversationReadOnly):
        return False
    else:
        kept.append(entry.id)
        return True
    finally:
        await writer.record.close()


# ------------------------------------------------------------------------------
# Durability


@where("crash")
async def what_was_acknowledged_survives_a_crash(make: Maker, store: Store, writer: Writer) -> None:
    blob = await writer.record.keep_blob(b"beside")
    await writer.turns(1, 6)
    await writer.write(RenamedEntry(name="plans"))
    row = await row_of(store)
    store = await make.after_crash(store)
    expect_equal(await entries_of(store), list(writer.history.entries), "the entries")
    expect_equal(await row_of(store), row, "the row")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"beside", "the blob")
    expect_equal(len(await _found(store, "ask")), 6, "messages found")


@where("crash")
async def it_goes_on_after_every_crash(make: Maker, store: Store, writer: Writer) -> None:
    for number in range(1, 5):
        await writer.turns(number, number)
        store = await make.after_crash(store)
        opened = await store.open("s1")
        before = list(writer.history.entries)
        expect_equal(list(opened.history.entries), before, f"the history after crash {number}")
        writer = Writer.of(make, opened)
    await writer.turns(5, 5)


@where("crash")
async def what_was_deleted_or_redacted_stays_so(make: Maker, store: Store) -> None:
    for session_id in ("s1", "s2"):
        writer = await Writer.create(make, store, session_id)
        await writer.write(prompt("t1", "sesame"))
    tombstone = await writer.redact(1)
    await store.delete("s1")
    store = await make.after_crash(store)
    expect_equal(await ids_of(store), ["s2"], "the list")
    expect_equal(await entries_of(store, "s2"), [tombstone], "the entries")
    expect_equal(await _found(store, "sesame"), [], "what is found")


# ------------------------------------------------------------------------------
# Prompts that are sent twice


def named(number: int) -> ModelInputEntry:
    return replace(prompt(f"t{number}", f"ask {number}"), message_id=f"m{number}")


async def _seen(
    store: Store, number: int, session_id: str = "s1"
) -> tuple[int, str, str, str | None] | None:
    found = await store.prompt_by_message_id(session_id, f"m{number}")
    return None if found is None else (found.seq, found.turn_id, found.state, found.text)


async def a_prompt_that_was_sent_is_known_by_its_name(store: Store, writer: Writer) -> None:
    failed = FaultEntry(turn_id="t4", content="no", code="provider_refused", state="failed")
    await writer.write(named(1), answer("t1"), prompt("t2"), answer("t2"))
    # Three that came one upon the other, and ended in another order.
    await writer.write(named(3), named(4), named(5), asking("t3"), looking("t3"))
    await writer.write(fault("t5"), failed, answer("t3", call=1), named(6))
    expect_equal(await _seen(store, 1), (1, "t1", "completed", "ask 1"), "one that is answered")
    expect_equal(await _seen(store, 3), (5, "t3", "completed", "ask 3"), "one that used a tool")
    expect_equal(await _seen(store, 4), (6, "t4", "failed", "ask 4"), "one that failed")
    expect_equal(await _seen(store, 5), (7, "t5", "interrupted", "ask 5"), "one that was stopped")
    expect_equal(await _seen(store, 6), (13, "t6", "waiting", "ask 6"), "one that waits")
    expect_equal(await _seen(store, 2), None, "one without a name")
    await refused(_seen(store, 1, "s2"), ConversationNotFound, "asking where nothing is")


async def what_was_taken_back_or_erased_was_still_sent(store: Store, writer: Writer) -> None:
    await writer.write(named(1), answer("t1"), named(2), answer("t2"))
    await writer.write(writer.history.rollback_to(2), named(3), answer("t3"))
    await writer.write(writer.history.rollback_to(6))
    expect_equal(await _seen(store, 2), (3, "t2", "completed", "ask 2"), "one taken back")
    wanted = (6, "t3", "interrupted", "ask 3")
    expect_equal(await _seen(store, 3), wanted, "one whose answer was taken back")
    await writer.redact(1)
    expect_equal(await _seen(store, 1), (1, "t1", "completed", REDACTED), "one that was erased")
    await (await writer.reopened(store)).write(named(4))
    expect_equal(await _seen(store, 4), (9, "t4", "waiting", "ask 4"), "one that came after")
    expect_equal((await _seen(store, 2) or (0,))[0], 3, "the one taken back")


async def a_name_belongs_to_its_conversation(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(named(1), answer("t1"))
    await _build(store, "s2", await entries_of(store))
    await _build(store, "s3", drafted(make, 1))
    await writer.write(named(2))
    wanted = (1, "t1", "completed", "ask 1")
    expect_equal(await _seen(store, 1, "s2"), wanted, "what a copy was given")
    expect_equal(await _seen(store, 2, "s2"), None, "what was sent to the other later")
    expect_equal(await _seen(store, 1, "s3"), None, "what was sent to another")
    await store.delete("s1")
    await refused(_seen(store, 1), ConversationNotFound, "asking one that was deleted")
    await (await Writer.create(make, store)).write(named(3))
    expect_equal(await _seen(store, 1), None, "what was sent to the one before")
    await store.delete("s1")
    await store.undelete("s1")
    expect_equal(await _seen(store, 3), (1, "t3", "waiting", "ask 3"), "after undeleting")


@where("last")
async def what_was_sent_is_known_to_the_next_store(
    make: Maker, store: Store, writer: Writer
) -> None:
    for number in range(1, 9):
        await writer.write(named(number), answer(f"t{number}"))
    for _ in range(2):
        store = await make.reopened(store)
        found = [await _seen(store, number) for number in range(1, 10)]
        wanted = [(2 * n - 1, f"t{n}", "completed", f"ask {n}") for n in range(1, 9)]
        expect_equal(found, [*wanted, None], "what was sent")


@where("trim", max_turns=2)
async def what_was_trimmed_was_still_sent(store: Store, writer: Writer) -> None:
    await writer.write(named(1), fault("t1"))
    for number in range(2, 6):
        await writer.write(named(number), answer(f"t{number}"))
    expect_equal(
        [await store.prompt_by_message_id("s1", f"m{number}") for number in (1, 2, 4, 6)],
        [
            SentBefore(seq=1, turn_id="t1", state="interrupted", text=None),
            SentBefore(seq=3, turn_id="t2", state="completed", text=None),
            SentBefore(seq=7, turn_id="t4", state="completed", text="ask 4"),
            None,
        ],
        "what was sent",
    )
    await writer.redact(9)
    expect_equal((await _seen(store, 1) or (0,))[0], 1, "the first, after an erasure")


# ------------------------------------------------------------------------------
# Running answers


async def _partial_answer(store: Store, writer: Writer) -> PartialAnswer | None:
    return (await writer.opened_again(store)).partial_answer


async def entries_are_there_when_opened_again(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"), asking("t1"), looking("t1"))
    await writer.journal("t1", 1, "reasoning", "hm, ")
    await writer.journal("t1", 1, "text", "It ")
    await writer.journal("t1", 1, "reasoning", "so\n")
    await writer.journal("t1", 1, "text", "was \x00漢")
    wanted = PartialAnswer(turn_id="t1", call=1, text="It was \x00漢", reasoning="hm, so\n")
    expect_equal(await _partial_answer(store, writer), wanted, "what was said so far")


async def the_words_of_an_earlier_call_are_not_mixed_in(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"))
    await writer.journal("t1", 0, "text", "first")
    await writer.write(asking("t1"), looking("t1"))
    await writer.journal("t1", 1, "text", "second")
    wanted = PartialAnswer(turn_id="t1", call=1, text="second")
    expect_equal(await _partial_answer(store, writer), wanted, "what was said so far")


async def what_became_an_entry_is_forgotten(make: Maker, store: Store) -> None:
    ends: list[Entry] = [answer("t1", "whole"), fault("t1"), asking("t1")]
    for number, end in enumerate(ends):
        writer = await Writer.create(make, store, f"s{number}")
        await writer.write(prompt("t1"))
        writer.record.journal_delta("t1", 0, "text", "who")
        await writer.write(end)
        await writer.record.close()
        opened = await store.open(f"s{number}")
        expect_equal(opened.partial_answer, None, f"what was said, after {end.kind}")


async def the_end_of_another_turn_does_not_forget_it(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"), prompt("t2"))
    await writer.journal("t1", 0, "text", "one ")
    await writer.write(fault("t2"))
    await writer.journal("t1", 0, "text", "two")
    wanted = PartialAnswer(turn_id="t1", call=0, text="one two")
    expect_equal(await _partial_answer(store, writer), wanted, "what was said so far")


async def saying_never_fails(store: Store, writer: Writer) -> None:
    writer.record.journal_delta("nobody", 7, "text", "asked")
    writer.record.journal_delta("nobody", 7, "text", "half a pair: \ud800")
    await writer.write(prompt("t1"), answer("t1"))
    await writer.record.close()
    writer.record.journal_delta("t1", 1, "text", "too late")
    opened = await store.open("s1")
    expect_equal(opened.partial_answer, None, "what was said in a turn that is not there")


@where("crash")
async def after_a_crash_there_is_how_it_began(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"))
    pieces = [f"piece {number}, " for number in range(50)]
    for piece in pieces:
        await writer.journal("t1", 0, "text", piece)
    store = await make.after_crash(store)
    turns = (await store.open("s1")).partial_answer
    whole = "".join(pieces)
    expect(turns is None or whole.startswith(turns.text), f"{turns} is not how it began")


async def a_deleted_conversation_is_gone(store: Store, writer: Writer) -> None:
    await writer.turns(1, 2)
    await store.delete("s1")
    expect_equal(await ids_of(store), [], "the list")
    expect_equal(await store.count("ada"), 0, "the count")
    expect(await store.row("s1") is None, "there is still a row")
    expect_equal(await _found(store, "ask"), [], "what is found")
    await refused(store.open("s1"), ConversationNotFound, "opening it")
    await refused(store.page("s1", PageQuery()), ConversationNotFound, "a page of it")
    await refused(store.delete("s1"), ConversationNotFound, "deleting it again")


async def the_writer_of_a_deleted_conversation_writes_nothing(
    make: Maker, store: Store, writer: Writer
) -> None:
    await writer.write(prompt("t1"))
    await store.delete("s1")
    errors = (ConversationReadOnly, ConversationNotFound)
    await refused(writer.write(prompt("t2")), errors, "appending to it")
    new = await Writer.create(make, store, user="bob")
    await refused(writer.write(prompt("t3")), StorageError, "appending to the one that was deleted")
    await writer.record.close()
    await new.write(prompt("t4"))
    expect_equal([e.turn_id for e in await entries_of(store)], ["t4"], "the new one's turns")
    await refused(store.open("s1"), ConversationReadOnly, "opening it while it is open")


async def an_undeleted_conversation_is_as_it_was(make: Maker, store: Store, writer: Writer) -> None:
    blob = await writer.record.keep_blob(b"beside")
    await writer.turns(1, 3)
    await writer.write(PinnedEntry(pinned=True))
    row, entries = await row_of(store), await entries_of(store)
    await store.delete("s1")
    await store.undelete("s1")
    expect_equal(await row_of(store), row, "the row")
    expect_equal(await entries_of(store), entries, "the entries")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"beside", "its blob")
    expect_equal(await ids_of(store), ["s1"], "the list")
    expect_equal(len(await _found(store, "ask")), 3, "messages found")
    await Writer.of(make, await store.open("s1")).turns(4, 4)


async def only_ones_own_is_brought_back(make: Maker, store: Store) -> None:
    await (await Writer.create(make, store)).write(prompt("t1"))
    await store.delete("s1")
    await refused(store.undelete("s1", user="eve"), ConversationNotFound, "undeleting another's")
    expect_equal(await ids_of(store), [], "the list")
    await store.undelete("s1", user="ada")
    expect_equal(await ids_of(store), ["s1"], "the list after undeleting")


async def the_trash_lists_ones_own_deleted_conversations(make: Maker, store: Store) -> None:
    for session_id, user in (("s1", "ada"), ("s2", "ada"), ("s3", "eve")):
        await (await Writer.create(make, store, session_id, user=user)).write(
            prompt("t1", f"about {session_id}")
        )
    expect_equal(list(await store.trash("ada")), [], "the trash before anything was deleted")
    for session_id in ("s1", "s2", "s3"):
        await store.delete(session_id)
    deleted = await store.trash("ada")
    expect_equal({each.row.session_id for each in deleted}, {"s1", "s2"}, "ada's trash")
    expect_equal({each.row.name for each in deleted}, {"about s1", "about s2"}, "their names")
    times = [each.deleted_at for each in deleted]
    expect_equal(times, sorted(times, reverse=True), "the last deleted first: their times")
    expect_equal((await store.trash("ada", limit=1))[0], deleted[0], "the last deleted")
    await store.undelete("s1", user="ada")
    expect_equal([each.row.session_id for each in await store.trash("ada")], ["s2"], "the rest")
    await store.delete("s1")
    expect_equal(len(await store.trash("ada")), 2, "after deleting it again")


async def undelete_shows_whether_another_may_restore_it(make: Maker, store: Store) -> None:
    await (await Writer.create(make, store)).write(prompt("t1"))
    asked = [("s1", "eve"), ("s1", "ada"), ("s2", "eve")]
    for expected in (False, True, False):
        found = [await store.is_trash_of_another(*each) for each in asked]
        expect_equal(found, [expected, False, False], "is it another's")
        await (store.undelete("s1") if expected else store.delete("s1"))


async def undeleting_replaces_nothing(make: Maker, store: Store, writer: Writer) -> None:
    await refused(store.undelete("s2"), ConversationNotFound, "undeleting what was not deleted")
    await writer.write(prompt("t1", "old"))
    await store.delete("s1")
    new = await Writer.create(make, store)
    await new.write(prompt("t1", "new"))
    await refused(store.undelete("s1"), ConversationExists, "undeleting under an id that is taken")
    expect_equal(await store.text_of("s1", 1), "new", "what is there")


@where("last")
async def what_was_deleted_stays_so_for_the_next_store(make: Maker, store: Store) -> None:
    for session_id in ("s1", "s2"):
        await (await Writer.create(make, store, session_id)).write(prompt("t1"))
    await store.delete("s1")
    store = await make.reopened(store)
    expect_equal(await ids_of(store), ["s2"], "the list")
    await store.undelete("s1")
    store = await make.reopened(store)
    expect_equal(sorted(await ids_of(store)), ["s1", "s2"], "the list after undeleting")


# ------------------------------------------------------------------------------
# Redaction


async def a_tombstone_stands_where_the_entry_was(store: Store, writer: Writer) -> None:
    await writer.turns(1, 4)
    before = list(writer.history.entries)
    at = writer.clock()
    tombstone = await writer.record.redact(3, at=at)
    seen = (tombstone.seq, tombstone.id, tombstone.kind, tombstone.redacted_at)
    expect_equal(seen, (3, before[2].id, before[2].kind, at), "the tombstone")
    wanted = [*before[:2], tombstone, *before[3:]]
    expect_equal(await entries_of(store), wanted, "the entries")
    opened = await writer.opened_again(store)
    expect_equal(list(opened.history.entries), wanted, "the history when opened again")


async def redacted_words_are_nowhere(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1", "tell sesame to me"), answer("t1", "it is sesame"))
    await writer.write(prompt("t2", "and now"), answer("t2", "sesame again"))
    await writer.write(writer.history.rollback_to(2))
    for seq in (1, 2, 4):
        await writer.redact(seq)
    row = await row_of(store)
    for what, seen in (
        ("the row", repr(row)),
        ("the messages", repr(await all_messages(store))),
        ("the entries", repr(await entries_of(store))),
        ("the texts", repr([await store.text_of("s1", seq) for seq in range(1, 6)])),
        ("what is found", repr(await _found(store, "sesame")).replace("[]", "")),
    ):
        expect("sesame" not in seen, f"{what} still say it: {seen}")
    expect_equal(await _found(store, "sesame"), [], "what is found")
    expect_equal((row.head_seq, row.message_count), (5, 2), "head and count of the row")


async def redaction_removes_what_another_program_stored(make: Maker, store: Store) -> None:
    await _build(store, "s1", drafted(make, 1))
    writer = Writer.of(make, await store.open("s1"))
    await writer.redact(1)
    expect_equal((await store.origin("s1")).extra, {}, "the fields of another program")
    expect_equal((await store.origin("s1")).user, "ada", "the user")
    await writer.write(prompt("new"))
    again = await writer.reopened(store)
    expect_equal([e.seq for e in await entries_of(store)], [1, 2, 3], "the numbers")
    await again.write(answer("new"))


async def a_redacted_result_takes_its_blob_along(store: Store, writer: Writer) -> None:
    alone = await writer.record.keep_blob(b"only here")
    shared = await writer.record.keep_blob(b"here and there")
    for number, blob in enumerate((alone, shared, shared)):
        turn_id = f"t{number}"
        await writer.write(prompt(turn_id), asking(turn_id), looking(turn_id, "x", blob))
        await writer.write(answer(turn_id, call=1))
    for seq in (3, 7):
        await writer.redact(seq)
    await refused(
        store.blob("s1", alone.blob_id, 0, 10), StorageError, "the blob of what is redacted"
    )
    kept = await store.blob("s1", shared.blob_id, 0, 20)
    expect_equal(kept, b"here and there", "a blob that another result names")


async def it_goes_on_after_a_redaction(store: Store, writer: Writer) -> None:
    await writer.turns(1, 2)
    await writer.redact(4)
    await writer.turns(3, 4)
    again = await writer.reopened(store)
    await again.turns(5, 5)
    expect_equal([e.seq for e in await entries_of(store)], list(range(1, 13)), "the numbers")


async def what_can_not_be_redacted_is_refused(store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"), ClearEntry())
    before = await entries_of(store)
    for seq in (0, -1, 2, 3, 10**12):
        await refused(writer.redact(seq), BadEntry, f"redacting entry {seq}")
    await writer.record.close()
    await refused(writer.redact(1), ConversationReadOnly, "redacting through a closed record")
    expect_equal(await entries_of(store), before, "the entries")


# ------------------------------------------------------------------------------
# Trimming and expiry

_STATE = ("system_instruction", "notebook", "widget_states")


def _turns_in(entries: Iterable[Entry]) -> dict[str, list[int]]:
    turns: dict[str, list[int]] = {}
    for entry in entries:
        if entry.turn_id is not None:
            turns.setdefault(entry.turn_id, []).append(entry.seq)
    return turns


async def _kept(store: Store) -> list[Entry]:
    """The entries that are still stored, without the checkpoint."""
    found = await entries_of(store)
    return [entry for entry in found if not isinstance(entry, CheckpointEntry)]


@where("trim", max_turns=3)
async def only_the_newest_turns_are_kept(store: Store, writer: Writer) -> None:
    await writer.turns(1, 10)
    kept = await _kept(store)
    expect_equal(list(_turns_in(kept)), ["t8", "t9", "t10"], "the turns that are kept")
    whole = list(writer.history.entries)
    expect_equal(kept, whole[kept[0].seq - 1 :], "the entries that are kept")
    row = await row_of(store)
    expect_equal((row.first_seq, row.head_seq), (kept[0].seq, kept[-1].seq), "its ends in the row")
    wanted = messages_among(kept)
    expect_equal(numbers_in(await all_messages(store)), wanted, "the messages")
    page = await store.page("s1", PageQuery(before=wanted[2], limit=10))
    expect(not page.has_more_before, "there is more before the first that is kept")


@where("trim", max_turns=2)
async def no_turn_is_ever_split(store: Store, writer: Writer) -> None:
    for number in range(1, 13):
        ahead, behind = f"t{number + 1}", f"t{number}"
        drafts: list[Entry] = [prompt(behind)] if number % 4 == 1 else []
        drafts += [prompt(ahead)] if number % 4 else []
        if number % 3:
            drafts += [answer(behind)]
        else:
            drafts += [asking(behind), looking(behind), fault(behind)]
        for draft in drafts:
            await writer.write(draft)
            written = _turns_in(writer.history.entries)
            for turn_id, seqs in _turns_in(await _kept(store)).items():
                expect_equal(seqs, written[turn_id], f"what is kept of turn {turn_id}")
        kept = _turns_in(await _kept(store))
        unfinished = {turn.turn_id for turn in writer.history.unfinished_turns()}
        expect(unfinished <= set(kept), f"turns that have not ended were trimmed: {unfinished}")
        expect(len(set(kept) - unfinished) >= min(2, number), "fewer turns are kept than asked for")
    expect((await row_of(store)).first_seq > 1, "nothing was trimmed")


@where("trim", max_turns=2)
async def what_was_trimmed_is_still_accounted_for(store: Store, writer: Writer) -> None:
    await writer.write(SystemInstructionEntry(content="be brief"), NotebookEntry(content="- milk"))
    await writer.write(WidgetEntry(widget="todo", state={"items": ["milk"]}))
    await writer.write(prompt("t0"), replace(answer("t0"), usage={"input_tokens": 7}))
    await writer.write(CompactionEntry(content="they talked", from_seq=4, through_seq=5))
    await writer.write(EpochEntry(reason="compaction", summary_through=4))
    await writer.write(ModelSwitchedEntry(model="p/m"))
    await writer.turns(1, 7)
    for first in (8, 12):
        opened = await writer.opened_again(store)
        history, whole = opened.history, writer.history
        for what in (*_STATE, "model", "message_count", "head_seq"):
            expect_equal(getattr(history, what), getattr(whole, what), what)
        summaries = [(entry.seq, entry.content) for entry in history.compactions]
        expect_equal(summaries, [(6, "they talked")], "the compaction")
        expect_equal(opened.row.name, "hello", "the name")
        expect_equal(opened.row.billed, (("", 1, 7, 0, 0),), "what was billed")
        writer = Writer(opened.record, writer.history, writer.clock)
        await writer.turns(first, first + 3)
    expect_equal(list(_turns_in(await _kept(store))), ["t14", "t15"], "the turns that are kept")


@where("trim", max_turns=2)
async def state_set_right_before_the_cut_still_holds(store: Store, writer: Writer) -> None:
    await writer.turns(1, 1)
    expected: list[Entry] = [
        SystemInstructionEntry(content="be frank"),
        NotebookEntry(content="- eggs"),
        WidgetEntry(widget="todo", state={"items": ["eggs"]}),
    ]
    for first, draft in zip((2, 4, 6), expected, strict=True):
        await writer.write(draft)
        await writer.turns(first, first + 1)
        opened = await writer.opened_again(store)
        for what in _STATE:
            expect_equal(getattr(opened.history, what), getattr(writer.history, what), what)
        writer = Writer(opened.record, writer.history, writer.clock)


@where("trim", max_turns=3)
async def a_trimmed_conversation_can_be_rolled_back_within_reach(
    store: Store, writer: Writer
) -> None:
    await writer.turns(1, 8)
    kept = _turns_in(await _kept(store))
    await writer.write(writer.history.rollback_to(kept["t7"][-1]))
    await writer.turns(9, 9)
    opened = await writer.opened_again(store)
    active = _turns_in(opened.history.active)
    expect_equal(list(active), ["t6", "t7", "t9"], "the turns that stand")
    expect_equal(opened.history.message_count, writer.history.message_count, "the count")


@where("trim", max_turns=2)
async def nothing_leads_back_to_what_was_trimmed(store: Store, writer: Writer) -> None:
    await writer.turns(1, 6)
    row, kept = await row_of(store), await _kept(store)
    await refused(
        writer.write(writer.history.rollback_to(2)), BadEntry, "a rollback to what is not kept"
    )
    expect_equal((await row_of(store), await _kept(store)), (row, kept), "row and entries")
    await writer.write(writer.history.rollback_to(kept[0].seq - 1))
    expect_equal((await all_messages(store)).messages, (), "messages that stand")


@where("expire", ttl_seconds=100)
async def an_unused_conversation_expires(make: Maker, store: Store, writer: Writer) -> None:
    await (await Writer.create(make, store, "s2")).write(prompt("t1"))
    blob = await writer.record.keep_blob(b"beside")
    await make.pass_time(60)
    await writer.write(prompt("t1", "sesame"))
    await make.pass_time(60)
    expect_equal(await store.count("ada"), 1, "the count when only s1 was used")
    expect_equal(await ids_of(store), ["s1"], "the list when only s1 was used")
    expect_equal(await store.blob("s1", blob.blob_id, 0, 10), b"beside", "its blob")
    await make.pass_time(60)
    expect_equal(await store.count("ada"), 0, "the count when nothing was used")
    expect_equal(await ids_of(store), [], "the list when nothing was used")
    expect(await store.row("s1") is None, "there is a row of what expired")
    await refused(store.page("s1", PageQuery()), ConversationNotFound, "reading what expired")
    await refused(writer.write(answer("t1")), StorageError, "appending to what expired")
    await writer.record.close()
    await Writer.create(make, store)
    await refused(store.blob("s1", blob.blob_id, 0, 10), StorageError, "the blob of what expired")


@where("expire", ttl_seconds=100)
async def opening_and_touching_keep_it_alive(make: Maker, store: Store, writer: Writer) -> None:
    await writer.write(prompt("t1"))
    await writer.journal("t1", 0, "text", "so far")
    await writer.record.close()
    await make.pass_time(60)
    opened = await store.open("s1")
    await opened.record.close()
    await make.pass_time(60)
    store.touch("s1", writer.clock())
    await store.close()
    await make.pass_time(60)
    store = await make.store(ttl_seconds=100)
    expect_equal(await ids_of(store), ["s1"], "the list")
    opened = await store.open("s1")
    expect_equal(opened.partial_answer and opened.partial_answer.text, "so far", "what was said")
    expect_equal(len(opened.history.entries), 1, "entries")


RULES: tuple[Rule, ...] = rules_in(globals())
