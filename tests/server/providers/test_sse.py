"""Events come out of bytes the same, however these are cut and written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nplt_server.errors import ProviderUnavailable
from nplt_server.providers.sse import SseParser, json_object_of

_WORDS = st.text(alphabet="ab{}:é ", max_size=8)
_EVENTS = st.lists(st.tuples(st.sampled_from(["", "ping", "delta"]), _WORDS), max_size=6)


def _received(*chunks: bytes) -> list[bytes]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)]


def _written(events: list[tuple[str, str]], line_end: str) -> bytes:
    lines: list[str] = []
    for name, data in events:
        lines += [f"event: {name}"] if name else []
        lines += [f"data: {data}", ""]
    return "".join(line + line_end for line in lines).encode()


@given(events=_EVENTS, line_end=st.sampled_from(["\n", "\r\n", "\r"]), data=st.data())
def test_events_are_the_same_however_the_bytes_are_cut(
    events: list[tuple[str, str]], line_end: str, data: st.DataObject
) -> None:
    block = _written(events, line_end)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(block)), max_size=12)))
    pieces = [block[a:b] for a, b in zip([0, *cuts], [*cuts, len(block)], strict=True)]
    assert _received(*pieces) == [output.encode() for _, output in events]


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_every_byte_may_come_alone(line_end: str) -> None:
    block = _written([("delta", "één"), ("", "two")], line_end)
    assert _received(*(block[place : place + 1] for place in range(len(block)))) == [
        "één".encode(),
        b"two",
    ]


def test_line_ends_may_be_mixed() -> None:
    assert _received(b"data: a\r\ndata: b\rdata: c\n\r\n") == [b"a\nb\nc"]


def test_lines_of_data_are_one_event() -> None:
    assert _received(b'data: {"a":\ndata: 1}\n\n') == [b'{"a":\n1}']


def test_comments_ids_and_unknown_fields_are_passed_over() -> None:
    assert _received(b": ping\n\nid: 7\nretry: 10\nfoo: bar\ndata: x\n\n: bye\n\n") == [b"x"]


def test_only_one_space_behind_the_colon_is_not_data() -> None:
    assert _received(b"data:x\n\ndata:  x\n\ndata\n\n") == [b"x", b" x", b""]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert _received(b"\xef\xbb", b"\xbfdata: x\n\n") == [b"x"]


def test_a_name_alone_is_no_event() -> None:
    assert _received(b"event: a\n\ndata: x\n\n") == [b"x"]


def test_an_event_nothing_ends_is_never_given() -> None:
    assert _received(b"data: x\n") == []


@pytest.mark.parametrize("piece", [b"x" * 64, b"data: xxxxxxxx\n" * 4], ids=["line", "lines"])
def test_an_event_without_end_is_refused_before_it_fills_the_memory(piece: bytes) -> None:
    parser = SseParser(event_bytes_max=1024)
    for _ in range(1024 // len(piece)):
        parser.feed(piece)
    with pytest.raises(ProviderUnavailable):
        parser.feed(piece)


@pytest.mark.parametrize("piece", [b"data: x\n\ndata:", b"\ndata: x\n", b": ping\n"])
def test_many_small_things_are_not_one_too_large(piece: bytes) -> None:
    parser = SseParser(event_bytes_max=64)
    for _ in range(50):
        parser.feed(piece)
    assert [event[-1:] for event in parser.feed(b"\n\ndata: x\n\n")][-1] == b"x"


def test_half_an_emoji_is_read_and_what_is_no_object_is_not() -> None:
    assert json_object_of(b'{"a": "\\ud83d"}') == {"a": "\ud83d"}
    for data in (b"[1]", b'{"a": ', b'{"a":' * 5000):
        with pytest.raises(ValueError, match=r"not an object|Expecting|nested too deeply"):
            json_object_of(data)
