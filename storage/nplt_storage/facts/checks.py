"""What an entry must be like to be remembered, whatever stands around it.

`check_entry` is about writing: everything in the entry can be written as JSON
and read back the same. `check_metadata` is about manners: metadata is for
small remarks, anything large belongs in an attachment or an entry of its own.
Rules about what may follow what are the history's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from datetime import UTC, datetime
from typing import NamedTuple

import orjson

from nplt_storage.errors import BadEntry
from nplt_storage.facts.entries import (
    Entry,
    HistoryEntry,
    ModelInvocationDescriptor,
    OutputPart,
    SentContext,
    UnknownEntry,
)
from nplt_storage.facts.json_values import (
    JsonValue,
    check_integer,
    check_json,
    check_number,
    check_object,
    check_text,
)
from nplt_storage.facts.references import wrong_reference
from nplt_storage.facts.sections import LevelOfDetailSections
from nplt_storage.facts.tool_calls import BlobReference, ToolCallRequest, ToolCallResult

METADATA_BYTES_MAX = 2048
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
_CHOICES = {
    "model_output.state": ("completed", "interrupted", "failed"),
    "fault.state": ("interrupted", "failed"),
    "approval.state": ("asked", "allowed", "denied"),
    "model_output.parts.kind": ("text", "reasoning", "call", "opaque"),
    "result.status": ("success", "failed", "skipped"),
}

_CONTAINERS = (tuple, dict)

_Described = ModelInvocationDescriptor | SentContext | OutputPart | ToolCallRequest | BlobReference
_Part = HistoryEntry | ToolCallResult | _Described


class _Field(NamedTuple):
    name: str
    where: str
    """What to call it in a message."""
    declared: str
    """Its type, without `None`."""
    needed: bool


_FIELDS: dict[tuple[str, str], tuple[_Field, ...]] = {}


def check_entry(entry: Entry) -> None:
    """Raises `BadEntry` if the entry could not be written and read back the same."""
    _check_part(entry, entry.kind)
    if wrong := wrong_reference(entry):
        raise BadEntry(wrong)
    if isinstance(entry, UnknownEntry) and entry.redacted_at is not None:
        raise BadEntry(f"this version can't erase entries of kind {entry.kind!r}")


def check_metadata(metadata: Mapping[str, JsonValue]) -> None:
    check_object(metadata, "metadata")
    for name in metadata:
        if not _SNAKE_CASE.fullmatch(name):
            raise BadEntry(f"the metadata key {name!r} is not snake_case")
    if metadata and len(orjson.dumps(dict(metadata))) > METADATA_BYTES_MAX:
        raise BadEntry(f"metadata is larger than {METADATA_BYTES_MAX} bytes as JSON")


def check_time(value: datetime, where: str) -> None:
    if value.tzinfo is None:
        raise BadEntry(f"{where} has no time zone")
    try:
        value.astimezone(UTC)
    except (OverflowError, ValueError):
        raise BadEntry(f"{where} is out of range") from None


def _check_part(part: _Part, name: str) -> None:
    for field, where, declared, needed in _fields_of(part, name):
        value: object = getattr(part, field)
        if value is None:
            if needed:
                raise BadEntry(f"{where} is missing")
        elif declared == "str":
            if type(value) is not str or not value.isascii():
                check_text(value, where)
        elif declared == "int":
            check_integer(value, where)
        elif declared == "bool":
            if not isinstance(value, bool):
                raise BadEntry(f"{where} is neither true nor false")
        # Most of an entry's lists and objects are empty: nothing to look at.
        elif value or type(value) not in _CONTAINERS or where in _CHOICES:
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
        case ToolCallResult():
            _check_part(value, "result")
        case _ if isinstance(value, _Described):
            _check_part(value, where)
        case LevelOfDetailSections():
            _check_sections(value, where)
        case Mapping():
            check_object(value, where)
        case _:
            check_json(value, where)
    if where in _CHOICES and value not in _CHOICES[where]:
        raise BadEntry(f"{where} is {value!r}, not one of {', '.join(_CHOICES[where])}")


def _check_sections(sections: LevelOfDetailSections, where: str) -> None:
    for section in (*sections.live, *sections.summary, *sections.gist):
        if not isinstance(section, tuple) or len(section) != 2:
            raise BadEntry(f"{where} holds something that is not a name and a text")
        for text in section:
            check_text(text, where)


def _fields_of(part: _Part, name: str) -> tuple[_Field, ...]:
    key = (type(part).__name__, name)
    known = _FIELDS.get(key)
    if known is None:
        known = tuple(
            _Field(
                name=field.name,
                where=f"{name}.{field.name}",
                declared=str(field.type).removesuffix(" | None"),
                needed="None" not in str(field.type),
            )
            for field in fields(part)
        )
        if not isinstance(part, UnknownEntry):  # their names come from outside
            _FIELDS[key] = known
    return known
