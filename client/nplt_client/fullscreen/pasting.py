"""A paste is one text, whatever bytes are in it.

Textual looks for keys inside of a bracketed paste as well: an escape and a
return in it would send what stands in the input. Here nothing but the end of
the paste is looked for until it has come, and the text is made safe before
any widget sees it.
"""

from __future__ import annotations

from collections.abc import Iterable

from textual._xterm_parser import BRACKETED_PASTE_END, BRACKETED_PASTE_START, XTermParser
from textual.events import Paste
from textual.message import Message

from nplt_client.fullscreen.safe_text import safe


class PasteParser(XTermParser):
    """Bytes of the terminal (decoded) to keys and pastes, however they are cut."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        self._tail = ""
        """The end of what was read, where a mark may have begun."""
        self._pasted: list[str] | None = None

    def feed(self, data: str) -> Iterable[Message]:
        if not data:
            yield from super().feed(data)
        while data:
            mark = BRACKETED_PASTE_START if self._pasted is None else BRACKETED_PASTE_END
            read, data = self._read_to(mark, data)
            if self._pasted is None:
                yield from super().feed(read)
            else:
                self._pasted.append(read)
            if self._tail == mark:
                self._tail = ""
                yield from self._turn()

    def _read_to(self, mark: str, data: str) -> tuple[str, str]:
        """What belongs to it, up to the end of the mark if that is in there; the rest."""
        known = len(self._tail)
        place = (self._tail + data).find(mark)
        if place >= 0:
            self._tail = mark
            end = place + len(mark) - known
            return data[:end], data[end:]
        self._tail = (self._tail + data)[-(len(mark) - 1) :]
        return data, ""

    def _turn(self) -> Iterable[Message]:
        """The mark was read: a paste begins, or is over."""
        if self._pasted is None:
            self._pasted = []
            return
        pasted = "".join(self._pasted).removesuffix(BRACKETED_PASTE_END)
        self._pasted = None
        # Textual counts the marks too; the paste it takes this for is empty.
        for message in super().feed(BRACKETED_PASTE_END):
            if not isinstance(message, Paste):
                yield message
        yield Paste(safe(pasted))


def understand_pastes() -> None:
    """The driver for Unix terminals makes its parser by this name."""
    from textual.drivers import linux_driver

    setattr(linux_driver, "XTermParser", PasteParser)  # noqa: B010
