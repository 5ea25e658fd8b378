"""Responses are read the same however their bytes are cut, and as h11 reads them."""

from __future__ import annotations

from typing import NamedTuple

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.providers.http_response import BadResponse, ResponseReader

_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"
_PARTS = st.sampled_from(
    [
        _OK,
        b"HTTP/1.0 200 OK\r\n",
        b"HTTP/1.1 204\r\n",
        b"HTTP/1.1 304 Not Modified\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\n",
        b"HTTP/1.1 503 Not \xe4vailable\r\n",
        b"HTTP/1.1 99 No\r\n",
        b"Content-Type: text/plain; a=b\r\n",
        b"Content-Length: 4\r\n",
        b"Content-Length: 4, 4\r\n",
        b"content-length:0\r\n",
        b"Content-Length: 5x\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: Chunked\n",
        b"transfer-encoding: gzip\r\n",
        b"Connection: Keep-Alive, Close\r\n",
        b"X-Twice:  one \r\nx-twice: two\r\n",
        b"Folded: one\r\n  two\r\n",
        b"Name : value\r\n",
        b"no header\r\n",
        b"Nul: a\0b\r\n",
        b"Empty:\r\n",
        b"\r\n",
        b"\n",
        b"4\r\nwxyz\r\n",
        b"0003;name=value\r\nabc\r\n",
        b"2\r\nabc\r\n",
        b"2  \r\n\r\n\r\n",
        b"G\r\n",
        b"0\r\n\r\n",
        b"0\r\nTrailer: 1\r\n\r\n",
        b"wxyz",
    ]
)


_FRAMING = ("content-length", "transfer-encoding")
"""h11 changes the values of these headers."""


class _Outcome(NamedTuple):
    status: int | None = None
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    has_ended: bool = False
    keeps_connection: bool = False


def _shown(headers: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(each for each in headers.items() if each[0] not in _FRAMING))


def _read(*pieces: bytes) -> _Outcome | None:
    """`None`: that is no response."""
    reader, body = ResponseReader(), b""
    try:
        for piece in pieces:
            body += b"".join(reader.feed(piece))
    except BadResponse:
        return None
    if reader.head is None:
        return _Outcome()
    return _Outcome(
        status=reader.head.status,
        headers=_shown(reader.head.headers),
        body=body,
        has_ended=reader.has_ended,
        keeps_connection=reader.keeps_connection,
    )


def _read_by_h11(data: bytes) -> _Outcome | None:
    http = h11.Connection(h11.CLIENT)
    http.send(h11.Request(method="POST", target="/", headers=[("Host", "-")]))
    http.send(h11.EndOfMessage())
    http.receive_data(data)
    outcome, body, has_ended = _Outcome(), b"", False
    try:
        while not has_ended:
            event = http.next_event()
            if isinstance(event, h11.Response):
                headers: dict[str, str] = {}
                for name, value in ((n.decode(), v.decode("latin-1")) for n, v in event.headers):
                    headers[name] = f"{headers[name]}, {value}" if name in headers else value
                outcome = _Outcome(event.status_code, _shown(headers))
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                has_ended = True
            elif not isinstance(event, h11.InformationalResponse):
                break
    except h11.RemoteProtocolError:
        return None
    is_kept = has_ended and http.their_state is h11.DONE and not http.trailing_data[0]
    return outcome._replace(body=body, has_ended=has_ended, keeps_connection=is_kept)


@given(parts=st.lists(_PARTS, max_size=9), data=st.data())
def test_a_response_is_read_the_same_however_it_is_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    response = _OK + b"".join(parts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(response)), max_size=6)))
    pieces = [response[a:b] for a, b in zip([0, *cuts], [*cuts, len(response)], strict=True)]
    assert _read(*pieces) == _read(response)


