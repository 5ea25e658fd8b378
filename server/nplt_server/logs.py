"""Writes log lines as text or JSON, and switches debug categories.

Lines go to stderr or to a file that is rotated (`log_file`); under systemd they go to the
journal, with their fields. One line per event; any line may carry fields.
`NPLT_DEBUG=history,provider` turns on single categories without the rest of the debug output.
With `wire`, or at level debug, the frames of every connection are logged.
"""

from __future__ import annotations

import logging
import math
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Literal, TextIO

import orjson

from nplt_server.request_id import request_id

# Debug categories: `NPLT_DEBUG=history,context`. A category is called like a function. A disabled
# one costs one attribute lookup, but its arguments are still evaluated: if they are expensive,
# check `category.on` first. Categories log numbers, kinds, sizes and names, never the text of
# people or models, and never keys.

log = logging.getLogger(__name__)

_REPEATED_SECONDS: Final = 60.0


class RepeatedWarnings:
    """Logs a warning about a subject (an address, a store) at most once a minute, with the number
    of those that were left out. Otherwise a failure that repeats could fill the disk."""

    def __init__(self, to: logging.Logger) -> None:
        self._log = to
        self._logged: dict[str, tuple[float, int]] = {}

    def warn(self, subject: str, message: str) -> None:
        now = time.monotonic()
        logged_at, left_out = self._logged.get(subject, (-math.inf, 0))
        if now - logged_at < _REPEATED_SECONDS:
            self._logged[subject] = (logged_at, left_out + 1)
            return
        more = f" ({left_out} more before)" if left_out else ""
        self._log.warning("%s%s", message, more)
        self._logged[subject] = (now, 0)

    def forget(self, subject: str) -> None:
        """The trouble with this subject is over; the next one is logged at once."""
        self._logged.pop(subject, None)

    def clear(self) -> None:
        self._logged.clear()


ALL: Final = "all"
LOGGERS: Final = "nplt."


class Category:
    __slots__ = ("_log", "name", "on")

    def __init__(self, name: str) -> None:
        self.name = name
        self.on = False
        self._log = logging.getLogger(LOGGERS + name)

    def __call__(self, message: str, /, **fields: object) -> None:
        if self.on:
            self._log.debug("%s", message, extra={"fields": fields})

    def switch(self, on: bool) -> None:
        self.on = on
        self._log.setLevel(logging.DEBUG if on else logging.NOTSET)


history = Category("history")
provider = Category("provider")
tools = Category("tools")
context = Category("context")
tokens = Category("tokens")
wire = Category("wire")
"""The frames of every connection, which `transcript_for` logs."""

CATEGORIES: Final = {
    category.name: category for category in (history, provider, tools, context, tokens, wire)
}


def switch_categories(wanted: str) -> None:
    """Enables the categories in a comma-separated list, and disables all others."""
    names = {name.strip().lower() for name in wanted.split(",")} - {""}
    for category in CATEGORIES.values():
        category.switch(category.name in names or ALL in names)
    if unknown := ", ".join(sorted(names - CATEGORIES.keys() - {ALL})):
        there_are = ", ".join((*CATEGORIES, ALL))
        log.warning("NPLT_DEBUG: no category %s; there are %s", unknown, there_are)


# Log lines:
#
#     2026-11-19T12:00:01+0100 I listening on 127.0.0.1:9999
#     2026-11-19T12:00:01+0100 D history  appended seq=3 kind=model_input
#
# Any line may carry fields: `log.info("…", extra={"fields": {"seq": 3}})`. Frames are shown as
# a transcript, `<` received and `>` sent.

wire_log = logging.getLogger("nplt.wire")

VALUE_CHARACTERS_MAX = 200
_TOO_TALKATIVE = ("asyncio", "openai", "anthropic", "httpx2", "httpcore2")
"""Loggers of libraries that log whole requests, prompts and headers at debug."""


