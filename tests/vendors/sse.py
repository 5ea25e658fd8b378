"""Server-sent events, written plainly or in all the ways the standard allows.

`Wire` holds what a client must bear without a fault being there: other line ends,
comments, pings, events and fields it has never heard of, any split of the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import orjson
from tests.vendors.fields import JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    line_end: Literal["\n", "\r\n", "\r"] = "\n"
    split_bytes: bool = False  # every byte in an HTTP chunk of its own
    drip_seconds: float = 0.0  # between two writes
    comments: bool = False
    pings: bool = False  # Anthropic's event; a comment with the others
    unknown_events: bool = False
    extra_fields: bool = False
    empty_choices: bool = False  # chat: a first chunk without choices, as Azure sends it
    late_usage: bool = False  # Anthropic: input tokens only in message_delta
    never_streams: bool = False  # a whole answer, whatever was asked for
    reasoning_field: str | None = None  # chat: `reasoning_content` of vLLM and DeepSeek


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """`end`: says that the model has stopped, or that the stream is done."""

    name: str | None = None
    data: JsonObject | str
    end: Literal["", "stop", "done"] = ""


def dressed(events: Sequence[Event], wire: Wire, *, stranger: Event) -> Iterator[Event]:
    """The same events among what the wire adds to them."""
    for number, event in enumerate(events):
        if wire.unknown_events and number > 0:
            yield stranger
        if wire.extra_fields and isinstance(event.data, dict):
            yield replace(event, data=_with_extras(event.data))
        else:
            yield event


def encoded(event: Event, wire: Wire) -> bytes:
    data = event.data if isinstance(event.data, str) else orjson.dumps(event.data).decode()
    lines = [f"data: {data}"] if event.name is None else [f"event: {event.name}", f"data: {data}"]
    if wire.comments:
        lines = [": a comment", "", *lines]
    return (wire.line_end.join([*lines, "", ""])).encode()


def chunks(block: bytes, wire: Wire) -> Iterator[bytes]:
    if not wire.split_bytes:
        yield block
        return
    for place in range(len(block)):
        yield block[place : place + 1]


def _with_extras(data: JsonObject) -> JsonObject:
    extended = {
        name: {**value, "never_heard_of": [1]} if isinstance(value, dict) and value else value
        for name, value in data.items()
    }
    return {**extended, "never_heard_of": {"by": "any client"}}