_FIELDS = st.sampled_from(
    [
        b"Content-Type: text/plain; a=b\r\n",
        b"Connection: Close\r\n",
        b"Connection: keep-alive\n",
        b"X-Twice:  one \r\nx-twice: two\r\n",
        b"Empty:\r\n",
        b"Not-ASCII: \xe4\r\n",
    ]
)
_BODIES = st.sampled_from(
    [
        b"\r\n",
        b"\r\nwxyz",
        b"Content-Length: 4\r\n\r\nwxyz",
        b"Content-Length: 4\r\n\r\nwx",
        b"content-length:0\n\n",
        b"Transfer-Encoding: chunked\r\n\r\n",
        b"Transfer-Encoding: Chunked\r\n\r\n4\r\nwxyz\r\n0003;name=value\r\nabc\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n2\r\n\r\n\r\n0\r\nTrailer: 1\r\n\r\n",
        b"Transfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n1\r\na\r\n0\r\n\r\n",
    ]
)
_BEGINNINGS = st.sampled_from(
    [
        _OK,
        b"HTTP/1.1 204\r\n",
        b"HTTP/1.1 304 Not Modified\r\n",
        b"HTTP/1.1 100 Continue\r\nX: 1\r\n\r\nHTTP/1.1 200 OK\r\n",
        b"HTTP/1.1 503 Not \xe4vailable\r\n",
    ]
)


@given(begin=_BEGINNINGS, fields=st.lists(_FIELDS, max_size=3), body=_BODIES)
def test_a_response_is_read_as_h11_reads_it(begin: bytes, fields: list[bytes], body: bytes) -> None:
    response = begin + b"".join(fields) + body
    found = _read(response)
    assert found is not None
    assert found == _read_by_h11(response)


@pytest.mark.parametrize(
    ("field", "is_kept"), [(b"", False), (b"Connection: keep-alive\r\n", True)]
)
def test_a_server_of_http_1_0_keeps_a_connection_only_if_it_says_so(
    field: bytes, is_kept: bool
) -> None:
    found = _read(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n" + field + b"\r\n")
    assert found is not None
    assert found.keeps_connection is is_kept


def test_every_byte_may_come_alone() -> None:
    response = (
        b"HTTP/1.1 100 Continue\r\n\r\n" + _CHUNKED + b"3\r\none\r\nC;a=b\r\n\r\n5\r\nhello\r\n\r\n"
        b"0\r\nTrailer: 1\r\n\r\n"
    )
    found = _read(*(response[at : at + 1] for at in range(len(response))))
    assert found == _Outcome(200, (), b"one\r\n5\r\nhello\r\n", True, True)
    assert found == _read_by_h11(response)


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(_OK + b"\r\nwo") + reader.feed(b"rds") == [b"wo", b"rds"]
    assert not reader.has_ended
    reader.feed_end()
    assert (reader.has_ended, reader.keeps_connection) == (True, False)


def test_a_body_with_a_length_does_not_end_with_the_connection() -> None:
    reader = ResponseReader()
    assert reader.feed(_OK + b"Content-Length: 9\r\n\r\nhalf") == [b"half"]
    reader.feed_end()
    assert not reader.has_ended


def test_bytes_after_the_end_forbid_another_request() -> None:
    reader = ResponseReader()
    reader.feed(_CHUNKED + b"0\r\n\r\n")
    assert reader.keeps_connection
    reader.feed(b"more")
    assert not reader.keeps_connection


@pytest.mark.parametrize(("status", "has_ended"), [(200, True), (407, False)])
def test_a_tunnel_that_is_open_has_no_body(status: int, has_ended: bool) -> None:
    reader = ResponseReader(opens_tunnel=True)
    reader.feed(b"HTTP/1.1 %d X\r\nContent-Length: 2\r\n\r\n" % status)
    assert reader.has_ended is has_ended


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x16\x03\x01",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        _OK + b"Content-Length: 1" + b"0" * 20 + b"\r\n\r\n",
    ],
    ids=["SSH", "TLS", "another protocol", "a length of too many digits"],
)
def test_what_is_no_response_is_refused_at_once(response: bytes) -> None:
    assert _read(response) is None
