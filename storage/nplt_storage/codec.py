"""Encodes an entry as one line of a conversation's file, and decodes it.

    {"seq":N,"id":"…","kind":"…",…,"crc":"9ae0daaf"}

The checksum (CRC-32, eight hexadecimal digits) covers the object's bytes before
`,"crc"`. The comma between two lines and the newline belong to the file, not to
the line. A line contains no raw newline: JSON escapes it. storage/FORMAT.md says
what the fields mean.

A line is decoded straight into its Struct. Where the file's layout differs from
the type, the functions under "Layout" translate. A kind, or a shape of a known
kind, that this version does not know becomes an `UnknownEntry` with every field;
unknown fields of a known kind are ignored.

An entry is checked when it is encoded, and only then: what would be read back
different by any JSON reader (NaN, integers beyond 64 bits, lone surrogates,
tuples) is refused with `BadEntry`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from types import UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin
from zlib import crc32

import orjson
from msgspec import Struct, to_builtins
from msgspec.json import Decoder
from msgspec.structs import fields, replace

from nplt_storage.entries import (
    UNSTAMPED,
    Entry,
    LevelOfDetailSections,
    ModelInputEntry,
    ModelOutputEntry,
    Moment,
    Sections,
    ToolCallResult,
    ToolResultsEntry,
    UnknownEntry,
    wrong_reference,
)
from nplt_storage.errors import BadEntry
from nplt_storage.json_values import (
    DEPTH_MAX,
    JsonObject,
    check_integer,
    check_json,
    check_number,
    check_object,
    check_text,
)

_CRC_BYTES: Final = len(b',"crc":"00000000"}')
_HEAD = re.compile(rb'\{"seq":([1-9][0-9]{0,18}),"id":"')
_KIND = re.compile(rb'\{"seq":[0-9]+,"id":"(?:[^"\\]|\\.)*","kind":"((?:[^"\\]|\\.)*)"')
_KNOWN: Final = tuple(kind for kind in get_args(Entry) if kind is not UnknownEntry)

KNOWN_KINDS: Final = frozenset(kind.kind for kind in _KNOWN)


class BadLine(Exception):
    """The bytes are not a line as it was written."""


class _SharedFields(Struct):
    """The fields that lines of every kind have."""

    seq: int
    id: str
    kind: str
    timestamp: Moment
    metadata: dict[str, Any]
    turn_id: str | None = None


_DECODER: Final = Decoder[Any](Union[_KNOWN])  # noqa: UP007
_SHARED_DECODER: Final = Decoder(_SharedFields)
_NOT_READ: Final = (ValueError, RecursionError)
"""The errors the decoders raise. `DecodeError` alone is not enough: invalid UTF-8 raises a
different one."""


# ------------------------------------------------------------------------------
# Lines

LINE_BYTES_MAX: Final = 64 * 1024 * 1024
"""No longer line is written, so the search for the end of a line can stop here."""


def encode_line(entry: Entry) -> bytes:
    """Encodes an entry. Raises `BadEntry` for one that could not be read back unchanged."""
    if entry.seq < 1 or not entry.id or entry.timestamp == UNSTAMPED:
        raise BadEntry("an entry gets its number, id and time before it is written")
    try:
        body = encode_entry(entry)[:-1]
        if len(body) + _CRC_BYTES > LINE_BYTES_MAX:
            raise BadEntry(f"an entry has at most {LINE_BYTES_MAX >> 20} MiB")
        line = body + crc_suffix(body)
        # Reading it back is the quickest check; `check_entry` has the last word, and
        # alone knows how deep JSON may be nested.
        containers = body.count(b"{") + body.count(b"[")
        if containers <= DEPTH_MAX and decode_verified(line) == entry:
            return line
    except (TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        check_entry(entry)
        raise BadEntry(f"this entry can't be written as JSON: {error}") from error
    check_entry(entry)
    return line


def decode_line(line: bytes) -> Entry:
    verify_line(line)
    return decode_verified(line)


def decode_verified(line: bytes) -> Entry:
    """Decodes a line that `verify_line` has already accepted."""
    try:
        entry: Entry = _DECODER.decode(line)
    except _NOT_READ:
        return _decode_unknown(line)
    if entry.timestamp is UNSTAMPED or not entry.id:
        return _decode_unknown(line)
    match entry:
        case ModelInputEntry() | ModelOutputEntry() | ToolResultsEntry():
            return _from_layout(entry, line)
        case _:
            return _decode_unknown(line) if wrong_reference(entry) else entry


def _decode_unknown(line: bytes) -> UnknownEntry:
    try:
        shared = _SHARED_DECODER.decode(line)
        source = orjson.loads(line)
        timestamp = shared.timestamp.astimezone(UTC)
    except (*_NOT_READ, OverflowError) as error:
        raise BadLine(str(error)) from error
    for name in (*_SharedFields.__struct_fields__, "crc"):
        source.pop(name, None)
    return UnknownEntry(
        seq=shared.seq,
        id=shared.id,
        kind=shared.kind,
        timestamp=timestamp,
        turn_id=shared.turn_id,
        metadata=shared.metadata,
        fields=source,
    )


def verify_line(line: bytes) -> int:
    """The line's number, if every byte is as it was written."""
    body = memoryview(line)[:-_CRC_BYTES]
    if line[-_CRC_BYTES:] != crc_suffix(body):
        raise BadLine("the checksum does not fit")
    return peek_seq(line)


