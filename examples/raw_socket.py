"""A client without any library of ours: sockets and bytes, as one would write it in C.

    python examples/raw_socket.py 127.0.0.1 9999 "why is the sky blue?"

All there is to know is in protocol/SPEC.md: a frame is a type, a number and a
length in five bytes, then that many bytes, mostly JSON. A request carries a
number, its reply the same one; what the server says on its own carries 0.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys

HEADER = struct.Struct(">BHH")  # type, seq, length: big-endian, no padding
MORE_FOLLOWS = 0x80  # in the type: this message goes on in the next frame

HELLO, ERROR, PROMPT = 0x02, 0x03, 0x07
TEXT_DELTA, TOOL_STARTED, TURN_FINISHED = 0x21, 0x23, 0x25


def read_exactly(wire: socket.socket, size: int) -> bytes:
    """TCP gives bytes in whatever pieces it likes."""
    data = b""
    while len(data) < size:
        piece = wire.recv(size - len(data))
        if piece == b"":
            raise EOFError("the server closed the connection")
        data += piece
    return data


def read_message(wire: socket.socket) -> tuple[int, int, bytes]:
    """One whole message, from as many frames as it takes."""
    payload = b""
    while True:
        type_, seq, size = HEADER.unpack(read_exactly(wire, HEADER.size))
        payload += read_exactly(wire, size)
        if not type_ & MORE_FOLLOWS:
            return type_, seq, payload


def send_message(wire: socket.socket, type_: int, seq: int, fields: dict[str, object]) -> None:
    payload = json.dumps(fields).encode()
    while len(payload) > 0xFFFF:
        wire.sendall(HEADER.pack(type_ | MORE_FOLLOWS, seq, 0xFFFF) + payload[:0xFFFF])
        payload = payload[0xFFFF:]
    wire.sendall(HEADER.pack(type_, seq, len(payload)) + payload)


def main(host: str, port: str, text: str) -> int:
    wire = socket.create_connection((host, int(port)))
    hello: dict[str, object] = {"versions": [3], "client": "raw_socket/1"}
    if token := os.environ.get("NPLT_TOKEN"):
        hello["token"] = token
    send_message(wire, HELLO, 1, hello)
    while True:
        type_, seq, payload = read_message(wire)
        if type_ in (HELLO, ERROR) and seq == 1:  # what comes before is a greeting for people
            break
    if type_ == ERROR:
        print(json.loads(payload)["message"], file=sys.stderr)
        return 4

    send_message(wire, PROMPT, 2, {"text": text})
    turn_id = None
    while True:
        type_, seq, payload = read_message(wire)
        if type_ == ERROR and seq == 2:
            print(json.loads(payload)["message"], file=sys.stderr)
            return 2
        if type_ == PROMPT and seq == 2:  # the receipt: it is on disk from here on
            turn_id = json.loads(payload)["turn_id"]
        elif type_ in (TEXT_DELTA, TOOL_STARTED, TURN_FINISHED):
            event = json.loads(payload)
            if event["turn_id"] != turn_id:  # others may talk in the same conversation
                continue
            if type_ == TEXT_DELTA:
                print(event["text"], end="", flush=True)
            elif type_ == TOOL_STARTED:
                print(f"[{event['tool_name']}]", file=sys.stderr)
            else:
                print()
                return 0 if event["state"] == "completed" else 6


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:4]))
