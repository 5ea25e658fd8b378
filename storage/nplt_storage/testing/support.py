"""What the conformance rules share: the rule book, store makers, small conversations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from inspect import iscoroutinefunction, signature
from itertools import count
from types import ModuleType
from typing import ClassVar, Final, Literal, TypeAlias

from msgspec import Struct, field

from nplt_storage.entries import (
    BlobReference,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.history import ConversationHistory
from nplt_storage.ids import new_entry_id
from nplt_storage.pages import MessagePage, PageQuery
from nplt_storage.rows import ConversationRow, RowQuery
from nplt_storage.store import ConversationStore, Opened, Record

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
    """A second later every time it is asked."""
    seconds = count()
    return lambda: START + timedelta(seconds=next(seconds))


class StoreMaker(ABC):
    can: ClassVar[frozenset[Ability]] = frozenset()

    def __init__(self) -> None:
        self.clock = ticking_clock()
        self._open: list[ConversationStore] = []

    @abstractmethod
    async def open_store(
        self, *, max_turns: int | None = None, ttl_seconds: int | None = None
    ) -> ConversationStore:
        """Options are only given to makers that can `trim` or `expire`."""

    async def end(self, store: ConversationStore) -> None:
        """As the death of its process would: nothing is finished, nothing is said."""
        raise NotImplementedError

    async def pass_time(self, seconds: int) -> None:
        raise NotImplementedError

    # For the rules

    async def store(self, **options: int) -> ConversationStore:
        store = await self.open_store(**options)
        self._open.append(store)
        return store

    async def reopened(self, store: ConversationStore) -> ConversationStore:
        await store.close()
        self._open.remove(store)
        return await self.store()

    async def after_crash(self, store: ConversationStore) -> ConversationStore:
        await self.end(store)
        self._open.remove(store)
        return await self.store()

    async def close(self) -> None:
        """Ends all it has opened; a subclass that holds more closes that too."""
        while self._open:
            await self._open.pop().close()


Store: TypeAlias = ConversationStore
Maker: TypeAlias = StoreMaker
Check: TypeAlias = Callable[..., Awaitable[None]]
"""Takes what it needs by name: `make`, `store` (of that maker) and `writer` (of the
conversation "s1" in that store)."""


class Rule(Struct, frozen=True):
    name: str
    check: Check
    needs: Ability | None = None
    options: dict[str, int] = field(default_factory=dict)
    """Of the store it is given."""

    async def run(self, make: StoreMaker) -> None:
        given: dict[str, object] = {"make": make}
        needed = signature(self.check).parameters
        if "store" in needed or "writer" in needed:
            given["store"] = store = await make.store(**self.options)
            if "writer" in needed:
                given["writer"] = await Writer.create(make, store)
        await self.check(**{name: given[name] for name in needed})


_FOR_SOME_STORES: Final[dict[Check, Rule]] = {}


def where(ability: Ability, **options: int) -> Callable[[Check], Check]:
    """Before a rule for stores whose maker has that ability."""

    def note(check: Check) -> Check:
        _FOR_SOME_STORES[check] = Rule(check.__name__, check, ability, options)
        return check

    return note


def rules_in(module: ModuleType) -> tuple[Rule, ...]:
    """Its public coroutine functions, in the order in which they stand there."""
    return tuple(
        _FOR_SOME_STORES.get(check) or Rule(name, check)
        for name, check in vars(module).items()
        if iscoroutinefunction(check) and check.__module__ == module.__name__
        if not name.startswith("_")
    )


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
        cls, make: StoreMaker, store: ConversationStore, session_id: str = "s1", user: str = "ada"
    ) -> Writer:
        record = await store.create(session_id, user=user)
        return cls(record, ConversationHistory(session_id), make.clock)

    @classmethod
    def of(cls, make: StoreMaker, opened: Opened) -> Writer:
        return cls(opened.record, opened.history, make.clock)

    async def opened_again(self, store: ConversationStore) -> Opened:
        """Closes the record and opens the conversation once more."""
        await self.record.close()
        return await store.open(self.record.session_id)

    async def reopened(self, store: ConversationStore) -> Writer:
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
        """Through the record alone: the history is not told."""
        await self.record.append(entry)

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
    """A whole conversation, not written anywhere yet."""
    history = ConversationHistory("s1")
    for number in range(1, turns + 1):
        for draft in turn(number):
            history.add(history.stamp(draft, id=new_entry_id(), timestamp=make.clock()))
    return list(history.entries)


async def entries_of(
    store: ConversationStore, session_id: str = "s1", *, after: int = 0, through: int | None = None
) -> list[Entry]:
    found: list[Entry] = []
    async for batch in store.entries(session_id, after=after, through=through):
        found += batch
    return found


async def row_of(store: ConversationStore, session_id: str = "s1") -> ConversationRow:
    row = await store.row(session_id)
    if row is None:
        raise RuleBroken(f"there is no row of {session_id}")
    return row


async def ids_of(store: ConversationStore, user: str = "ada") -> list[str]:
    return [row.session_id for row in (await store.list(user, RowQuery(limit=1000))).rows]


async def all_messages(store: ConversationStore, session_id: str = "s1") -> MessagePage:
    return await store.page(session_id, PageQuery(limit=10_000, bytes_max=10**9))


def numbers_in(page: MessagePage) -> list[object]:
    return [message["seq"] for message in page.messages]


def messages_among(entries: Iterable[Entry]) -> list[int]:
    return [e.seq for e in entries if isinstance(e, ModelInputEntry | ModelOutputEntry)]


def without_gaps(entries: Sequence[Entry]) -> bool:
    return [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
