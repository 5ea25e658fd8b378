"""Reads one response of HTTP/1.1 from the bytes of its connection, with httptools. No I/O.

Interim heads (1xx), the extensions of chunks and trailers are skipped. What is not HTTP raises
`BadResponse`, except where servers are known to be careless: lines without a carriage return, and a
length beside a chunked body, which is ignored as the RFC says. Sizes are limited by the caller.

httptools parses in C: a short response takes a tenth of the CPU time that h11 needs for it.

https://www.rfc-editor.org/rfc/rfc9112.html
"""

from __future__ import annotations

from typing import Final

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser
from msgspec import Struct

_OK, _NO_CONTENT, _REDIRECTS, _NOT_MODIFIED = 200, 204, 300, 304
_FRAMED: Final = ("content-length", "transfer-encoding")
"""A body without these headers ends with the connection."""


class BadResponse(Exception):
    """The bytes are no response."""


class ResponseHead(Struct, frozen=True):
    status: int
    headers: dict[str, str]
    """Names are in lower case. Values of the same name are joined with commas."""


class ResponseReader:
    """Reads the response to one request. The methods `on_…` are called by the parser."""

    def __init__(self, *, opens_tunnel: bool = False) -> None:
        """`opens_tunnel`: the method of the request is `CONNECT`."""
        self.head: ResponseHead | None = None
        self.has_ended = False
        self.keeps_connection = False
        """Whether another request can be sent on the same connection."""
        self._opens_tunnel = opens_tunnel
        self._ends_with_connection = False
        self._headers: dict[str, str] = {}
        self._pieces: list[bytes] = []
        self._parser = HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_optional_cr_before_lf=True, lenient_chunked_length=True
        )

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the pieces of the body in these bytes. Raises `BadResponse`."""
        self._pieces = []
        if self.has_ended:
            self.keeps_connection = False  # nothing was asked
            return self._pieces
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade:
            raise BadResponse("it changes to another protocol") from None
        except HttpParserError as error:
            if not self.has_ended:  # else the error is in what follows the response
                raise BadResponse(str(error)) from None
            self.keeps_connection = False
        return self._pieces

    def feed_end(self) -> None:
        """The server sends no more on this connection."""
        if self._ends_with_connection:
            self.has_ended = True

    def on_message_begin(self) -> None:
        self._headers = {}
        if self.has_ended:
            self.keeps_connection = False

    def on_header(self, name: bytes, value: bytes) -> None:
        known, text = name.decode("ascii").lower(), value.decode("latin-1").rstrip()
        before = self._headers.get(known)
        self._headers[known] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < _OK or self.head is not None:
            return
        headers, self._headers = self._headers, {}  # what comes after this are trailers
        self.head = ResponseHead(status, headers)
        if self._opens_tunnel and status < _REDIRECTS:
            self.has_ended = True
        elif status not in (_NO_CONTENT, _NOT_MODIFIED):
            self._ends_with_connection = all(name not in headers for name in _FRAMED)

    def on_body(self, body: bytes) -> None:
        if not self.has_ended:
            self._pieces.append(body)

    def on_message_complete(self) -> None:
        if self.head is not None and not self.has_ended:
            self.has_ended = True
            self.keeps_connection = self._parser.should_keep_alive()
