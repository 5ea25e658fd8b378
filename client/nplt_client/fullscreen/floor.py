"""What a command may do with the chat it was typed in."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from nplt_client.fullscreen.visit import Visit


class TurnShown(Protocol):
    @property
    def answer(self) -> str: ...


class TranscriptShown(Protocol):
    """What was said, as far as it is at hand."""

    @property
    def is_raw(self) -> bool: ...

    @property
    def turns(self) -> Sequence[TurnShown]: ...

    async def show_raw(self, is_raw: bool) -> None: ...

    def look_at_top(self) -> None: ...


class Floor(Protocol):
    visit: Visit

    @property
    def transcript(self) -> TranscriptShown: ...

    async def tell(self, text: str) -> None:
        """A text that stands in the transcript. Made safe by the teller."""
        ...

    def remark(self, text: str) -> None:
        """A word that goes away by itself."""
        ...

    async def go(self, going: Awaitable[object]) -> None:
        """To another conversation."""
        ...

    async def read_again(self) -> None: ...

    async def show_older(self) -> bool:
        """False: there is nothing older."""
        ...

    async def ask(self, text: str) -> None: ...

    def fill(self, text: str) -> None:
        """Lays a text into the input, to be changed and sent."""
        ...

    async def choose(
        self, title: str, choices: Sequence[str], marked: str | None = None
    ) -> str | None: ...

    async def pick_session(self, wanted: str) -> None: ...

    async def decide(self, *, allow: bool, remember: bool) -> None:
        """About the tool that has waited longest for a yes or a no."""
        ...

    def wear(self, theme: str) -> None: ...

    def copy(self, text: str) -> None: ...

    def reconnect(self) -> None: ...

    def leave(self) -> None: ...
