"""Requests of the plain dialect (version 2): text, small JSON, raw bytes.

They are read into the same values as structured requests. What version 2
says in band is known here and nowhere else: `HEARTBEAT` as a text, and
`/model NAME` as a prompt.
"""

from __future__ import annotations

import re

from nplt_protocol.codec import checked, too_large, unsupported
from nplt_protocol.codes import PLAIN_REQUESTS, MessageType
from nplt_protocol.errors import LocalProtocolError
from nplt_protocol.frames import encode_frame
from nplt_protocol.json_text import decode_text, dump_json, load_json
from nplt_protocol.limits import WireLimits
from nplt_protocol.requests import (
    REQUEST_TYPES,
    ClientNote,
    FileData,
    ModelSwitch,
    Prompt,
    Request,
)
from nplt_protocol.shapes import read, write

HEARTBEAT = b"HEARTBEAT"
"""The text that only says: I am alive. Never answered."""

_MODEL_COMMAND = re.compile(r"\s*/model\s+(\S+)\s*")
_CODES = {shape: code for code, shape in REQUEST_TYPES.items() if code in PLAIN_REQUESTS}


def decode_plain_request(type: int, payload: bytes, limits: WireLimits) -> Request:  # noqa: A002
    if type not in PLAIN_REQUESTS:
        raise unsupported(type)
    code = MessageType(type)
    if code is MessageType.FILE_DATA:
        return FileData(data=payload)
    if len(payload) > limits.message_bytes_max:
        raise too_large(limits)
    match code:
        case MessageType.CHAT_TEXT:
            text = decode_text(payload)
            command = _MODEL_COMMAND.fullmatch(text)
            return checked(ModelSwitch(model=command[1]) if command else Prompt(text=text))
        case MessageType.CLIENT_NOTE:
            data = load_json(payload, limits)
            if data.get("model") is not None:
                return checked(read(ModelSwitch, data))
            return read(ClientNote, data)
        case _:
            return checked(read(REQUEST_TYPES[code], load_json(payload, limits)))


def encode_plain_request(request: Request, seq: int) -> bytes:
    if isinstance(request, Prompt):
        text = request.text.encode()
        if text == HEARTBEAT or not text.strip():
            raise LocalProtocolError("this text has another meaning in the plain dialect")
        return encode_frame(MessageType.CHAT_TEXT, seq, text)
    code = _CODES.get(type(request))
    if code is None:
        raise LocalProtocolError(f"the plain dialect has no {type(request).__name__}")
    if isinstance(request, FileData):
        return encode_frame(code, seq, request.data)
    said = write(request, leave_out_defaults=True)
    return encode_frame(code, seq, dump_json(said) if said else b"")
