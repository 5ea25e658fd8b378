"""Brings an answer to the client, or as much of it as the fault lets through."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import orjson
from tests.vendors.apis import Api
from tests.vendors.faults import (
    BrokenJson,
    Cut,
    ErrorEvent,
    Fault,
    HangUp,
    NoEnd,
    Stall,
)
from tests.vendors.fields import JsonObject
from tests.vendors.http_server import Reply
from tests.vendors.sse import Event, Wire, chunks, dressed, encoded


class Delivery:
    def __init__(
        self, api: Api, reply: Reply, *, wire: Wire, fault: Fault | None, released: asyncio.Event
    ) -> None:
        self._api, self._reply = api, reply
        self._wire, self._fault, self._released = wire, fault, released

    async def whole(self, answer: JsonObject, headers: Mapping[str, str]) -> None:
        body = orjson.dumps(answer)
        match self._fault:
            case HangUp():
                self._reply.cut()
            case Cut() | NoEnd():
                await self._reply.whole(200, body, headers, sent=len(body) // 2)
                self._reply.cut()
            case BrokenJson():
                await self._reply.whole(200, body[: len(body) // 2], headers)
            case ErrorEvent():
                event = self._api.error_event(self._fault)
                await self._reply.whole(200, orjson.dumps(event.data), headers)
            case Stall():
                await self._released.wait()
                await self._reply.whole(200, body, headers)
            case _:
                await self._reply.whole(200, body, headers)

    async def streamed(self, events: Sequence[Event], headers: Mapping[str, str]) -> None:
        fault = self._fault
        if isinstance(fault, HangUp):
            self._reply.cut()
            return
        if isinstance(fault, NoEnd):
            left_out = ("done",) if fault.stop_sent else ("stop", "done")
            events = [event for event in events if event.end not in left_out]
        await self._reply.begin(200, {**headers, "content-type": "text/event-stream"})
        listed = list(dressed(events, self._wire, stranger=self._api.stranger))
        breaking_place = None
        if isinstance(fault, Cut | Stall | ErrorEvent | BrokenJson):
            breaking_place = min(fault.after, len(listed) - 1)
        for place, event in enumerate(listed):
            if place != breaking_place:
                await self._send(encoded(event, self._wire))
            elif await self._break(event):
                return
        await self._reply.finish()

    async def _break(self, event: Event) -> bool:
        """Whether that was the last of it; if not, the event itself is dealt with."""
        match self._fault:
            case Cut():
                self._reply.cut()
                return True
            case ErrorEvent():
                error = self._api.error_event(self._fault)
                await self._send(encoded(error, self._wire))
                await self._reply.finish()
                return True
            case BrokenJson():
                whole = orjson.dumps(event.data).decode()
                broken = Event(name=event.name, data=whole[: len(whole) // 2])
                await self._send(encoded(broken, self._wire))
            case _:
                await self._released.wait()
                await self._send(encoded(event, self._wire))
        return False

    async def _send(self, block: bytes) -> None:
        if self._wire.pings:
            ping, end = self._api.ping, self._wire.line_end
            pinged = f": ping{end}{end}".encode() if ping is None else encoded(ping, self._wire)
            block = pinged + block
        for chunk in chunks(block, self._wire):
            await self._reply.chunk(chunk)
            if self._wire.drip_seconds:
                await asyncio.sleep(self._wire.drip_seconds)
