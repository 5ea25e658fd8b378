"""Reads a JSON document of any length, with a list of messages in it, piece by piece.

One call that parses a whole document keeps all other threads waiting until it returns, and
holds all of it in memory. So the text is decoded a window at a time, and the values in the list
of messages are parsed one by one. A value that is longer than the window is parsed again with
twice as much text. The document is read twice: first all of it is checked, then it is read again
while the caller takes the messages.

Values that JSON readers do not agree on are replaced: NaN and infinities by null, lone
surrogates by the replacement character, integers beyond 64 bits by their text. (`ijson` refuses
documents with NaN, and does not give the text of a value as it was written.)
"""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from nplt_storage.file_system import Read
from nplt_storage.json_values import INTEGER_MAX, INTEGER_MIN

WINDOW_BYTES: Final = 256 * 1024
_NUMBER_GOES_ON_LETTERS: Final = 2
"""A number that is cut may look complete (`1` of `1e+5`), so a value is accepted only if more
characters than this follow it in the window."""
_LONGEST_CUT_LETTERS: Final = 20
_VALUE_LETTERS_MAX: Final = 32 * 1024 * 1024
"""A longer value is not a message; a file that is not a JSON document may go on for gigabytes."""
_REST_BYTES_MAX: Final = 16 * 1024 * 1024
_SPACE: Final = re.compile(r"[ \t\n\r]*")
_WITHIN: Final = frozenset(bytes([value]) for value in range(0x80, 0xC0))
"""The continuation bytes of UTF-8."""
_INTEGER_LETTERS_MAX: Final = 20
"""Longer integers exceed 64 bits, and Python refuses to parse thousands of digits."""


OUR_KEYS: Final = frozenset(["format", "crc", "head_seq", "epoch_offset"])
"""The names by which a document of ours is recognized, also if another program reformatted it."""


class NotForeign(Exception):
    """The document can't be imported; the caller leaves the file alone."""


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _INTEGER_LETTERS_MAX else text


def _let_others_run(found: dict[str, Any]) -> dict[str, Any]:
    """Parsing a value in one call blocks all other threads; calling a Python function now and then
    lets them run."""
    return found


_PARSER: Final = json.JSONDecoder(parse_int=_integer, object_hook=_let_others_run)


class FileBytes:
    """The bytes of a file, read only as needed."""

    def __init__(self, read: Read, size: int) -> None:
        self._read = read
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        return self._read(start, max(stop - start, 0))


class _Text:
    """The text of a document from the byte `start` on. Raises `ValueError` for invalid JSON or
    UTF-8."""

    def __init__(self, data: FileBytes | bytes, start: int, window_bytes: int) -> None:
        self._data = data
        self._window_bytes = window_bytes
        self._end = start
        """The end of the window, in bytes."""
        self._window = ""
        self._at = 0
        self.last = ""
        """The text of the last value."""

    @property
    def offset(self) -> int:
        """The offset of the next character, in bytes."""
        return self._end - len(self._window[self._at :].encode())

    def next(self) -> str:
        """The next character that is not a space; empty at the end."""
        while True:
            space = _SPACE.match(self._window, self._at)
            assert space is not None
            self._at = space.end()
            if self._at < len(self._window) or not self._more():
                return self._window[self._at : self._at + 1]

    def take(self, letters: str) -> str:
        letter = self.next()
        if not letter or letter not in letters:
            raise ValueError(f"none of {letters} is there")
        self._at += 1
        return letter

    def value(self) -> Any:
        self.next()
        while True:
            try:
                value, end = _PARSER.raw_decode(self._window, self._at)
            except json.JSONDecodeError as error:
                # Near the window's end, or in a text that has not ended, more may help.
                is_cut = error.pos > len(self._window) - _LONGEST_CUT_LETTERS
                is_cut = is_cut or error.msg.startswith("Unterminated string")
                is_short = len(self._window) - self._at < _VALUE_LETTERS_MAX
                if not (is_cut and is_short and self._more()):
                    raise
                continue
            if len(self._window) - end > _NUMBER_GOES_ON_LETTERS or not self._more():
                self.last = self._window[self._at : end]
                self._at = end
                return value

    def items(self) -> Iterator[Any]:
        """The values of the list that begins here."""
        self.take("[")
        if self.next() == "]":
            self.take("]")
            return
        yield self.value()
        while self.take(",]") == ",":
            yield self.value()

    def finish(self) -> None:
        if self.next():
            raise ValueError("something follows the document")

    def check_rest(self) -> None:
        """Decodes the rest, unless it is long, to check that it is UTF-8."""
        self._at, stop = len(self._window), self._end + _REST_BYTES_MAX
        while self._end < stop and self._more():
            self._at = len(self._window)

    def _more(self) -> bool:
        """Extends the window; false if it is at the end already."""
        rest = self._window[self._at :]
        begin, end = self._end, self._end + max(self._window_bytes, len(rest))
        if begin >= len(self._data):
            return False
        # The window must not end inside a character, which has up to three more bytes.
        end += next((n for n in range(3) if self._data[end + n : end + n + 1] not in _WITHIN), 3)
        try:
            self._window, self._at = rest + self._data[begin:end].decode(), 0
        except UnicodeDecodeError as error:
            error.start += begin
            raise
        self._end = min(end, len(self._data))
        return True


