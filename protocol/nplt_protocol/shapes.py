"""JSON objects to flat dataclasses and back, driven by the annotations.

The dataclasses of requests, replies and events are the schema: a field
without a default is needed, unknown keys are ignored, `null` means "not
said". Each class is compiled into a plan once. A field called `details`
stands for all the keys the class doesn't name: on the wire they lie beside
the others. What is wrong is said in a sentence that names the field.

Rules beyond types (lengths, ranges) are not known here; see `rules`.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from nplt_protocol.codes import ErrorCode
from nplt_protocol.errors import RequestError
from nplt_protocol.json_text import kind
from nplt_protocol.json_values import JsonObject, JsonValue

if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    from nplt_protocol.values import dataclass

T = TypeVar("T")

Reader: TypeAlias = "Callable[[Any, str], object]"
"""Takes a value and the path of its field; raises RequestError on a misfit."""

DETAILS = "details"
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldPlan:
    name: str
    read: Reader
    needed: bool
    default: object
    as_it_is: bool
    """Already JSON: neither a tuple nor a dataclass."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    fields: tuple[FieldPlan, ...]
    absent: dict[str, None]
    """May be left out on the wire, yet the class wants to hear of it."""
    nullable: frozenset[str]
    known: frozenset[str]
    has_details: bool


def read(cls: type[T], data: JsonObject, *, lenient: bool = False) -> T:
    """`lenient` takes words of an enumeration that this side doesn't know yet."""
    value: T = _read(data, "", cls=cls, lenient=lenient)
    return value


def write(value: object, *, leave_out_defaults: bool = False) -> JsonObject:
    """`None` is left out, except for the names in the class's `NULLABLE`."""
    cls: Any = type(value)
    plan = _plan(cls, False)
    data: JsonObject = {}
    for field in plan.fields:
        content = getattr(value, field.name)
        if content is None:
            if field.name in plan.nullable:
                data[field.name] = None
        elif not (leave_out_defaults and content == field.default):
            data[field.name] = content if field.as_it_is else _write_value(content)
    if plan.has_details:
        details: JsonObject = getattr(value, DETAILS) or {}
        for name, content in details.items():
            data.setdefault(name, content)  # a detail never takes the place of a field
    return data


def _write_value(value: Any) -> JsonValue:
    if isinstance(value, tuple):
        return [_write_value(item) for item in value]
    if is_dataclass(value):
        return write(value)
    return value  # type: ignore[no-any-return]


def _read(data: JsonObject, path: str, *, cls: Any, lenient: bool) -> Any:
    plan = _plan(cls, lenient)
    prefix = f"{path}." if path else ""
    arguments: dict[str, object] = {**plan.absent}
    for field in plan.fields:
        value = data.get(field.name)
        if value is not None:
            arguments[field.name] = field.read(value, prefix + field.name)
        elif field.needed:
            raise _misfit(prefix + field.name, "is needed")
    if plan.has_details:
        extra = {name: value for name, value in data.items() if name not in plan.known}
        if extra:
            arguments[DETAILS] = extra
    return cls(**arguments)


@cache
def _plan(cls: Any, lenient: bool) -> Plan:
    # JSON types are recursive; for a reader an object is an object.
    hints = get_type_hints(cls, localns={"JsonObject": dict})
    plans: list[FieldPlan] = []
    absent: dict[str, None] = {}
    for field in fields(cls):
        if field.name == DETAILS:
            continue
        hint, optional = _without_none(hints[field.name])
        default = field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if optional and default is MISSING:
            absent[field.name] = None
        plans.append(
            FieldPlan(
                name=field.name,
                read=_reader(hint, lenient),
                needed=not optional and default is MISSING,
                default=default,
                as_it_is=get_origin(hint) is not tuple and not is_dataclass(hint),
            )
        )
    return Plan(
        fields=tuple(plans),
        absent=absent,
        nullable=getattr(cls, "NULLABLE", frozenset()),
        known=frozenset(plan.name for plan in plans),
        has_details=len(plans) < len(fields(cls)),
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    (kept,) = [argument for argument in get_args(hint) if argument is not types.NoneType]
    return kept, True


def _reader(hint: Any, lenient: bool) -> Reader:
    origin = get_origin(hint)
    if origin is Literal:
        return _text if lenient else partial(_word, words=get_args(hint))
    if origin is tuple:
        return partial(_list, item=_reader(get_args(hint)[0], lenient))
    if is_dataclass(hint):
        return partial(_nested, cls=hint, lenient=lenient)
    return _READERS[hint]


def _text(value: object, path: str) -> str:
    if not isinstance(value, str):
        raise _wrong_kind(path, "text", value)
    return value


def _whole_number(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_kind(path, "a whole number", value)
    if abs(value) > _INT64_MAX:
        raise _misfit(path, "is too large a number")
    return value


def _number(value: object, path: str) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong_kind(path, "a number", value)
    return value


def _yes_or_no(value: object, path: str) -> bool:
    if not isinstance(value, bool):
        raise _wrong_kind(path, "true or false", value)
    return value


def _object(value: object, path: str) -> JsonObject:
    if not isinstance(value, dict):
        raise _wrong_kind(path, "an object", value)
    return value


def _nested(value: object, path: str, *, cls: Any, lenient: bool) -> object:
    return _read(_object(value, path), path, cls=cls, lenient=lenient)


def _list(value: object, path: str, *, item: Reader) -> tuple[object, ...]:
    if not isinstance(value, list):
        raise _wrong_kind(path, "a list", value)
    return tuple([item(entry, path) for entry in value])


def _word(value: object, path: str, *, words: tuple[str, ...]) -> str:
    if value not in words:
        choice = " or ".join(f'"{word}"' for word in words)
        raise _misfit(path, f"must be {choice}")
    return str(value)


_READERS: dict[object, Reader] = {
    str: _text,
    int: _whole_number,
    float: _number,
    bool: _yes_or_no,
    dict: _object,
}


def _wrong_kind(path: str, wanted: str, value: Any) -> RequestError:
    return _misfit(path, f"must be {wanted}, not {kind(value)}")


def _misfit(path: str, complaint: str) -> RequestError:
    return RequestError(ErrorCode.MALFORMED, f"`{path}` {complaint}.", field=path)
