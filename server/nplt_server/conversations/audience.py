"""Who is listening to a conversation, and the one way to speak to them.

An event is encoded once, whoever and however many hear it. Emitting never
waits: a listener that can't keep up deals with that on its own. What is said
because of what was just said comes after it, for everyone: all hear the same in
the same order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from nplt_protocol.codec import encode_event
from nplt_protocol.events import Event

log = logging.getLogger(__name__)


class Said:
    """An event on its way to many: the value, and its bytes once someone needs them."""

    __slots__ = ("_bytes_max", "_frames", "event")

    def __init__(self, event: Event, bytes_max: int) -> None:
        self.event = event
        self._bytes_max = bytes_max
        self._frames: bytes | None = None

    @property
    def frames(self) -> bytes:
        if self._frames is None:
            self._frames = encode_event(self.event, message_bytes_max=self._bytes_max)
        return self._frames


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """Who is behind a listener, as the others are told."""

    client_id: str = ""
    user: str = ""
    client: str = ""
    observer: bool = False
    can_decide: bool = False
    """Whether people there can be asked whether a tool may be run."""


NOBODY: Final = Guest()
"""Someone who listens and is not counted."""


class Listener(Protocol):
    def hear(self, said: Said) -> None: ...

    def dropped(self) -> None:
        """It failed to listen and was taken out; it must not go on as if it heard."""
        ...


class Audience:
    __slots__ = ("_bytes_max", "_listeners", "_to_say")

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        # A dict keeps the order of arrival, so everyone hears in that order.
        self._listeners: dict[Listener, Guest] = {}
        self._to_say: list[Said] | None = None
        """While something is being said: it, and what comes after it."""

    def __len__(self) -> int:
        return len(self._listeners)

    def __iter__(self) -> Iterator[Listener]:
        return iter(tuple(self._listeners))

    @property
    def guests(self) -> tuple[Guest, ...]:
        return tuple(guest for guest in self._listeners.values() if guest is not NOBODY)

    def join(self, listener: Listener, guest: Guest = NOBODY) -> None:
        self._listeners[listener] = guest

    def leave(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def emit(self, event: Event) -> None:
        if not self._listeners:
            return
        said = Said(event, self._bytes_max)
        if self._to_say is not None:
            self._to_say.append(said)
            return
        self._to_say = [said]
        try:
            while self._to_say:
                self._say(self._to_say.pop(0))
        finally:
            self._to_say = None

    def _say(self, said: Said) -> None:
        for listener in tuple(self._listeners):
            try:
                listener.hear(said)
            except Exception:
                # Its own affair: the turn goes on, and the others hear it.
                log.exception("a listener failed; it is taken out")
                self.leave(listener)
                listener.dropped()
