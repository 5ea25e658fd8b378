"""The beginning of a JSON text as a value, also where the text breaks off.

A bounded beginning is read. Brackets that are open at its end, or deeper than
anyone shows, are closed, so that what came before can be parsed. Numbers keep the
digits they were written with.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

JSON_CHARACTERS_MAX: Final = 128 * 1024
JSON_DEPTH_MAX: Final = 40

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},"]', re.DOTALL)
_CLOSERS: Final = {"[": "]", "{": "}"}
_HALF_AN_ESCAPE_MAX: Final = 6


class NumberAsWritten(str):
    __slots__ = ()


JsonPart: TypeAlias = "dict[str, JsonPart] | list[JsonPart] | str | NumberAsWritten | bool | None"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonRead:
    value: dict[str, JsonPart] | list[JsonPart]
    is_beginning: bool


def read_json(text: str) -> JsonRead | None:
    """None where it is no JSON object or list, or an empty one."""
    if not text[:1_000].lstrip().startswith(("{", "[")):
        return None
    head = text[:JSON_CHARACTERS_MAX]
    for closed, is_beginning in _closed(head, is_whole=len(head) == len(text)):
        try:
            value: JsonPart = json.loads(
                closed,
                parse_int=NumberAsWritten,
                parse_float=NumberAsWritten,
                parse_constant=NumberAsWritten,
            )
        except ValueError:
            continue
        if isinstance(value, dict | list) and value:
            return JsonRead(value=value, is_beginning=is_beginning)
    return None


def _closed(head: str, *, is_whole: bool) -> Iterator[tuple[str, bool]]:
    """The text with its open brackets closed, likeliest first."""
    to_close: list[str] = []
    good_end = 0
    closed_since: list[str] = []
    for token in _TOKEN.finditer(head):
        sign = token.group()
        if sign in _CLOSERS:
            if len(to_close) == JSON_DEPTH_MAX:
                break
            to_close.append(_CLOSERS[sign])
            good_end, closed_since = token.end(), []
        elif sign == ",":
            good_end, closed_since = token.start(), []
        elif sign in ("]", "}"):
            if not to_close or to_close.pop() != sign:
                return
            closed_since.append(sign)
        elif sign == '"':
            yield from _with_string_closed(head, "".join(reversed(to_close)))
            break
    else:
        if not to_close and is_whole:
            yield head, False
            return
    yield head[:good_end] + "".join(closed_since) + "".join(reversed(to_close)), True


def _with_string_closed(head: str, closers: str) -> Iterator[tuple[str, bool]]:
    """Where the text ends inside a string, perhaps inside an escape of it."""
    for drop in range(_HALF_AN_ESCAPE_MAX):
        yield f'{head[: len(head) - drop]}"{closers}', True