def peek_seq(line: bytes) -> int:
    """The number at the start of a line, whose rest may be missing or wrong."""
    head = _HEAD.match(line)
    if head is None:
        raise BadLine("a line does not begin with its number")
    return int(head[1])


def peek_kind(line: bytes) -> str:
    """The kind of a verified line, without reading the rest of it."""
    head = _KIND.match(line)
    if head is None:
        raise BadLine("a line does not say its kind")
    try:
        return str(orjson.loads(b'"%b"' % head[1]))
    except orjson.JSONDecodeError as error:
        raise BadLine(str(error)) from error


def crc_suffix(body: bytes | memoryview) -> bytes:
    return b',"crc":"%08x"}' % crc32(body)


# ------------------------------------------------------------------------------
# Layout: where a line differs from the type
#
# Every line carries `role content timestamp tool_calls metadata`, and every tool
# call in it `tool_name arguments result status duration timestamp`, so that
# programs which only know chat messages can read the file. A section that repeats
# the text beside it is written as its name alone, so that no long text is stored
# twice.


def encode_entry(entry: Entry) -> bytes:
    """The line's object without `crc`."""
    return orjson.dumps(_as_object(entry))


def entry_as_json(entry: Entry) -> JsonObject:
    """The same as new lists and objects."""
    source: JsonObject = orjson.loads(encode_entry(entry))
    return source


def time_as_text(moment: datetime) -> str:
    return _utc_as_text(moment if moment.tzinfo is UTC else moment.astimezone(UTC))


@lru_cache(maxsize=256)
def _utc_as_text(moment: datetime) -> str:
    """Formats a time. Cached, because an entry's time is written to its line, the closing line and
    its event."""
    return moment.isoformat(timespec="microseconds")


def _as_object(entry: Entry) -> dict[str, Any]:
    at = time_as_text(entry.timestamp)
    line: dict[str, Any] = {"seq": entry.seq, "id": entry.id, "kind": entry.kind}
    if entry.turn_id is not None:
        line["turn_id"] = entry.turn_id
    if isinstance(entry, UnknownEntry):
        own = dict(entry.fields)
        five = {name: own.pop(name) for name in ("role", "content") if name in own}
        line |= five | {"timestamp": at}
        if "tool_calls" in own:
            line["tool_calls"] = own.pop("tool_calls")
        return line | {"metadata": dict(entry.metadata)} | own
    own = to_builtins(entry, builtin_types=(datetime,), enc_hook=dict)
    line["role"] = entry.role
    line["content"] = own.get("content", "")
    line["timestamp"] = own["timestamp"] = at
    line["tool_calls"] = own.get("tool_calls", [])
    line["metadata"] = own.get("metadata", {})
    if entry.redacted_at is not None:
        line["redacted_at"] = own["redacted_at"] = time_as_text(entry.redacted_at)
    match entry:
        case ModelOutputEntry():
            own["tool_calls"] = [_asked(call, at) for call in own.get("tool_calls", ())]
            if entry.parts:
                own["parts"] = [part if part[2] is not None else part[:2] for part in own["parts"]]
        case ToolResultsEntry():
            own["tool_calls"] = [_result_layout(result) for result in own["tool_calls"]]
        case _ if "expires_at" in own:
            own["expires_at"] = time_as_text(own["expires_at"])
        case _:
            pass
    if "sections" in own:
        own["sections"] = _short_sections(own["sections"], own["content"])
    line.update(own)
    return line


def _asked(call: dict[str, Any], at: str) -> dict[str, Any]:
    unparsed = {"unparsed": True} if call["arguments"] is None else {}
    return {
        "tool_name": call.pop("tool_name"),
        "arguments": call.pop("arguments") or {},
        "result": "",
        "status": "pending",
        "duration": 0.0,
        "timestamp": at,
        "tool_call_id": call.pop("tool_call_id"),
        "raw_arguments": call.pop("raw_arguments"),
        **unparsed,
        **call,
    }


