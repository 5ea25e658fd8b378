"""The specification's examples are executed: what it shows is what is spoken."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from nplt_protocol import (
    PLAIN_REPLIES,
    PLAIN_REQUESTS,
    REPLY_CODES,
    REPLY_TYPES,
    SPEC_VERSION,
    ClientConnection,
    Dialect,
    ErrorCode,
    Frame,
    FrameDecoder,
    MessageType,
    RequestReceived,
    ServerConnection,
    WireLimits,
    decode_event,
    decode_plain_request,
    decode_reply,
    decode_request,
    dump_json,
    encode_event,
    encode_frame,
    encode_plain_request,
    encode_reply,
    encode_request,
    load_json,
)
from nplt_protocol.messages import EVENT_TYPES, REQUEST_TYPES, Prompt, Reply

SPEC = Path(__file__).parents[2] / "protocol" / "SPEC.md"
TEXT = SPEC.read_text(encoding="utf-8")
BLOCK = re.compile(r"^```hex (\w+) (client→server|server→client)( plain)?\n(.*?)^```$", re.M | re.S)
LIMITS = WireLimits()
RAW = {MessageType.PING, MessageType.PONG, MessageType.FILE_DATA}


@dataclass(frozen=True)
class Example:
    name: str
    to_server: bool
    plain: bool
    lines: tuple[str, ...]

    @property
    def data(self) -> bytes:
        return bytes.fromhex("".join(line for line in self.lines if line[0] != "#"))

    @property
    def frame(self) -> Frame:
        (frame,) = FrameDecoder().receive_data(self.data)
        return frame

    def marked(self, mark: str) -> list[str]:
        return [line.removeprefix(mark) for line in self.lines if line.startswith(mark)]


EXAMPLES = [
    Example(name, direction == "client→server", bool(plain), tuple(body.splitlines()))
    for name, direction, plain, body in BLOCK.findall(TEXT)
]


def chosen(*, to_server: bool, plain: bool) -> list[Example]:
    return [found for found in EXAMPLES if (found.to_server, found.plain) == (to_server, plain)]


def name_of(example: Example) -> str:
    return f"{example.name}-{example.frame.seq}"


def codes_in(examples: list[Example]) -> set[int]:
    return {example.frame.type for example in examples}


def test_every_hex_block_of_the_spec_is_an_example() -> None:
    assert len(EXAMPLES) == TEXT.count("```hex ") > 80


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_is_one_frame_of_its_type_and_prints_as_shown(
    example: Example,
) -> None:
    frame = example.frame
    assert MessageType[example.name] == frame.type
    assert encode_frame(*frame) == example.data
    assert example.marked("# ") == [str(frame)]
    for whole in example.marked("## "):
        assert whole == frame.payload.decode()


@pytest.mark.parametrize("example", chosen(to_server=True, plain=False), ids=name_of)
def test_a_structured_request_decodes_and_encodes_to_the_same_bytes(example: Example) -> None:
    frame = example.frame
    if frame.type == MessageType.PONG:
        return
    request = decode_request(frame.type, frame.payload, LIMITS)
    if frame.type == MessageType.CHAT_TEXT:
        assert request == Prompt(text=frame.payload.decode())
    else:
        assert encode_request(request, frame.seq) == example.data


@pytest.mark.parametrize("example", chosen(to_server=False, plain=False), ids=name_of)
def test_a_reply_or_event_decodes_and_encodes_to_the_same_bytes(example: Example) -> None:
    frame = example.frame
    code = MessageType(frame.type)
    if code is MessageType.PING:
        connection = ClientConnection()
        connection.send_hello()
        assert connection.receive_data(example.data) == []
    elif frame.seq == 0 or code is MessageType.ERROR:
        event = decode_event(frame.type, frame.payload)
        assert event is not None
        again = FrameDecoder().receive_data(encode_event(event))[0]
        assert (again.type, again.payload) == (frame.type, frame.payload)
    else:
        asked = MessageType.PING if code is MessageType.PONG else code
        reply = decode_reply(asked, frame.type, frame.payload)
        assert isinstance(reply, Reply)
        assert encode_reply(asked, frame.seq, reply) == example.data


@pytest.mark.parametrize("example", chosen(to_server=True, plain=True), ids=name_of)
def test_a_plain_request_is_received_by_a_fresh_server_connection(example: Example) -> None:
    connection, frame = ServerConnection(), example.frame
    received = connection.receive_data(example.data)
    assert connection.dialect is Dialect.PLAIN
    if frame.payload == b"HEARTBEAT":
        assert received == []
        return
    (item,) = received
    assert isinstance(item, RequestReceived)
    assert item.request == decode_plain_request(frame.type, frame.payload, LIMITS)
    if frame.type not in {*RAW, MessageType.CHAT_TEXT}:
        assert encode_plain_request(item.request, frame.seq) == example.data


@pytest.mark.parametrize("example", chosen(to_server=False, plain=True), ids=name_of)
def test_every_payload_for_a_plain_client_is_a_text_or_an_object(example: Example) -> None:
    frame = example.frame
    assert frame.type in PLAIN_REPLIES
    if frame.type == MessageType.CHAT_TEXT:
        assert frame.payload.decode().encode() == frame.payload
    else:
        assert dump_json(load_json(frame.payload, LIMITS)) == frame.payload


def test_every_message_type_has_an_example() -> None:
    assert codes_in(EXAMPLES) == set(MessageType)


def test_every_request_every_reply_and_every_event_has_an_example() -> None:
    structured_requests = {*REQUEST_TYPES, MessageType.CHAT_TEXT} - {MessageType.CLIENT_NOTE}
    assert structured_requests <= codes_in(chosen(to_server=True, plain=False))
    replies = {REPLY_CODES.get(code, code) for code in REPLY_TYPES}
    assert replies | set(EVENT_TYPES) <= codes_in(chosen(to_server=False, plain=False))
    assert codes_in(chosen(to_server=True, plain=True)) == PLAIN_REQUESTS
    assert codes_in(chosen(to_server=False, plain=True)) == PLAIN_REPLIES


def test_every_code_and_every_error_word_is_named_with_its_number() -> None:
    for code in MessageType:
        assert re.search(rf"0x{code:02X} {code.name}\b|0x{code:02X} \| {code.name}\b", TEXT) or (
            re.search(rf"{code.name} \(0x{code:02X}\)", TEXT)
        ), code
    for word in ErrorCode:
        assert re.search(rf"^\|[^|]*\b{word}\b[^|]*\|", TEXT, re.M), word


def test_every_field_of_every_request_is_described() -> None:
    for shape in REQUEST_TYPES.values():
        for name in shape.__struct_fields__:
            if name != "data":
                assert re.search(rf"\b{name}\b", TEXT), f"{shape.__name__}.{name}"


def test_the_specification_carries_its_version() -> None:
    assert TEXT.splitlines()[2].startswith(f"Specification {SPEC_VERSION}.")
