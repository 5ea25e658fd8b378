"""Log lines on stderr: one per event, to be read by people or, as JSON, by machines.

    12:00:01 I listening on 127.0.0.1:9999
    12:00:01 D history  appended seq=3 kind=model_input

Any line may carry fields: `log.info("…", extra={"fields": {"seq": 3}})`. At level
debug, or with NPLT_DEBUG=wire, the frames of every connection are shown as a
transcript, `<` received and `>` sent.
"""

from __future__ import annotations

import logging
import os
import sys
from datetime import UTC, datetime
from typing import Literal

import orjson

from nplt_server.clean_text import clean_text
from nplt_server.debug import CATEGORIES, LOGGERS, switch_categories

wire_log = logging.getLogger("nplt.wire")

VALUE_CHARACTERS_MAX = 200
_TOO_TALKATIVE = ("asyncio", "openai", "anthropic", "httpx2", "httpcore2")
"""Other people's loggers, which at debug show whole requests, prompts and headers."""


def _is_wanted(record: logging.LogRecord) -> bool:
    """Asked of what is to be written, because others set their loggers' levels by variables
    of their own (OPENAI_LOG), and when they are imported: long after ours were set."""
    of = record.name.partition(".")[0]
    return record.levelno >= logging.WARNING or of not in _TOO_TALKATIVE


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
        fields = fields_of(record)
        category = record.name.removeprefix(LOGGERS)
        if hasattr(record, "fields") and category in CATEGORIES:
            time, level, message = line.split(" ", 2)
            line = f"{time} {level} {category:<8} {message}"
        return " ".join((line, *(f"{key}={_shown(value)}" for key, value in fields.items())))


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": clean_text(record.getMessage()),
        }
        if fields := fields_of(record):
            line["fields"] = {key: _plain(value) for key, value in fields.items()}
        if record.exc_info:
            line["exception"] = clean_text(self.formatException(record.exc_info))
        return orjson.dumps(line).decode()


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    fields = getattr(record, "fields", None)
    return fields if isinstance(fields, dict) else {}


def _plain(value: object) -> object:
    """A number stays one, if JSON has it; all else is short text."""
    if value is None or isinstance(value, (bool, float)):
        return value
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    return clean_text(str(value)[:VALUE_CHARACTERS_MAX])


def _shown(value: object) -> str:
    """Quoted if it could be taken for several fields, or for several lines."""
    text = str(_plain(value))
    return text if text and text.isprintable() and not set(text) & set(' "=') else ascii(text)


def transcript_for(peer: str) -> Transcript | None:
    return Transcript(peer) if wire_log.isEnabledFor(logging.DEBUG) else None


class Transcript:
    """One line per frame of one connection."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def __call__(self, line: str) -> None:
        wire_log.debug("%s %s", self._peer, line)
