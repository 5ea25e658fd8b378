"""Corrects how textual reads keys and pastes.

Keys act in the order in which they were pressed, Alt+Enter is one key, and a paste is
always one text. This module uses private parts of textual.
"""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Callable, Iterable
from typing import cast

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.events import Key, Paste
from textual.message import Message
from textual.widget import Widget

from nplt_client.render.text import safe

_WRITTEN_CATEGORIES = frozenset({"Cf", "Zs"})


async def handle_key_now(widget: Widget, event: Key, write: Callable[[str], None]) -> None:
    """Handles a key that textual would handle too late or not at all.

    Textual inserts printable keys at once, but runs bindings only after the key has reached
    the app: `abc`, Ctrl+U, `def` in one burst would leave nothing. So a widget runs its own
    bindings here. Characters that Python does not count as printable although people write
    them (the joiners of Persian and of emoji, the wide space of Japanese) are inserted too.
    """
    if event.is_printable:
        return
    is_handled = is_text_character(event.character or "")
    if is_handled:
        write(event.character or "")
    for binding in widget._bindings.key_to_bindings.get(event.key, ()):
        is_handled = is_handled or await widget.app.run_action(binding.action, widget)
    if is_handled:
        event.stop()
        event.prevent_default()


def is_text_character(character: str) -> bool:
    return (
        len(character) == 1
        and unicodedata.category(character) in _WRITTEN_CATEGORIES
        and safe(character) == character
    )


def install_alt_enter() -> None:
    """Makes Alt+Enter a key: most terminals send Escape and Return, which textual reads as Enter.

    If textual's table of sequences can't be changed, Ctrl+J still inserts a newline.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from textual._ansi_sequences import ANSI_SEQUENCES_KEYS
        from textual.keys import Keys

        table = cast("dict[str, tuple[Keys, ...]]", ANSI_SEQUENCES_KEYS)
        for sequence in ("\x1b\r", "\x1b\n"):
            table.setdefault(sequence, (Keys.ControlJ,))


class PasteParser(XTermParser):
    """Parses keys and pastes from terminal input, however that is split.

    Textual also parses keys inside a bracketed paste: an escape and a return in it would send
    the input. This parser searches only for the end of the paste, and sanitizes the text before
    any widget sees it.
    """

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._tail = ""
        """The end of the input so far, which may be the beginning of a paste marker."""
        self._pasted: list[str] | None = None

    def feed(self, data: str) -> Iterable[Message]:
        if not data:
            yield from super().feed(data)
        while data:
            mark = BRACKETED_PASTE_START if self._pasted is None else BRACKETED_PASTE_END
            known = len(self._tail)
            place = (self._tail + data).find(mark)
            if place >= 0:
                end = place + len(mark) - known
                self._tail, read, data = "", data[:end], data[end:]
            else:
                self._tail = (self._tail + data)[-(len(mark) - 1) :]
                read, data = data, ""
            if self._pasted is None:
                yield from super().feed(read)
            else:
                self._pasted.append(read)
            if place >= 0:
                yield from self._switch()

    def _switch(self) -> Iterable[Message]:
        """Begins or ends a paste, after its marker was read."""
        if self._pasted is None:
            self._pasted = []
            return
        pasted = "".join(self._pasted).removesuffix(BRACKETED_PASTE_END)
        self._pasted = None
        # Textual tracks the markers too; for it, the paste is empty.
        for message in super().feed(BRACKETED_PASTE_END):
            if not isinstance(message, Paste):
                yield message
        yield Paste(safe(pasted))


def install_paste_parser() -> None:
    """Replaces the parser of textual's driver for Unix terminals."""
    from textual.drivers import linux_driver

    setattr(linux_driver, "XTermParser", PasteParser)  # noqa: B010
