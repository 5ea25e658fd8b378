"""Reads the header of a GGUF file: the model's window, and what its template knows.

The format: github.com/ggml-org/ggml docs/gguf.md. The file is foreign: whatever is in it, what
is read is bounded, and a file that can't be read has no facts. llama.cpp reads it again, in a
process that may die of it.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct

_MAGIC: Final = b"GGUF"
_KEYS_MAX: Final = 10_000
_KEY_BYTES_MAX: Final = 65_535
"""docs/gguf.md: "It can be at most 2^16-1 bytes long.\""""
_ITEMS_MAX: Final = 4_000_000
"""The strings that are passed over; vocabularies have a few hundred thousand."""
_TEXT_BYTES_MAX: Final = 1024 * 1024
_STRING: Final = 8
_ARRAY: Final = 9
_SIZES: Final = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""The bytes of a value of each type but strings and arrays."""
_INTEGERS: Final = {4: "<I", 5: "<i", 10: "<Q", 11: "<q"}


class GgufFacts(Struct, frozen=True, kw_only=True):
    context_tokens: int | None = None
    """The window that the model was trained with."""
    takes_tools: bool = False
    """Whether its chat template has a place for tools."""


@cache
def facts_of(path: Path) -> GgufFacts:
    """The facts in the file's header; none if it is no such file."""
    window: int | None = None
    takes_tools = False
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            for key, value in _pairs(data):
                if key.endswith(".context_length") and isinstance(value, int):
                    window = value if value > 0 else None
                elif key.startswith("tokenizer.chat_template") and isinstance(value, str):
                    takes_tools = takes_tools or "tools" in value
    except (OSError, ValueError, struct.error):
        pass
    return GgufFacts(context_tokens=window, takes_tools=takes_tools)


def _pairs(data: mmap.mmap) -> Iterator[tuple[str, int | str | None]]:
    """The keys and values of the header, `None` for those of other types. Raises `ValueError` or
    `struct.error` where it can't be read."""
    if data[:4] != _MAGIC:
        raise ValueError("no GGUF")
    keys: int = struct.unpack_from("<Q", data, 16)[0]
    place = 24
    items = 0
    for _ in range(min(keys, _KEYS_MAX)):
        length: int = struct.unpack_from("<Q", data, place)[0]
        if length > _KEY_BYTES_MAX:
            raise ValueError("a key is too long")
        key = data[place + 8 : place + 8 + length].decode(errors="replace")
        place += 8 + length
        kind: int = struct.unpack_from("<I", data, place)[0]
        place += 4
        value: int | str | None = None
        if kind == _STRING:
            length = struct.unpack_from("<Q", data, place)[0]
            text = data[place + 8 : place + 8 + min(length, _TEXT_BYTES_MAX)]
            value = text.decode(errors="replace")
            place += 8 + length
        elif kind == _ARRAY:
            inner, count = struct.unpack_from("<IQ", data, place)
            place += 12
            if inner == _STRING:
                items += count
                if items > _ITEMS_MAX:
                    raise ValueError("too many strings")
                for _ in range(count):
                    place += 8 + struct.unpack_from("<Q", data, place)[0]
            else:
                place += count * _SIZES[inner] if inner in _SIZES else _refused(inner)
        else:
            if kind in _INTEGERS:
                value = struct.unpack_from(_INTEGERS[kind], data, place)[0]
            place += _SIZES[kind] if kind in _SIZES else _refused(kind)
        yield key, value


def _refused(kind: int) -> int:
    raise ValueError(f"a value of type {kind}")
