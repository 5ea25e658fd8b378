"""Frames: the header, the decoder, and how a frame reads in a log."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.protocol.splits import cut, cut_points

from nplt_protocol import (
    HEADER,
    MORE,
    Frame,
    FrameDecoder,
    LocalProtocolError,
    MessageType,
    RemoteProtocolError,
    encode_frame,
)

frames = st.builds(Frame, st.integers(0, 255), st.integers(0, 0xFFFF), st.binary(max_size=40))


def decode_in_pieces(pieces: list[bytes], frame_bytes_max: int = 65_535) -> list[Frame]:
    decoder = FrameDecoder(frame_bytes_max)
    return [frame for piece in pieces for frame in decoder.receive_data(piece)]


def test_a_frame_is_five_bytes_of_header_and_its_payload() -> None:
    assert encode_frame(0x07, 0x0102, b"ab") == b"\x07\x01\x02\x00\x02ab"


def test_a_payload_of_65535_bytes_fits_and_one_more_does_not() -> None:
    assert len(encode_frame(1, 1, bytes(65_535))) == 65_540
    with pytest.raises(LocalProtocolError, match="65,535"):
        encode_frame(1, 1, bytes(65_536))


@given(st.lists(frames, max_size=8), cut_points)
def test_frames_decode_the_same_however_the_bytes_are_split(
    sent: list[Frame], cuts: list[int]
) -> None:
    data = b"".join(encode_frame(*frame) for frame in sent)
    assert decode_in_pieces(cut(data, cuts)) == sent


def test_a_frame_split_at_every_byte_decodes_the_same() -> None:
    data = encode_frame(1, 2, b"hello") + encode_frame(3, 4) + encode_frame(5, 6, b"!")
    whole = decode_in_pieces([data])
    assert len(whole) == 3
    for at in range(len(data) + 1):
        assert decode_in_pieces([data[:at], data[at:]]) == whole
    assert decode_in_pieces([data[at : at + 1] for at in range(len(data))]) == whole


@given(st.binary(max_size=300), cut_points, st.integers(0, 50))
def test_any_bytes_split_anywhere_give_the_same_frames_and_the_same_error(
    data: bytes, cuts: list[int], frame_bytes_max: int
) -> None:
    whole, pieces = FrameDecoder(frame_bytes_max), FrameDecoder(frame_bytes_max)
    at_once = whole.receive_data(data)
    bit_by_bit = [frame for piece in cut(data, cuts) for frame in pieces.receive_data(piece)]
    assert at_once == bit_by_bit
    assert str(whole.error) == str(pieces.error)
    assert whole.pending_bytes == pieces.pending_bytes


@given(st.binary(max_size=300))
def test_the_decoder_buffers_only_an_unfinished_frame(data: bytes) -> None:
    decoder = FrameDecoder()
    decoded = decoder.receive_data(data)
    consumed = sum(HEADER.size + len(frame.payload) for frame in decoded)
    assert decoder.pending_bytes == len(data) - consumed


def test_a_header_that_announces_too_much_is_refused_before_its_payload_comes() -> None:
    decoder = FrameDecoder(100)
    assert decoder.receive_data(encode_frame(1, 1, bytes(100)) + HEADER.pack(1, 2, 101)) == [
        Frame(1, 1, bytes(100))
    ]
    assert isinstance(decoder.error, RemoteProtocolError)
    assert "101" in str(decoder.error)


def test_nothing_is_decoded_or_kept_after_a_refused_header() -> None:
    decoder = FrameDecoder(10)
    decoder.receive_data(HEADER.pack(1, 1, 11))
    assert decoder.receive_data(encode_frame(1, 2, b"x") * 1_000) == []
    assert decoder.pending_bytes == 0


def test_frame_bytes_max_can_be_raised_on_an_open_connection() -> None:
    decoder = FrameDecoder(4)
    decoder.receive_data(encode_frame(2, 1, b"four"))
    decoder.frame_bytes_max = 5
    assert decoder.receive_data(encode_frame(1, 2, b"fives")) == [Frame(1, 2, b"fives")]


def test_a_trickled_frame_needs_little_more_memory_than_its_size() -> None:
    data = encode_frame(1, 1, bytes(60_000))
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        for at in range(0, len(data) - 2, 2):
            decoder.receive_data(data[at : at + 2])
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decoder.pending_bytes == len(data) - 2 + len(data) % 2
    assert kept < 2 * len(data)


def test_a_trickled_frame_arrives_whole() -> None:
    data = encode_frame(1, 1, bytes(range(256)) * 200)
    assert decode_in_pieces([data[at : at + 1] for at in range(len(data))]) == [
        Frame(1, 1, bytes(range(256)) * 200)
    ]


@pytest.mark.parametrize(
    ("frame", "line"),
    [
        (Frame(0x07, 7, b'{"text":"hello"}'), 'PROMPT #7 {"text":"hello"} [16 bytes]'),
        (Frame(0x07 | MORE, 7, b"abc"), "PROMPT+ #7 abc [3 bytes]"),
        (Frame(0x7F, 0, b""), "0x7F #0 [0 bytes]"),
        (Frame(0x7F | MORE, 0, b"x"), "0x7F+ #0 x [1 byte]"),
        (Frame(0x04, 1, b"\xff\x00"), "PING #1 ff 00 [2 bytes]"),
        (Frame(0x01, 1, b"\x1b[31m\n"), "CHAT_TEXT #1 \\x1b[31m\\n [6 bytes]"),
        (Frame(0x01, 1, "\u202eabc".encode()), "CHAT_TEXT #1 \\u202eabc [6 bytes]"),
        (Frame(0x01, 1, b"x" * 100), f"CHAT_TEXT #1 {'x' * 80}… [100 bytes]"),
        (Frame(0x01, 1, "ü".encode() * 5_000), f"CHAT_TEXT #1 {'ü' * 80}… [10000 bytes]"),
        (Frame(0x0D, 1, b"\xfe" * 30), f"FILE_DATA #1 {'fe ' * 24}… [30 bytes]"),
    ],
)
def test_a_frame_prints_as_one_safe_line(frame: Frame, line: str) -> None:
    assert str(frame) == line


@given(frames)
def test_no_frame_prints_control_characters(frame: Frame) -> None:
    assert str(frame).isprintable()


@pytest.mark.parametrize("payload", [b'{"token":"hunter2"}', b'{"\\u0074oken":"hunter2"}'])
def test_the_token_of_a_hello_is_never_printed(payload: bytes) -> None:
    line = str(Frame(MessageType.HELLO, 1, payload))
    assert "hunter2" not in line
    assert "…" in line


def test_the_payload_of_a_malformed_hello_is_not_printed() -> None:
    assert str(Frame(0x02, 1, b'{"token":"hunter2"')) == "HELLO #1 (not JSON) [18 bytes]"
    assert str(Frame(0x02, 1, b'["hunter2"]')) == "HELLO #1 (not an object) [11 bytes]"
    assert str(Frame(0x02, 1, b"")) == "HELLO #1 [0 bytes]"
