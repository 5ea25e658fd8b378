"""One prompt and what comes of it, as an asynchronous context manager.

    async with client.ask("hello") as turn:
        async for event in turn: ...

Entering sends the prompt and waits for its receipt: from then on it is on the
server's disk. Iterating gives the turn's events and ends after `TurnFinished`.
Leaving early stops nothing on the server: it only stops listening. `cancel`
is the word for the other thing. A lost connection only makes the events wait:
they go on where they were.
"""

from __future__ import annotations

from types import TracebackType
from typing import Protocol, TypedDict

from nplt_client.errors import TurnInterrupted, error_from_turn
from nplt_client.mailbox import Mailbox, merge_text
from nplt_client.turn_record import TurnRecord
from nplt_protocol.events import Event, TurnFinished
from nplt_protocol.json_values import JsonObject
from nplt_protocol.replies import Receipt
from nplt_protocol.requests import Prompt


class PromptFields(TypedDict, total=False):
    """What may be said with a prompt, besides its text."""

    session_id: str | None
    model: str | None
    message_id: str | None
    metadata: JsonObject | None
    options: JsonObject | None
    attachments: tuple[str, ...]
    replace_from: int | None
    """Edit or regenerate: what stood from this entry on is rolled back first."""


class TurnDesk(Protocol):
    """What a turn needs of its client."""

    async def send_prompt(self, prompt: Prompt, mailbox: Mailbox) -> Receipt: ...
    async def read_again(self, receipt: Receipt) -> list[Event]: ...
    async def cancel(self, turn_id: str | None = None) -> bool: ...
    def unfollow(self, turn_id: str) -> None: ...


class Turn:
    def __init__(self, desk: TurnDesk, prompt: Prompt) -> None:
        self._desk = desk
        self._prompt = prompt
        self._mailbox = Mailbox(merge_text)
        self._record = TurnRecord()

    @property
    def text(self) -> str:
        """The answer so far; the stored answer once the turn is finished."""
        return self._record.text

    @property
    def receipt(self) -> Receipt:
        receipt = self._record.receipt
        if receipt is None:
            raise RuntimeError("the turn has no receipt before `async with` was entered")
        return receipt

    @property
    def finished(self) -> TurnFinished | None:
        return self._record.finished

    @property
    def model(self) -> str | None:
        return self._record.model

    @property
    def tool_calls(self) -> tuple[JsonObject, ...]:
        return tuple(self._record.tool_calls.values())

    async def cancel(self) -> bool:
        """False: it was over already."""
        return await self._desk.cancel(self.receipt.turn_id)

    def raise_unless_completed(self) -> None:
        finished = self._record.finished
        if finished is None or finished.state == "completed":
            return
        if finished.state == "interrupted":
            raise TurnInterrupted("the answer was interrupted", text=self.text)
        raise error_from_turn(finished.error)

    async def __aenter__(self) -> Turn:
        self._record.receipt = await self._desk.send_prompt(self._prompt, self._mailbox)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._mailbox.close()
        self._desk.unfollow(self.receipt.turn_id)

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> Event:
        if self._record.finished is not None:
            raise StopAsyncIteration
        event = await self._mailbox.get()
        if event is None:
            raise StopAsyncIteration
        self._record.apply(event)
        if isinstance(event, TurnFinished) and self._record.lacks_text:
            for stored in await self._desk.read_again(self.receipt):
                self._record.apply(stored)
        return event
