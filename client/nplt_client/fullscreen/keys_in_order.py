"""Keys do what they do in the order they were pressed, however fast they come.

Textual writes printable keys at once, and looks for what the other ones are
bound to only after they have climbed up to the app: `abc`, Ctrl+U, `def` in
one burst would leave nothing. Widgets that call `obey` run their own bindings
themselves.

It also takes the characters that are part of writing although Python doesn't
count them as printable: the joiners of Persian and of emoji, the wide space of
Japanese.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable

from textual.events import Key
from textual.widget import Widget

from nplt_client.fullscreen.safe_text import safe

_WRITTEN_CATEGORIES = frozenset({"Cf", "Zs"})


async def obey(widget: Widget, event: Key, write: Callable[[str], None]) -> None:
    """What textual would do with this key too late or not at all; the rest is left to it."""
    if event.is_printable:
        return
    if event.character is not None and is_part_of_writing(event.character):
        write(event.character)
    elif not await _run_binding(widget, event.key):
        return
    event.stop()
    event.prevent_default()


async def _run_binding(widget: Widget, key: str) -> bool:
    for binding in widget._bindings.key_to_bindings.get(key, ()):
        if await widget.app.run_action(binding.action, widget):
            return True
    return False


def is_part_of_writing(character: str) -> bool:
    return (
        len(character) == 1
        and unicodedata.category(character) in _WRITTEN_CATEGORIES
        and safe(character) == character
    )