def _result_layout(result: dict[str, Any]) -> dict[str, Any]:
    result["timestamp"] = time_as_text(result["timestamp"])
    if "sections" in result:
        result["sections"] = _short_sections(result["sections"], result["result"])
    return {"tool_name": result.pop("tool_name"), "arguments": {}, **result}


def _short_sections(sections: dict[str, Any], content: str) -> dict[str, Any]:
    return {
        level: [[name] if text == content else [name, text] for name, text in named]
        for level, named in sections.items()
    }


def _from_layout(
    entry: ModelInputEntry | ModelOutputEntry | ToolResultsEntry, line: bytes
) -> Entry:
    try:
        if isinstance(entry, ToolResultsEntry):
            if all(result.sections is None for result in entry.results):
                return entry
            results = (
                replace(result, sections=_whole_sections(result.sections, result.result))
                for result in entry.results
            )
            return replace(entry, results=tuple(results))
        if entry.sections is not None:
            entry = replace(entry, sections=_whole_sections(entry.sections, entry.content))
    except ValueError:
        return _decode_unknown(line)
    if isinstance(entry, ModelOutputEntry) and entry.tool_calls and b'"unparsed":true' in line:
        sources = orjson.loads(line)["tool_calls"]
        calls = (
            replace(call, arguments=None) if source.get("unparsed") is True else call
            for call, source in zip(entry.tool_calls, sources, strict=True)
        )
        return replace(entry, tool_calls=tuple(calls))
    return entry


def _whole_sections(
    sections: LevelOfDetailSections | None, content: str
) -> LevelOfDetailSections | None:
    """Raises `ValueError` for a section that is not a name and perhaps a text."""

    def whole(level: Iterable[tuple[str, ...]]) -> Sections:
        pairs = (section if len(section) == 2 else (*section, content) for section in level)
        return tuple((name, text) for name, text in pairs)

    return sections and LevelOfDetailSections(
        live=whole(sections.live), summary=whole(sections.summary), gist=whole(sections.gist)
    )


# ------------------------------------------------------------------------------
# Checks


def check_entry(entry: Entry) -> None:
    """Raises `BadEntry` if the entry could not be written and read back the same."""
    _check_part(entry, entry.kind)
    if wrong := wrong_reference(entry):
        raise BadEntry(wrong)
    if isinstance(entry, UnknownEntry) and entry.redacted_at is not None:
        raise BadEntry(f"this version can't erase entries of kind {entry.kind!r}")


def check_time(value: datetime, where: str) -> None:
    if value.tzinfo is None:
        raise BadEntry(f"{where} has no time zone")
    try:
        value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise BadEntry(f"{where} is out of range") from None


def _check_part(part: Struct, name: str) -> None:
    for field, types in _declared(type(part)):
        value: object = getattr(part, field)
        where = f"{name}.{field}"
        declared = types[0] if types[1:] in ((), (type(None),)) else None
        if value is None:
            if type(None) not in types:
                raise BadEntry(f"{where} is missing")
        elif declared is str:
            check_text(value, where)
        elif declared is int:
            check_integer(value, where)
        elif declared is bool:
            if not isinstance(value, bool):
                raise BadEntry(f"{where} is neither true nor false")
        elif get_origin(declared) is Literal:
            if value not in get_args(declared):
                choices = ", ".join(get_args(declared))
                raise BadEntry(f"{where} is {value!r}, not one of {choices}")
        else:
            _check_value(value, where)


def _check_value(value: object, where: str) -> None:
    match value:
        case str():
            check_text(value, where)
        case int() | float():
            check_number(value, where)
        case datetime():
            check_time(value, where)
        case tuple():
            for item in value:
                _check_value(item, where)
        case LevelOfDetailSections():
            for section in (*value.live, *value.summary, *value.gist):
                if not isinstance(section, tuple) or len(section) != 2:
                    raise BadEntry(f"{where} holds something that is not a name and a text")
                for text in section:
                    check_text(text, where)
        case Struct():
            _check_part(value, "result" if isinstance(value, ToolCallResult) else where)
        case Mapping():
            check_object(value, where)
        case _:
            check_json(value, where)


@lru_cache(maxsize=256)
def _declared(kind: type[Struct]) -> list[tuple[str, tuple[Any, ...]]]:
    """The name of each field, and the types it may have."""
    unions = (Union, UnionType)
    return [
        (field.name, get_args(field.type) if get_origin(field.type) in unions else (field.type,))
        for field in fields(kind)
    ]
