"""A frame as one line that a person can read.

A debug log of such lines is the transcript of a connection. The line is safe
to print anywhere: control and escape characters are shown, never sent, and a
HELLO's token is left out.
"""

from __future__ import annotations

import orjson

from nplt_protocol.codes import MORE, MessageType

PREVIEW_CHARS_MAX = 80
_NAMES = {int(code): code.name for code in MessageType}
_HEX_BYTES_MAX = 24


def describe_frame(type_code: int, seq: int, payload: bytes) -> str:
    """`PROMPT #7 {"text":"hello"} [16 bytes]`; `+` after the name: more follows."""
    code = type_code & ~MORE
    name = _NAMES.get(code, f"0x{code:02X}") + ("+" if type_code & MORE else "")
    preview = _without_token(payload) if code == MessageType.HELLO else _preview(payload)
    size = f"[{len(payload)} byte{'' if len(payload) == 1 else 's'}]"
    return " ".join(part for part in (name, f"#{seq}", preview, size) if part)


def _without_token(payload: bytes) -> str:
    try:
        greeting = orjson.loads(payload or b"{}")
    except orjson.JSONDecodeError:
        return "(not JSON)" if payload else ""
    if not isinstance(greeting, dict):
        return "(not an object)"
    if "token" in greeting:
        greeting["token"] = "…"
    return _preview(orjson.dumps(greeting)) if payload else ""


def _preview(payload: bytes) -> str:
    # A character takes at most four bytes: no need to decode a whole upload.
    head = payload[: 4 * (PREVIEW_CHARS_MAX + 1)]
    try:
        text = head.decode()
    except UnicodeDecodeError as error:
        cut_by_us = len(head) < len(payload) and error.start > len(head) - 4
        if not cut_by_us:
            return payload[:_HEX_BYTES_MAX].hex(" ") + (
                " …" if len(payload) > _HEX_BYTES_MAX else ""
            )
        text = head[: error.start].decode()
    shown = "".join(map(_printable, text[:PREVIEW_CHARS_MAX]))
    return shown + ("…" if len(text) > PREVIEW_CHARS_MAX else "")


def _printable(char: str) -> str:
    return char if char.isprintable() else char.encode("unicode_escape").decode()