def _is_wanted(record: logging.LogRecord) -> bool:
    """Filters each record when it is written: libraries set the levels of their loggers by
    variables of their own (OPENAI_LOG) when they are imported, long after ours were set."""
    library = record.name.partition(".")[0]
    return record.levelno >= logging.WARNING or library not in _TOO_TALKATIVE


def configure_logging(
    level: str,
    *,
    log_format: Literal["text", "json"] = "text",
    file: Path | None = None,
    file_bytes_max: int = 0,
    files_kept: int = 0,
) -> None:
    """Raises OSError if the file can't be opened."""
    handler: logging.Handler
    if file is not None:
        from nplt_server.log_file import RotatedFile

        handler = RotatedFile(file, bytes_max=file_bytes_max, kept=files_kept)
    elif is_journal(sys.stderr, os.environ):
        handler = JournalHandler()
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    handler.addFilter(_is_wanted)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in _TOO_TALKATIVE:
        logging.getLogger(name).setLevel(logging.WARNING)
    switch_categories(os.environ.get("NPLT_DEBUG", ""))


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname).1s %(message)s", "%Y-%m-%dT%H:%M:%S%z")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        category = record.name.removeprefix(LOGGERS)
        if hasattr(record, "fields") and category in CATEGORIES:
            time, level, message = line.split(" ", 2)
            line = f"{time} {level} {category:<8} {message}"
        return " ".join(
            (line, *(f"{key}={_shown(value)}" for key, value in fields_of(record).items()))
        )


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _clean(record.getMessage()),
        }
        if fields := fields_of(record):
            line["fields"] = {key: _plain(value) for key, value in fields.items()}
        if record.exc_info:
            line["exception"] = _clean(self.formatException(record.exc_info))
        return orjson.dumps(line).decode()


_JOURNAL: Final = "/run/systemd/journal/socket"
_JOURNAL_VALUE_BYTES_MAX: Final = 48 * 1024
_PRIORITIES: Final = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3}


def is_journal(stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Whether systemd has connected the stream to its journal (systemd.exec(5), JOURNAL_STREAM)."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):  # no file
        return False
    return environ.get("JOURNAL_STREAM") == f"{status.st_dev}:{status.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each line to systemd's journal with its priority, its logger, and its fields as
    NPLT_NAME; the journal adds the time. https://systemd.io/JOURNAL_NATIVE_PROTOCOL/"""

    def __init__(self, path: str = _JOURNAL) -> None:
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = _clean(record.getMessage())
            if record.exc_info:
                message += "\n" + _clean(logging.Formatter().formatException(record.exc_info))
            fields = {
                "MESSAGE": message,
                "PRIORITY": str(_PRIORITIES.get(record.levelno, 2)),
                "SYSLOG_IDENTIFIER": "nplt-server",
                "NPLT_LOGGER": record.name,
            }
            for key, value in fields_of(record).items():
                fields[f"NPLT_{key.upper()}"] = str(_plain(value))
            self._socket.sendto(
                b"".join(_journal_field(*each) for each in fields.items()), self._path
            )
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def _journal_field(name: str, value: str) -> bytes:
    data = value.encode(errors="replace")[:_JOURNAL_VALUE_BYTES_MAX]
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    given: dict[str, object] = fields if isinstance(fields, dict) else {}
    current = request_id.get()
    return {**given, "request": current} if current else given


def _clean(text: str) -> str:
    from nplt_server.digest.text import clean_text  # not needed at the start

    return clean_text(text)


def _plain(value: object) -> object:
    """Keeps a number that JSON can represent; converts everything else to short text."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    return _clean(str(value)[:VALUE_CHARACTERS_MAX])


def _shown(value: object) -> str:
    """Quotes a value that would otherwise look like several fields or several lines."""
    text = str(_plain(value))
    return text if text and text.isprintable() and not set(text) & set(' "=') else ascii(text)


def transcript_for(peer: str) -> Callable[[str], None] | None:
    """Returns a function that logs one line per frame of a connection; `None` if wire logging is
    off."""
    return partial(wire_log.debug, "%s %s", peer) if wire_log.isEnabledFor(logging.DEBUG) else None
