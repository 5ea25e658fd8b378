"""What can go wrong after a request was taken, one fault per request.

`after` is the number of events that still arrive as they should; the last one never
does. Where the answer is not streamed, the nearest thing happens: half a body, a body
that is no JSON.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """An error instead of an answer: 429, 500, 503, 529 …

    `retry_after` goes out as it is: seconds or a date.
    """

    status: int
    retry_after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HangUp:
    """The connection is closed before a byte of the answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    after: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Stall:
    """Never another byte, until `Emulator.release()`."""

    after: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """The error the vendor sends when it fails after it said 200.

    `failed`: responses only, told as `response.failed` instead of `error`.
    """

    after: int = 3
    failed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenJson:
    """The event is cut in its middle; the stream then ends as it should."""

    after: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEnd:
    """A clean end of the HTTP body without the events that end the answer;
    `stop_sent`: only the very last one is left out ([DONE], message_stop)."""

    stop_sent: bool = False


Fault = Status | HangUp | Cut | Stall | ErrorEvent | BrokenJson | NoEnd
