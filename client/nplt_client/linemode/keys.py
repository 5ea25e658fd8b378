"""Which key does what. Editing itself is prompt_toolkit's, as in Emacs and readline."""

from __future__ import annotations

from typing import Protocol

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import has_focus, is_searching
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys as Named

from nplt_client.sanitize import sanitize


class Keys(Protocol):
    """What the person wants, besides typing."""

    def sent(self, text: str) -> None: ...

    def line_begins(self) -> None:
        """The first character of a new line."""
        ...

    def stop(self) -> bool:
        """The answer that comes; False: there is none."""
        ...

    def dropped(self) -> None:
        """The draft was cleared away."""
        ...

    def interrupted(self) -> None:
        """With nothing to stop and nothing typed."""
        ...

    def leave(self) -> None: ...

    def open_editor(self) -> None: ...


_TYPING = has_focus(DEFAULT_BUFFER) & ~is_searching


def key_bindings(keys: Keys) -> KeyBindings:
    bindings = KeyBindings()
    _bind_writing(bindings, keys)
    _bind_stopping(bindings, keys)
    return bindings


def _bind_writing(bindings: KeyBindings, keys: Keys) -> None:
    @bindings.add("enter", filter=_TYPING)
    def _send(event: KeyPressEvent) -> None:
        _send_or_break(event, keys)

    @bindings.add("c-j", filter=_TYPING)
    @bindings.add("escape", "enter", filter=_TYPING)
    def _break(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add(Named.BracketedPaste, filter=_TYPING)
    def _paste(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text(sanitize(event.data))

    @bindings.add("c-g", filter=_TYPING)
    def _edit(event: KeyPressEvent) -> None:
        keys.open_editor()


def _bind_stopping(bindings: KeyBindings, keys: Keys) -> None:
    @bindings.add("escape", filter=_TYPING)
    def _stop(event: KeyPressEvent) -> None:
        if event.current_buffer.complete_state is not None:
            event.current_buffer.cancel_completion()
        else:
            keys.stop()

    @bindings.add("c-c", filter=_TYPING)
    @bindings.add("<sigint>")
    def _interrupt(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if keys.stop():
            return
        if buffer.text:
            _empty(buffer)
            keys.dropped()
        else:
            keys.interrupted()

    @bindings.add("c-d", filter=_TYPING)
    def _leave_or_delete(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.delete()
        else:
            keys.leave()


def _send_or_break(event: KeyPressEvent, keys: Keys) -> None:
    buffer = event.current_buffer
    chosen = buffer.complete_state and buffer.complete_state.current_completion
    buffer.complete_state = None
    if chosen and buffer.text.endswith((" ", "/")):
        return  # it wants an argument
    if buffer.document.text_before_cursor.endswith("\\"):
        buffer.delete_before_cursor()
        buffer.insert_text("\n")
    elif buffer.text.strip():
        text = buffer.text
        buffer.append_to_history()
        _empty(buffer)
        keys.sent(text)


def _empty(buffer: Buffer) -> None:
    buffer.reset()
    buffer.on_text_changed.fire()  # which `reset` leaves out
