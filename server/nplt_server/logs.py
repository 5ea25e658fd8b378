"""Writes log lines to stderr, as text or JSON, and switches debug categories.

One line per event; any line may carry fields. `NPLT_DEBUG=history,provider` turns on
single categories without the rest of the debug output. With `wire`, or at level debug,
the frames of every connection are logged.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal

import orjson

# Debug categories: `NPLT_DEBUG=history,context`. A category is called like a function. A disabled
# one costs one attribute lookup, but its arguments are still evaluated: if they are expensive,
# check `category.on` first. Categories log numbers, kinds, sizes and names, never the text of
# people or models, and never keys.

log = logging.getLogger(__name__)

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
#     12:00:01 I listening on 127.0.0.1:9999
#     12:00:01 D history  appended seq=3 kind=model_input
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


def configure_logging(level: str, *, log_format: Literal["text", "json"] = "text") -> None:
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
        super().__init__("%(asctime)s %(levelname).1s %(message)s", "%H:%M:%S")

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


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


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
