"""Reads one turn through a session in this process: what is stored of it, then what is live.

The order is that of the record, for each call: its reasoning, its text, the output that has both,
the results of its tools. It does not matter when the reading begins, or whether it is interrupted
by a lost owner, a slow client or a restart. Offsets count code points.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import orjson
from msgspec import Struct

from nplt_gateway.response_ids import ResponseId
from nplt_gateway.session_pipe import SessionPipe
from nplt_protocol import ErrorCode, JsonObject, RequestError
from nplt_protocol.messages import (
    AgentThought,
    Attached,
    EncodedEntryAdded,
    EntryAdded,
    Event,
    HistoryPage,
    HistoryRequest,
    MessageRange,
    SessionEvent,
    TextDelta,
    TurnFinished,
)
from nplt_protocol.resume import Cursor, TurnProgress, has_ended

_PAGE_ENTRIES: Final = 200


DeltaKind: TypeAlias = Literal["text", "reasoning"]


class Delta(Struct, frozen=True, kw_only=True):
    kind: DeltaKind
    call: int
    offset: int
    text: str


class Stored(Struct, frozen=True):
    """An entry of the turn. The deltas of an output come before it, all of them."""

    entry: JsonObject


class Over(Struct, frozen=True):
    finished: TurnFinished


TurnPart: TypeAlias = Delta | Stored | Over


class TurnReader:
    """Attaches its session to the conversation; the session must not be used for another."""

    def __init__(self, pipe: SessionPipe, turn: ResponseId) -> None:
        self.session_id = turn.session_id
        self.turn_id = turn.turn_id
        self._pipe = pipe
        self._cursor = Cursor(turn.session_id, turn.prompt_seq - 1)
        self._progress = TurnProgress()
        self._parts: list[TurnPart] = []
        self._given: dict[tuple[DeltaKind, int], int] = {}
        """How many code points of each call's texts were given as parts."""
        self._last_entry: JsonObject | None = None
        self._is_live = False
        self.is_over = False
        self.is_queued = False
        """Whether it waited behind other turns when the session attached."""

    def begin_live(self) -> None:
        """The session is attached, and the prompt was sent through it: all events will come."""
        self._is_live = True

    async def next_parts(self) -> list[TurnPart]:
        """Returns the next parts, at least one; waits for them. The last one is `Over`. Raises
        `RequestError`."""
        while not self._parts:
            if not self._is_live:
                await self._catch_up()
                continue
            self._take(await self._pipe.next_event())
            for event in self._pipe.waiting_events():
                self._take(event)
        parts, self._parts = self._parts, []
        return parts

    async def parts_so_far(self) -> list[TurnPart]:
        """Returns the parts that there are now, without waiting for more."""
        while not (self._is_live or self.is_over):
            await self._catch_up()
        for event in self._pipe.waiting_events():
            self._take(event)
        parts, self._parts = self._parts, []
        return parts

    # The record

    async def _catch_up(self) -> None:
        """Reads what is stored, then attaches for the rest."""
        if not await self._read_pages():
            request = self._cursor.attach()
            attached = await self._pipe.ask(request, Attached)
            self._cursor = self._cursor.after_attach(attached, request)
            self.is_queued = self.turn_id in attached.queue
            if attached.resync:
                return  # more was stored than an attached client is sent
            self._is_live = True
            for event in self._pipe.waiting_events():
                self._take(event)
            if not self.is_over and has_ended(self.turn_id, attached):
                await self._read_pages()
                if not self.is_over:
                    self._end(self._end_by_record())

    async def _read_pages(self) -> bool:
        """Reads the entries after the cursor; returns whether the turn is over."""
        while True:
            request = HistoryRequest(
                session_id=self.session_id,
                after=self._cursor.seq,
                limit=_PAGE_ENTRIES,
                max_bytes=self._pipe.message_bytes_max,
                view="entries",
            )
            page = await self._pipe.ask(request, HistoryPage)
            for entry in page.messages:
                turn_id = entry.get("turn_id")
                added = EntryAdded(
                    session_id=self.session_id,
                    entry=await self._whole(entry),
                    turn_id=turn_id if isinstance(turn_id, str) else None,
                    call=_call_of(entry),
                )
                self._take(added)
                if self.is_over:
                    return True
            if not page.page.has_more_after:
                return False

    async def _whole(self, entry: JsonObject) -> JsonObject:
        """The entry with all of its text, which a page may have cut."""
        size, seq = entry.get("size"), entry.get("seq")
        is_mine = entry.get("turn_id") == self.turn_id
        if not (entry.get("truncated") and is_mine and isinstance(size, int)):
            return entry
        texts: list[str] = []
        read = 0
        while read < size and isinstance(seq, int):
            request = HistoryRequest(session_id=self.session_id, seq=seq, offset=read)
            piece = await self._pipe.ask(request, MessageRange)
            if not piece.content:
                break
            texts.append(piece.content)
            read += len(piece.content)
        return {**entry, "content": "".join(texts)}

    # Events

    def _take(self, event: Event) -> None:
        if isinstance(event, EncodedEntryAdded):
            event = EntryAdded(
                session_id=event.session_id,
                entry=orjson.loads(bytes(event.entry)),
                turn_id=event.turn_id,
                call=event.call,
            )
        if isinstance(event, SessionEvent) and event.event == "lagged":
            self._is_live = False  # it was sent too much; the rest is in the record
            return
        if isinstance(event, SessionEvent) and event.event == "deleted":
            raise RequestError(ErrorCode.NOT_FOUND, "the conversation was deleted")
        if isinstance(event, EntryAdded):
            self._take_entry(event)
            return
        if getattr(event, "turn_id", None) != self.turn_id:
            return
        match self._cursor.take(event):
            case TextDelta() as new:
                self._add("text", new.call, new.offset, new.text)
            case AgentThought(type="reasoning", offset=int(offset), text=str(text)) as new:
                self._add("reasoning", new.call or 0, offset, text)
            case TurnFinished() as new:
                self._end(new)
            case _:
                pass

    def _add(self, kind: DeltaKind, call: int, offset: int, text: str) -> None:
        """Adds what is new of the text. A session that attaches gets the running call again."""
        given = self._given.get((kind, call), 0)
        new = text[max(given - offset, 0) :]
        if new:
            self._given[kind, call] = given + len(new)
            self._parts.append(Delta(kind=kind, call=call, offset=given, text=new))

    def _take_entry(self, event: EntryAdded) -> None:
        seq, is_mine = event.entry.get("seq"), event.turn_id == self.turn_id
        if not isinstance(seq, int) or seq <= self._cursor.seq:
            return
        if is_mine and event.entry.get("truncated") and self._is_live:
            self._is_live = False  # the whole entry is read from the record
            return
        entry = event.entry
        if is_mine and entry.get("kind") == "model_output":
            self._add("reasoning", event.call or 0, 0, str(entry.get("reasoning") or ""))
            self._add("text", event.call or 0, 0, str(entry.get("content") or ""))
        self._cursor.take(event)
        if is_mine:
            self._progress.apply(event)
            self._last_entry = event.entry
            self._parts.append(Stored(event.entry))
            if self._progress.end is not None:
                self._end(self._progress.end)

    def _end_by_record(self) -> TurnFinished:
        """The end of a turn that no entry ends: it waits for results of the client's tools."""
        last = self._last_entry
        if last is None:
            gone = "this turn is not in the conversation any more"
            raise RequestError(ErrorCode.NOT_FOUND, gone)
        return TurnFinished(
            session_id=self.session_id,
            turn_id=self.turn_id,
            state="completed" if last.get("kind") != "model_input" else "interrupted",
            seq=self._cursor.seq,
            stop_reason="tool_calls",
        )

    def _end(self, finished: TurnFinished) -> None:
        if not self.is_over:
            self.is_over = True
            self._parts.append(Over(finished))


