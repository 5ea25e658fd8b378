"""Objects with known fields of known kinds: what both vendors check first.

What a vendor says about a field that is wrong differs, so each brings its wording.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.vendors.rejections import Rejection

JsonObject = dict[str, Any]
Path = tuple[str | int, ...]


class Wording(Protocol):
    def missing(self, path: Path) -> Rejection: ...
    def unknown(self, path: Path) -> Rejection: ...
    def wrong_kind(self, path: Path, kinds: Sequence[str], value: object) -> Rejection: ...
    def not_one_of(self, path: Path, value: object, allowed: Sequence[str]) -> Rejection: ...
    def out_of_range(
        self, path: Path, value: float, *, least: float | None, most: float | None
    ) -> Rejection: ...
    def no_match(self, path: Path, pattern: str) -> Rejection: ...
    def too_long(self, path: Path, length: int, most: int) -> Rejection: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Names of fields, each with its kinds: `{"content": "string|array"}`."""

    required: Mapping[str, str] = field(default_factory=dict)
    optional: Mapping[str, str] = field(default_factory=dict)


def kind_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def check_kind(value: object, path: Path, kinds: str, say: Wording) -> None:
    allowed = kinds.split("|")
    kind = kind_of(value)
    if kind not in allowed and not (kind == "integer" and "number" in allowed):
        raise say.wrong_kind(path, allowed, value)


def check_shape(value: object, path: Path, shape: Shape, say: Wording) -> JsonObject:
    check_kind(value, path, "object", say)
    assert isinstance(value, dict)
    for name in value:
        if name not in shape.required and name not in shape.optional:
            raise say.unknown((*path, name))
    for name, kinds in shape.required.items():
        if name not in value:
            raise say.missing((*path, name))
        check_kind(value[name], (*path, name), kinds, say)
    for name, kinds in shape.optional.items():
        if name in value:
            check_kind(value[name], (*path, name), kinds, say)
    return value


def discriminator(value: object, path: Path, name: str, say: Wording) -> str:
    """The field that says what the other fields are."""
    check_kind(value, path, "object", say)
    assert isinstance(value, dict)
    if name not in value:
        raise say.missing((*path, name))
    check_kind(value[name], (*path, name), "string", say)
    return str(value[name])


def check_range(
    value: float | None,
    path: Path,
    say: Wording,
    *,
    least: float | None = None,
    most: float | None = None,
) -> None:
    if value is None:
        return
    if least is not None and value < least:
        raise say.out_of_range(path, value, least=least, most=None)
    if most is not None and value > most:
        raise say.out_of_range(path, value, least=None, most=most)


def check_choice(value: str, path: Path, allowed: Sequence[str], say: Wording) -> None:
    if value not in allowed:
        raise say.not_one_of(path, value, allowed)


def check_name(
    value: str, path: Path, pattern: str, say: Wording, *, most: int | None = None
) -> None:
    if most is not None and len(value) > most:
        raise say.too_long(path, len(value), most)
    if re.fullmatch(pattern.removeprefix("^").removesuffix("$"), value) is None:
        raise say.no_match(path, pattern)
