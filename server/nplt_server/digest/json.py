"""Digests JSON: keys in order, types, lengths, first values. Truncated JSON is digested too.

Only a bounded beginning of the text is parsed; brackets that are open at its end, or nested too
deeply, are closed. Numbers keep their digits. A shape is rendered with as much detail as fits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Final, TypeAlias

from msgspec import Struct, field

from nplt_server.digest.text import clean_text, counted, cut, cut_to_size, one_line, size_of

JSON_CHARACTERS_MAX: Final = 128 * 1024
JSON_DEPTH_MAX: Final = 40

_TOKEN: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},"]', re.DOTALL)
_CLOSERS: Final = {"[": "]", "{": "}"}
_HALF_AN_ESCAPE_MAX: Final = 6
_TROUBLE_KEYS: Final = ("error", "errors", "exception", "reason", "failure", "错误", "异常", "原因")
_TROUBLE: Final = re.compile(
    rf'"(?:{"|".join(_TROUBLE_KEYS)})"\s*:\s*\[?\s*(?:"[^"\\]{{1,200}}"|\{{[^{{}}]{{1,300}}\}})'
)
_TROUBLES_MAX: Final = 2


class NumberAsWritten(str):
    __slots__ = ()


JsonPart: TypeAlias = "dict[str, JsonPart] | list[JsonPart] | str | NumberAsWritten | bool | None"


def read_json(text: str) -> JsonShape | None:
    """Returns None if the text is no JSON object or list, or an empty one."""
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
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict | list) and value:
            troubles: dict[str, None] = {}
            has_any = any(f'"{key}' in head for key in _TROUBLE_KEYS)
            for trouble in _TROUBLE.finditer(head) if has_any else ():
                troubles[one_line(clean_text(trouble.group()))] = None
                if len(troubles) == _TROUBLES_MAX:
                    break
            return JsonShape(value=value, is_beginning=is_beginning, troubles=tuple(troubles))
    return None


def _closed(head: str, *, is_whole: bool) -> Iterator[tuple[str, bool]]:
    """Yields candidates for the text with its open brackets closed, the likeliest first."""
    if is_whole:
        yield head, False
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
            # The text ends inside a string, perhaps inside an escape sequence.
            for drop in range(_HALF_AN_ESCAPE_MAX):
                yield f'{head[: len(head) - drop]}"{"".join(reversed(to_close))}', True
            break
    yield head[:good_end] + "".join(closed_since) + "".join(reversed(to_close)), True


_NUMBER_CHARACTERS_MAX: Final = 40
_SAYS_WHAT_WENT_WRONG: Final = ("error", "errors", "message", "detail", "status", "reason")


class _Degree(Struct, frozen=True, kw_only=True):
    depth: int
    items: int
    keys: int
    string_characters: int


_DEGREES: Final = (
    _Degree(depth=5, items=12, keys=60, string_characters=400),
    _Degree(depth=5, items=5, keys=60, string_characters=200),
    _Degree(depth=4, items=3, keys=40, string_characters=120),
    _Degree(depth=3, items=2, keys=30, string_characters=80),
    _Degree(depth=2, items=1, keys=24, string_characters=60),
    _Degree(depth=1, items=1, keys=40, string_characters=32),
)
_DEGREES_OF_GIST: Final = (
    _Degree(depth=3, items=1, keys=24, string_characters=60),
    _Degree(depth=1, items=0, keys=24, string_characters=60),
)


class _Full(Exception):
    """There is no room for the next piece."""


class JsonShape(Struct, frozen=True, kw_only=True):
    value: dict[str, JsonPart] | list[JsonPart]
    is_beginning: bool
    troubles: tuple[str, ...] = ()

    def summary(self, size_max: int) -> str:
        return self._richest(_DEGREES, size_max, _Page.write_summary)

    def gist(self, size_max: int) -> str:
        return self._richest(_DEGREES_OF_GIST, size_max, _Page.write_gist)

    def _richest(
        self,
        degrees: tuple[_Degree, ...],
        size_max: int,
        write: Callable[[_Page, JsonShape], None],
    ) -> str:
        beginning = "beginning of a " if self.is_beginning else ""
        if isinstance(self.value, dict):
            label = f"[{beginning}JSON object, {counted(len(self.value), 'key')}]"
        else:
            label = f"[{beginning}JSON list of {len(self.value):,}]"
        text = ""
        for degree in degrees:
            page = _Page(degree=degree, size_left=size_max)
            try:
                page.write(label)
                write(page, self)
            except _Full:
                text = "".join(page.pieces)
            else:
                return "".join(page.pieces)
        return cut_to_size(text, size_max)


class _Page(Struct, kw_only=True):
    degree: _Degree
    size_left: int
    pieces: list[str] = field(default_factory=list)

    def write(self, piece: str) -> None:
        self.size_left -= size_of(piece)
        self.pieces.append(piece)
        if self.size_left < 0:
            raise _Full

    def write_summary(self, shape: JsonShape) -> None:
        """Writes one line for each key, or for each of the first items and the last one."""
        for trouble in shape.troubles:
            self.write(f"\n{trouble}")
        value, keys_max = shape.value, self.degree.keys
        if isinstance(value, dict):
            for key, part in list(value.items())[:keys_max]:
                self.write(f"\n{self._string(key)}: ")
                self._write_value(part, 1)
            if len(value) > keys_max:
                self.write(f"\n… {len(value) - keys_max:,} more keys")
            return
        shown = self.degree.items * (1 if isinstance(value[0], dict | list) else 4)
        for index, part in enumerate(value[:shown] + value[shown:][-1:]):
            if index == shown and len(value) > shown + 1:
                self.write(f"\n… {len(value) - shown - 1:,} more")
            self.write("\n- ")
            self._write_value(part, 1)

    def write_gist(self, shape: JsonShape) -> None:
        value, troubles = shape.value, shape.troubles
        if isinstance(value, dict):
            wrong = {key: value[key] for key in _SAYS_WHAT_WENT_WRONG if value.get(key)}
            for trouble in () if wrong else troubles:
                self.write(f" {trouble}")
            self.write(" ")
            self._write_value(wrong | value, 0)
        else:
            self.write(f" {troubles[0]}; first: " if troubles else " first: ")
            self._write_value(value[0], 0)

    def _write_value(self, value: JsonPart, depth: int) -> None:
        degree = self.degree
        match value:
            case dict() if depth >= degree.depth + 1 and value:
                self.write(f"{{{counted(len(value), 'key')}}}")
            case dict():
                self._write_object(value, depth)
            case list() if (depth >= degree.depth or not degree.items) and value:
                self.write(f"[list of {len(value):,}]")
            case list():
                is_cut = len(value) > degree.items
                self.write(f"[list of {len(value):,}: " if is_cut else "[")
                for index, part in enumerate(value[: degree.items]):
                    self.write(", " if index else "")
                    self._write_value(part, depth + 1)
                self.write(", …]" if is_cut else "]")
            case NumberAsWritten():
                self.write(cut(value, _NUMBER_CHARACTERS_MAX))
            case str():
                self.write(self._string(value))
            case bool() | None:
                self.write(json.dumps(value))

    def _write_object(self, value: dict[str, JsonPart], depth: int) -> None:
        for index, (key, part) in enumerate(value.items()):
            if index == self.degree.keys:
                self.write(f", … {len(value) - index:,} more keys")
                break
            self.write(f"{', ' if index else '{'}{self._string(key)}: ")
            self._write_value(part, depth + 1)
        self.write("}" if value else "{}")

    def _string(self, text: str) -> str:
        """Encodes a string as JSON, so that it stays in its line. Lone surrogates, which an escape
        can contain, are replaced."""
        most = self.degree.string_characters
        return json.dumps(cut(clean_text(text[: most + 1_000]), most), ensure_ascii=False)
