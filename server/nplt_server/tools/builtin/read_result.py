"""`read_result`: the parts of a tool's result that were too much to show at once.

Places are counted in bytes of UTF-8, for that is what a store can go to without
reading all that comes before. A place inside of a character means that
character's beginning; so parts that follow each other, however a model chooses
them, leave nothing out, and no part holds half a character.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from nplt_server.tools.base import Tool, ToolFailed, ToolHost
from nplt_server.tools.typed import typed_tool
from nplt_storage.facts.tool_calls import ToolCallResult

LENGTH_DEFAULT: Final = 16_000
LENGTH_MAX: Final = 24_000
"""Less than what is shown of a result at once, or this would have to be read again."""

_CHARACTER_BYTES_MAX: Final = 4
_LENGTH_MIN: Final = 16


def read_result_tool() -> Tool:
    return typed_tool(read_result)


async def read_result(
    host: ToolHost,
    tool_call_id: Annotated[str, Field(description="of the call whose result is to be read")],
    offset: Annotated[
        int | None,
        Field(
            ge=0,
            description="where to begin, in bytes of UTF-8 (not characters): the next offset "
            "that the last part named; left out: right after what was shown of the result",
        ),
    ] = None,
    length: Annotated[
        int,
        Field(ge=_LENGTH_MIN, le=LENGTH_MAX, description="how much at most, in bytes of UTF-8"),
    ] = LENGTH_DEFAULT,
) -> str:
    """Another part of an earlier tool result that was too long to be shown whole."""
    result = host.find_result(tool_call_id)
    if result is None:
        raise ToolFailed(f"this conversation has no result of a call {tool_call_id[:80]!r}")
    shown = result.result.encode()
    total = len(shown) if result.blob is None else result.blob.size
    if offset is None:
        offset = 0 if result.blob is None else len(shown)
    if offset >= total:
        raise ToolFailed(f"there is nothing at {offset}: the result has {total} bytes")
    begin = max(0, offset - (_CHARACTER_BYTES_MAX - 1))
    data = await _bytes(host, result, begin, offset + length + 1 - begin)
    first = begin + _character_start(data, offset - begin)
    last = min(total, begin + len(data))
    if last > offset + length:
        last = begin + _character_start(data, offset + length - begin)
    if last <= first:
        raise ToolFailed("the rest of this result is not there any more")
    text = data[first - begin : last - begin].decode(errors="replace")
    what_next = "the end" if last == total else f"next offset {last}"
    return f"[bytes {first} to {last} of {total}; {what_next}]\n{text}"


async def _bytes(host: ToolHost, result: ToolCallResult, offset: int, length: int) -> bytes:
    if result.blob is None:
        return result.result.encode()[offset : offset + length]
    return await host.read_blob(result.blob.blob_id, offset, length)


def _character_start(data: bytes, place: int) -> int:
    """The first byte of the character that the byte at this place belongs to."""
    while 0 < place < len(data) and data[place] & 0b1100_0000 == 0b1000_0000:
        place -= 1
    return place
