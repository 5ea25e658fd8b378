"""Reading typed fields out of a JSON object.

One small reader, so that a codec reads like a list of its fields and every
surprise is the same error. The object comes from a file whose checksum is
right: `WrongShape` means "not as this version knows it", not "broken".
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar

from nplt_storage.facts.json_values import JsonObject

_Choice = TypeVar("_Choice", bound=str)


class WrongShape(Exception):
    pass


class Shape:
    __slots__ = ("_source",)

    def __init__(self, source: Mapping[str, Any]) -> None:
        self._source = source

    def text(self, name: str) -> str:
        value = self._source.get(name)
        if not isinstance(value, str):
            raise WrongShape(f"{name} is not text")
        return value

    def text_or_none(self, name: str) -> str | None:
        return None if self._source.get(name) is None else self.text(name)

    def integer(self, name: str) -> int:
        value = self._source.get(name)
        if not isinstance(value, int) or isinstance(value, bool):
            raise WrongShape(f"{name} is not an integer")
        return value

    def integer_or_zero(self, name: str) -> int:
        return 0 if self._source.get(name) is None else self.integer(name)

    def number(self, name: str) -> float:
        value = self._source.get(name)
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise WrongShape(f"{name} is not a number")
        return value

    def flag(self, name: str) -> bool:
        return self._source.get(name) is True

    def truth(self, name: str) -> bool:
        value = self._source.get(name)
        if not isinstance(value, bool):
            raise WrongShape(f"{name} is neither true nor false")
        return value

    def time(self, name: str) -> datetime:
        try:
            moment = datetime.fromisoformat(self.text(name))
            if moment.tzinfo is None:
                raise WrongShape(f"{name} has no time zone")
            return moment if moment.tzinfo is UTC else moment.astimezone(UTC)
        except (ValueError, OverflowError) as error:
            raise WrongShape(f"{name} is not a time") from error

    def object(self, name: str) -> JsonObject:
        value = self._source.get(name)
        if not isinstance(value, dict):
            raise WrongShape(f"{name} is not an object")
        return value

    def object_or_none(self, name: str) -> JsonObject | None:
        return None if self._source.get(name) is None else self.object(name)

    def one_of(self, name: str, choices: tuple[_Choice, ...]) -> _Choice:
        value = self.text(name)
        for choice in choices:
            if value == choice:
                return choice
        raise WrongShape(f"{name} is {value!r}")

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._source.get(name, [])
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise WrongShape(f"{name} is not a list of texts")
        return tuple(values)

    def ranges_or_none(self, name: str) -> tuple[tuple[int, int], ...] | None:
        values = self._source.get(name)
        if values is None:
            return None
        if not isinstance(values, list):
            raise WrongShape(f"{name} is not a list of ranges")
        return tuple(_range(value, name) for value in values)

    def named_numbers(self, name: str) -> tuple[tuple[str, int], ...]:
        values = self._source.get(name, [])
        if not isinstance(values, list):
            raise WrongShape(f"{name} is not a list of names and numbers")
        return tuple(_named_number(value, name) for value in values)

    def list_or_empty(self, name: str) -> list[Any]:
        values = self._source.get(name, [])
        if not isinstance(values, list):
            raise WrongShape(f"{name} is not a list")
        return values

    def members(self, name: str) -> list[Shape]:
        values = self._source.get(name)
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            raise WrongShape(f"{name} is not a list of objects")
        return [Shape(value) for value in values]


def _range(value: object, name: str) -> tuple[int, int]:
    match value:
        case [int(first), int(last)] if not isinstance(first, bool) and not isinstance(last, bool):
            return first, last
        case _:
            raise WrongShape(f"{name} holds something that is not a first and a last number")


def _named_number(value: object, name: str) -> tuple[str, int]:
    match value:
        case [str(one), int(number)] if not isinstance(number, bool):
            return one, number
        case _:
            raise WrongShape(f"{name} holds something that is not a name and a number")
