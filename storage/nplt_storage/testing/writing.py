"""Small conversations for the rules: one line each, numbered and timed like real ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from nplt_storage.conversation.history import ConversationHistory
from nplt_storage.conversation.paging import MessagePage, PageQuery
from nplt_storage.conversation.row_lists import RowQuery
from nplt_storage.conversation.rows import ConversationRow
from nplt_storage.facts.entries import (
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolResultsEntry,
)
from nplt_storage.facts.tool_calls import BlobReference, ToolCallRequest, ToolCallResult
from nplt_storage.ids import new_entry_id
from nplt_storage.store import ConversationStore, Opened, Record
from nplt_storage.testing.expecting import RuleBroken
from nplt_storage.testing.maker import START, StoreMaker

HOSTILE_IDS = (
    *("", "..", "../s1", "/etc/passwd", "a/b", "a\\b", "a b", "a\n", "s1\x00", "-a", "_a", "é"),
    *("x" * 65, "s*", "s1.json", "s1:log", "@user:ada"),
)


@dataclass(slots=True)
class Writer:
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
    return await store.page(session_id, PageQuery(limit=10_000, max_bytes=10**9))


def numbers_in(page: MessagePage) -> list[object]:
    return [message["seq"] for message in page.messages]


def messages_among(entries: Iterable[Entry]) -> list[int]:
    return [e.seq for e in entries if isinstance(e, ModelInputEntry | ModelOutputEntry)]


def without_gaps(entries: Sequence[Entry]) -> bool:
    return [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
