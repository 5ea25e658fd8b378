"""Small conversations for tests: fixed clock, readable ids, one line each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count

from nplt_storage import ConversationHistory, encode_line
from nplt_storage.entries import (
    ApprovalEntry,
    ClearEntry,
    Entry,
    FaultEntry,
    ModelInputEntry,
    ModelOutputEntry,
    ToolCallRequest,
    ToolCallResult,
    ToolResultsEntry,
)
from nplt_storage.files.format import Header, advance, empty_tail, encode_closing, encode_header

START = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
REMEMBERED_APPROVAL = ApprovalEntry(
    approval_id="a",
    tool_call_id="c",
    tool_name="write",
    state="allowed",
    decided_by="ada",
    remember=True,
)


def ticking_clock(start: datetime = START) -> Callable[[], datetime]:
    """A second later every time it is asked."""
    seconds = count()
    return lambda: start + timedelta(seconds=next(seconds))


def counting_ids(prefix: str = "e") -> Callable[[], str]:
    numbers = count(1)
    return lambda: f"{prefix}{next(numbers)}"


def call(name: str = "look", id: str = "c1") -> ToolCallRequest:  # noqa: A002
    return ToolCallRequest(tool_call_id=id, tool_name=name, raw_arguments="{}", arguments={})


def answer_to(request: ToolCallRequest, result: str = "seen") -> ToolCallResult:
    return ToolCallResult(
        tool_call_id=request.tool_call_id,
        tool_name=request.tool_name,
        status="success",
        result=result,
        duration=0.25,
        timestamp=START,
    )


@dataclass(slots=True)
class Pen:
    """Writes drafts into a history, numbered and timed."""

    history: ConversationHistory = field(default_factory=lambda: ConversationHistory("s1"))
    clock: Callable[[], datetime] = field(default_factory=ticking_clock)
    new_id: Callable[[], str] = field(default_factory=counting_ids)

    def stamped(self, draft: Entry) -> Entry:
        return self.history.stamp(draft, id=self.new_id(), timestamp=self.clock())

    def write(self, draft: Entry) -> Entry:
        entry = self.stamped(draft)
        self.history.add(entry)
        return entry

    def write_all(self, drafts: Iterable[Entry]) -> list[Entry]:
        return [self.write(draft) for draft in drafts]


def prompt(turn_id: str, content: str = "hello") -> ModelInputEntry:
    return ModelInputEntry(turn_id=turn_id, content=content)


def answer(turn_id: str, content: str = "hi", *, call: int = 0) -> ModelOutputEntry:
    return ModelOutputEntry(turn_id=turn_id, content=content, call=call)


def asking(
    turn_id: str, *calls: ToolCallRequest, number: int = 0, content: str = ""
) -> ModelOutputEntry:
    return ModelOutputEntry(turn_id=turn_id, content=content, tool_calls=calls, call=number)


def answering(turn_id: str, *calls: ToolCallRequest, number: int = 0) -> ToolResultsEntry:
    return ToolResultsEntry(
        turn_id=turn_id, results=tuple(answer_to(call) for call in calls), call=number
    )


def fault(turn_id: str) -> FaultEntry:
    return FaultEntry(turn_id=turn_id, content="gone", code="cancelled", state="interrupted")


def clear() -> ClearEntry:
    return ClearEntry()


def chat(turns: int, *, content: str = "word ") -> list[Entry]:
    """Prompts and answers, every third turn with a tool call on the way."""

    def drafts() -> Iterator[Entry]:
        for number in range(turns):
            turn_id = f"t{number}"
            yield prompt(turn_id, f"{content}{number}")
            if number % 3 == 2:
                yield asking(turn_id, call())
                yield answering(turn_id, call())
                yield answer(turn_id, f"so {number}", call=1)
            else:
                yield answer(turn_id, f"re {number}")

    return Pen().write_all(drafts())


def file_bytes(entries: Iterable[Entry], session_id: str = "s1", *, user: str = "local") -> bytes:
    """The file that holds these entries, put together without the code that appends."""
    header = Header(session_id=session_id, created_at=START, user=user)
    first = encode_header(header)
    closing = empty_tail(START, len(first)).closing
    data = bytearray(first)
    for entry in entries:
        closing = advance(closing, entry.kind, at=entry.timestamp, offset=len(data))
        data += (b"," if entry.seq > 1 else b"") + encode_line(entry) + b"\n"
    return bytes(data + encode_closing(closing))


def context_entries(history: ConversationHistory, turn_id: str) -> list[Entry]:
    """What a model is shown when it answers this turn; an id that is not there is
    taken as a turn yet to come."""
    own = history.turn(turn_id)
    shown = [t for t in history.shown_turns if own is None or t.number < own.number]
    if history.turns_max is not None:
        shown = shown[max(0, len(shown) - history.turns_max) :]
    return [entry for turn in (*shown, *([own] if own else [])) for entry in turn.entries]
