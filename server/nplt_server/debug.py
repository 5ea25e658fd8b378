"""Debug categories: what one part of the server does, without the noise of the rest.

    NPLT_DEBUG=history,context nplt-server
    12:00:01 D history  appended seq=3 kind=model_input

A category is called like a function. Switched off it costs a look at one
attribute, but what it is given is computed first: where that takes work, ask
`category.on` before. Categories are for numbers, kinds, sizes and names, never
for what people or models said, and never for keys.
"""

from __future__ import annotations

import logging
from typing import Final

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
"""The transcripts of connections: switched here, written by `logs.Transcript`."""

CATEGORIES: Final = {
    category.name: category for category in (history, provider, tools, context, tokens, wire)
}


def switch_categories(wanted: str) -> None:
    """On are the ones named, separated by commas; all others are off."""
    names = {name.strip().lower() for name in wanted.split(",")} - {""}
    for category in CATEGORIES.values():
        category.switch(category.name in names or ALL in names)
    unknown = sorted(names - CATEGORIES.keys() - {ALL})
    if unknown:
        log.warning(
            "NPLT_DEBUG: no category %s; there are %s",
            ", ".join(unknown),
            ", ".join((*CATEGORIES, ALL)),
        )
