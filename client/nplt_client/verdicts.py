"""Judgements on what was heard, and on what can't be said. Pure.

Both doors to the network (the asynchronous one and the blocking one of the
short commands) use these, so that a refusal reads the same everywhere.
"""

from __future__ import annotations

import os
import re

from nplt_client.errors import (
    CannotConnect,
    LimitExceeded,
    NpltError,
    ProtocolViolation,
    RequestRefused,
    error_from_report,
)
from nplt_client.settings import Address
from nplt_protocol.connection import (
    ConnectionRefused,
    ErrorReceived,
    EventReceived,
    Heard,
    ReplyReceived,
)
from nplt_protocol.errors import LocalProtocolError
from nplt_protocol.events import ErrorReport
from nplt_protocol.json_text import dump_json
from nplt_protocol.limits import WireLimits
from nplt_protocol.replies import Welcome
from nplt_protocol.requests import Hello, Request
from nplt_protocol.shapes import write

INCOMING = WireLimits(message_bytes_max=64 * 1024 * 1024, message_seconds_max=60.0)
"""What we put up with: a server may be set to longer messages, and a line may be slow."""


def welcome_in(item: Heard, hello: Hello) -> Welcome | None:
    """None: not yet. Whatever means that it will never come is raised."""
    match item:
        case ReplyReceived(reply=Welcome() as welcome):
            if welcome.version not in hello.versions:
                raise ProtocolViolation(
                    f"the server speaks version {welcome.version}, which was not offered to it"
                )
            return welcome
        case ErrorReceived(report=report) | EventReceived(event=ErrorReport() as report):
            error = error_from_report(report)
            # A refused HELLO is a refused connection, not a wrong usage.
            if isinstance(error, RequestRefused):
                raise CannotConnect(error.message, code=error.code, field=error.field)
            raise error
        case ConnectionRefused(reason=reason):
            raise ProtocolViolation(f"this is not an NPLT server: {reason}")
        case _:
            return None


def closed_before_welcome(address: Address, greeting: str | None) -> NpltError:
    if greeting:
        return CannotConnect(f"{address} closed the connection and said: {greeting}")
    return CannotConnect(f"{address} closed the connection without a word; is it an NPLT server?")


def cannot_connect(address: Address, error: OSError | UnicodeError) -> CannotConnect:
    reason = getattr(error, "strerror", None) or str(error)
    numbers = _numbers_in(str(error))
    if isinstance(error, TimeoutError):
        reason = "no answer in time"
    elif numbers:
        reason = "; ".join(dict.fromkeys(os.strerror(number) for number in numbers))
    refusal = CannotConnect(f"can't connect to {address}: {reason}")
    refusal.nobody_listens = isinstance(error, ConnectionRefusedError)
    return refusal


def _numbers_in(told: str) -> list[int]:
    """asyncio says what it called, of one address or of several, not what the system said."""
    return [int(number) for number in re.findall(r"\[Errno (\d+)\] Connect call failed", told)]


def cannot_send(request: Request, error: LocalProtocolError) -> NpltError:
    """Too long for this server, or nothing that could ever be sent?"""
    try:
        dump_json(write(request))
    except LocalProtocolError as unspeakable:
        return RequestRefused(str(unspeakable), code="malformed")
    return LimitExceeded(str(error), code="too_large")