class JsonDocument:
    """Any JSON document, without the values that can't be written again. It is parsed once to the
    end at construction, which raises `NotForeign` for invalid JSON and for documents that are too
    deeply nested."""

    def __init__(self, data: FileBytes | bytes, *, window_bytes: int = WINDOW_BYTES) -> None:
        self._data = data
        self._window_bytes = window_bytes
        bom = codecs.BOM_UTF8
        self.bom_bytes = len(bom) if data[: len(bom)] == bom else 0
        self._list_at: int | None = None
        self.members: dict[str, Any] | None = None
        """The members of the top-level object without the list of messages; `None` if the document
        is not an object."""
        self.member_texts: dict[str, str] = {}
        """The text of each member as it was written, `"name":value`."""
        self.count = 0
        """The number of messages."""
        self.calls = 0
        """The number of tool calls in all messages."""
        self.first: Any = None
        self.wrong: str | None = None
        """The reason why a message can't be imported, if there is one."""
        self.has_our_keys = False
        self._survey()
        if self.wrong is not None:
            self.wrong = self.wrong.format(self.count)

    def __len__(self) -> int:
        """The size in bytes."""
        return len(self._data)

    @property
    def has_messages(self) -> bool:
        return self._list_at is not None

    def messages(self) -> Iterator[Any]:
        assert self._list_at is not None
        with self._reading(self._list_at) as text:
            yield from map(_clean, text.items())

    def message_texts(self) -> Iterator[str]:
        """The JSON of each message as it was written."""
        assert self._list_at is not None
        with self._reading(self._list_at) as text:
            yield from (text.last for _ in text.items())

    def _survey(self) -> None:
        with self._reading(self.bom_bytes) as text:
            if text.next() != "{":
                _clean(text.value())
                text.finish()
                return
            found: dict[str, Any] = {}
            text.take("{")
            is_last = text.next() == "}" and bool(text.take("}"))
            while not is_last:
                self._take_member(text, found)
                is_last = text.take(",}") == "}"
            text.finish()
            self.members = _clean(found)
            self.has_our_keys = self.has_our_keys or not OUR_KEYS.isdisjoint(found)

    def _take_member(self, text: _Text, found: dict[str, Any]) -> None:
        """Reads one member. If a name occurs twice, the later one counts."""
        if text.next() != '"':
            raise ValueError("a member has no name")
        name = text.value()
        name_text = text.last
        text.take(":")
        if name == "messages":
            found.pop(name, None)
            self.member_texts.pop(name, None)
            self._list_at = None
            if text.next() == "[":
                self._survey_messages(text)
                return
        found[name] = text.value()
        self.member_texts[name] = f"{name_text}:{text.last}"

    def _survey_messages(self, text: _Text) -> None:
        self._list_at = text.offset
        self.count, self.calls, self.first = 0, 0, None
        self.wrong, self.has_our_keys = None, False
        for message in text.items():
            message = _clean(message)  # it may be nested too deeply for that
            self.count += 1
            if self.count == 1:
                self.first = message
            wrong: str | None = "is no JSON object"
            if isinstance(message, dict):
                calls = message.get("tool_calls")
                self.calls += len(calls) if isinstance(calls, list) else 0
                self.has_our_keys = self.has_our_keys or not OUR_KEYS.isdisjoint(message)
                is_message = "role" in message or "content" in message
                wrong = None if is_message else "has neither a role nor a content"
            if wrong is not None and self.wrong is None:
                self.wrong = f"message {self.count} of {{}} {wrong}"

    @contextmanager
    def _reading(self, start: int) -> Iterator[_Text]:
        text = _Text(self._data, start, self._window_bytes)
        try:
            try:
                yield text
            except UnicodeDecodeError:
                raise
            except (RecursionError, ValueError):
                text.check_rest()  # what is not UTF-8 is not JSON either, and easier to correct
                raise
        except RecursionError as error:
            raise NotForeign("it is nested too deeply") from error
        except UnicodeDecodeError as error:
            if self._data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
                raise NotForeign("it is UTF-16: save it as UTF-8") from error
            raise NotForeign(f"it is not UTF-8 (byte {error.start - self.bom_bytes})") from error
        except ValueError as error:
            raise NotForeign("it is no JSON document") from error


def _clean(value: Any) -> Any:
    match value:
        case str():
            if value.isascii():
                return value
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        case bool():
            return value
        case int() if not INTEGER_MIN <= value <= INTEGER_MAX:
            return str(value)
        case float() if not math.isfinite(value):
            return None
        case list():
            return [_clean(item) for item in value]
        case dict():
            return {_clean(name): _clean(item) for name, item in value.items()}
        case _:
            return value
