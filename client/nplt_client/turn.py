"""One prompt and what comes of it, as an asynchronous context manager.

    async with client.ask("hello") as turn:
        async for event in turn: ...

Entering sends the prompt and waits for its receipt: from then on it is on the server's
disk. Iterating gives the turn's events and ends after `TurnFinished`. Leaving early only
stops following; the turn goes on at the server until `cancel`. When the connection is
lost the events pause, and continue where they were.
"""

from __future__ import annotations

from typing import TypedDict

import anyio

from nplt_client.received_turn import ReceivedTurn
from nplt_client.wire.transport import SessionRunner
from nplt_client.wire.wire_session import FollowedTurn
from nplt_protocol.json_text import JsonObject, JsonValue, answer_value
from nplt_protocol.messages import Cancel, Cancelled, Event, Prompt, Receipt, TurnFinished


class PromptFields(TypedDict, total=False):
    """The optional fields of a prompt."""

    session_id: str | None
    """Another conversation than the attached one, by its id or name."""
    create: bool
    """Makes that conversation if it is not there."""
    history: str | None
    """The history of the server's settings that a new one is kept in."""
    model: str | None
    """Answers this prompt; the model of the conversation stays as it is."""
    role: str | None
    """The model that the server's settings give this role answers it."""
    message_id: str | None
    metadata: JsonObject | None
    options: JsonObject | None
    attachments: tuple[str, ...]
    replace_from: int | None
    """Edit or regenerate: what stood from this entry on is rolled back first."""


class Turn:
    """Made by `Client.ask`."""

    def __init__(self, runner: SessionRunner, prompt: Prompt) -> None:
        self._runner = runner
        self._prompt = prompt
        self._turn: FollowedTurn | None = None
        self._received = ReceivedTurn()

    @property
    def text(self) -> str:
        """The answer so far; the stored answer once the turn is finished."""
        return self._received.text

    def json(self) -> JsonValue:
        """The answer to a prompt with `options={"schema": …}`, once the turn is finished."""
        self.raise_unless_completed()
        return answer_value(self._received.last_text)

    @property
    def receipt(self) -> Receipt:
        receipt = self._received.receipt
        if receipt is None:
            raise RuntimeError("the turn has no receipt before `async with` was entered")
        return receipt

    @property
    def finished(self) -> TurnFinished | None:
        return self._received.finished

    @property
    def model(self) -> str | None:
        return self._received.model

    @property
    def tool_calls(self) -> tuple[JsonObject, ...]:
        return tuple(self._received.tool_calls.values())

    async def cancel(self) -> bool:
        """False: it was over already."""
        session = self._runner.session
        request = Cancel(turn_id=self.receipt.turn_id)
        reply = await self._runner.request(request, timeout=session.timeout)
        return isinstance(reply, Cancelled) and reply.cancelled

    def raise_unless_completed(self) -> None:
        self._received.raise_unless_completed()

    async def __aenter__(self) -> Turn:
        runner = self._runner
        self._turn = runner.session.ask(self._prompt, anyio.current_time())
        try:
            self._received.receipt = await runner.result(self._turn)
        except BaseException:
            runner.session.forget(self._turn)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._turn is not None:
            self._runner.session.forget(self._turn)

    def __aiter__(self) -> Turn:
        return self

    async def __anext__(self) -> Event:
        if self._received.finished is not None:
            raise StopAsyncIteration
        receipt, turn = self.receipt, self._turn
        assert turn is not None
        event = await self._runner.next_event(turn.events)
        if event is None:
            raise StopAsyncIteration
        self._received.apply(event)
        if isinstance(event, TurnFinished) and self._received.lacks_text:
            exchange = self._runner.session.read_turn(receipt, anyio.current_time())
            for stored in await self._runner.result(exchange):
                self._received.apply(stored)
        return event