def _call_of(entry: JsonObject) -> int | None:
    call = entry.get("call")
    return call if isinstance(call, int) else None


# Entries as clients get them


def client_calls_of(entry: JsonObject) -> list[JsonObject]:
    """The calls of an output that its client is to run."""
    calls = entry.get("tool_calls") if entry.get("kind") == "model_output" else None
    listed = calls if isinstance(calls, list) else []
    return [call for call in listed if isinstance(call, dict) and call.get("by_client")]


def arguments_of(call: JsonObject) -> str:
    """The arguments as the model wrote them."""
    return str(call.get("raw_arguments") or "{}")


def model_of(entry: JsonObject) -> str | None:
    invocation = entry.get("invocation")
    if not isinstance(invocation, dict):
        return None
    return f"{invocation.get('provider')}/{invocation.get('model')}"


def failure_of(error: JsonObject | None, state: str) -> RequestError:
    """The error for a turn that failed or was cancelled."""
    known = error or {}
    message = str(known.get("message") or f"the answer is not complete ({state})")
    if known.get("code") == "cancelled" or state == "interrupted":
        return RequestError(ErrorCode.UNAVAILABLE, f"the answer was interrupted: {message}")
    try:
        code = ErrorCode(str(known.get("code")))
    except ValueError:
        code = ErrorCode.INTERNAL
    return RequestError(code, message)
