"""A model's answer: it is asked until somebody begins to give it, and heard to its end.

What may be done about a call that failed before its first token:

    asked again       the provider was not there or too busy; a few times, after a while
    handed over       another model is asked instead; only at the first call of a turn,
                      for the model is fixed inside it
    shortened         question and answer were larger than the provider takes; a few times
    put aside         what was said is refused: models are not shown it any more, and the
                      turn goes on without it; a few times

Each is told to everyone as `retrying`. Once anything was said, nobody is asked again.
"""

from __future__ import annotations

from typing import Final

import anyio

from nplt_server import debug
from nplt_server.accumulator import ModelOutputAccumulator, cleaned
from nplt_server.conversations.putting_aside import PuttingAside
from nplt_server.conversations.turn import Respondent, Turn, TurnDesk
from nplt_server.conversations.voice import Voice
from nplt_server.deltas import ModelOutputDelta, ReasoningPiece, TextPiece
from nplt_server.errors import (
    AnswerCut,
    NoSuchModel,
    ProviderError,
    ProviderPaused,
    ProviderRefused,
    ProviderUnauthorized,
    ProviderUnavailable,
    RequestTooLarge,
    WindowTooSmall,
)
from nplt_server.providers.base import ModelRequest
from nplt_server.providers.model_facts import CallRoom

_SHORTENED: Final = (0.6, 0.3, 0.2)
"""Of what was sent, when that was too much and nobody says by how much. After the last
one it is a thirtieth: who refuses that as well does so for another reason."""


class Listening:
    """To all calls of one turn."""

    __slots__ = ("_aside", "_desk", "_room", "_too_large", "_tried", "_turn")

    def __init__(self, turn: Turn, desk: TurnDesk) -> None:
        self._turn = turn
        self._desk = desk
        self._tried = [turn.model]
        self._too_large: list[RequestTooLarge] = []
        self._room: CallRoom | None = None
        self._aside = PuttingAside(turn, desk)

    async def listen(self) -> None:
        """When it returns, the turn has an output that is whole."""
        turn, retries = self._turn, 0
        try:
            while True:
                try:
                    await self._ask(self._desk.respondent(turn.model))
                    self._aside.taken()
                    return
                except ProviderError as error:
                    if turn.output is not None and turn.output.has_begun:
                        raise
                    retries = await self._mend(error, retries)
        except anyio.get_cancelled_exc_class():
            if turn.output is None or not turn.output.has_begun:
                with anyio.CancelScope(shield=True):
                    await self._aside.break_off()
            raise
        finally:
            self._add_usage()

    # One call

    async def _ask(self, who: Respondent) -> None:
        turn, limits = self._turn, self._desk.limits
        room, answer_tokens_max = self._room, who.answer_tokens_max
        if room is not None:
            answer_tokens_max = min(answer_tokens_max, room.answer_tokens)
        turn.shown = await who.prepare(tokens_max=None if room is None else room.context_tokens)
        output = turn.output = ModelOutputAccumulator(answer_bytes_max=limits.answer_bytes_max)
        request = ModelRequest(
            invocation=who.invocation,
            context=turn.shown.messages,
            tools=turn.shown.frame.offer.descriptions,
            options=turn.prompt.options,
            answer_tokens_max=answer_tokens_max,
        )
        try:
            with anyio.move_on_after(limits.call_seconds_max) as in_time:
                async with who.provider.call_model(request) as deltas:
                    async for delta in deltas:
                        hear(delta, output, self._desk.voice)
        finally:
            self._desk.voice.flush()
            if debug.provider.on:
                _tell_debug(turn, who, output)
        if in_time.cancelled_caught:
            who.metrics.failures["timed_out"] += 1
            late = f"the model did not finish within {limits.call_seconds_max:g} s"
            raise ProviderUnavailable(late, timed_out=True)
        if output.stop_reason is None:
            raise AnswerCut
        if output.is_empty:
            raise ProviderRefused("the model gave an empty answer")
        if room is not None:
            who.takes_no_more(room)

    def _add_usage(self) -> None:
        """Of the call that is remembered, answered or not: what a provider reports later
        holds, and includes what it said before."""
        turn = self._turn
        if turn.output is None or turn.output.usage is None:
            return
        usage = turn.output.usage
        for name, tokens in usage.as_json().items():
            turn.usage[name] = turn.usage.get(name, 0) + tokens
        if turn.shown is not None:
            self._desk.respondent(turn.model).billed(turn.shown, usage)

    # When it fails before the first token

    async def _mend(self, error: ProviderError, retries: int) -> int:
        """Gives how often the same was asked again; raises the error if nothing helps."""
        seconds = self._desk.rules.retries.wait_before_retry(error, retries=retries)
        if seconds is not None:
            await self._wait(error, seconds, retries + 1)
            return retries + 1
        if self._hand_over(error):
            return 0
        if self._shorten(error) or await self._put_aside(error):
            return retries
        await self._aside.give_up(error)
        if self._too_large and isinstance(error, WindowTooSmall):
            error = self._too_large[-1]  # there was nothing left to be taken away
        if isinstance(error, RequestTooLarge):
            setting = f"models.{self._turn.model}.context_tokens"
            raise RequestTooLarge(f"{error}; how much it takes can be set: {setting}") from None
        raise error

    async def _wait(self, error: ProviderError, seconds: float, retry: int) -> None:
        policy = self._desk.rules.retries
        self._begin_again(
            f"{error}; {self._turn.model} is asked again in {seconds:.1f} s "
            f"(attempt {retry + 1} of {policy.retries_max + 1})"
        )
        self._desk.respondent(self._turn.model).metrics.retries += 1
        await policy.sleep(seconds)

    def _hand_over(self, error: ProviderError) -> bool:
        turn = self._turn
        is_too_small = isinstance(error, WindowTooSmall) and len(self._tried) > 1
        is_down = isinstance(error, ProviderUnavailable | ProviderUnauthorized | NoSuchModel)
        if turn.call != 0 or not (is_down or is_too_small):
            return False
        who = self._desk.respondent(turn.model)
        is_all_of_it = isinstance(error, ProviderUnauthorized | ProviderPaused)
        avoided = who.invocation.provider if is_all_of_it else None
        other = self._desk.rules.instead_of(self._tried, avoided)
        if other is None:
            return False
        who.metrics.fail_overs += 1
        self._begin_again(f"{turn.model}: {error}; {other} is asked instead")
        self._tried.append(other)
        self._room = None
        self._too_large = []
        turn.model = other
        return True

    def _shorten(self, error: ProviderError) -> bool:
        """To what the provider says that fits, if that is news; else by guessing."""
        turn, tries = self._turn, len(self._too_large)
        if not isinstance(error, RequestTooLarge) or turn.shown is None:
            return False
        if tries == len(_SHORTENED):
            return False
        self._too_large.append(error)
        who = self._desk.respondent(turn.model)
        if error.window_tokens is None or not who.has_window(error.window_tokens):
            sent = CallRoom(
                context_tokens=turn.shown.tokens, answer_tokens=who.answer_tokens_max
            ).within(self._room)
            self._room = sent.shortened(_SHORTENED[tries])
        self._begin_again(
            f"{error}; {turn.model} is asked again and shown less of what came before"
        )
        return True

    async def _put_aside(self, error: ProviderError) -> bool:
        why = await self._aside.mend(error)
        if why is not None:
            self._begin_again(why)
        return why is not None

    def _begin_again(self, why: str) -> None:
        """As if the call that failed had not been made."""
        self._turn.output = None
        self._desk.voice.think("retrying", why)


def _tell_debug(turn: Turn, who: Respondent, output: ModelOutputAccumulator) -> None:
    debug.provider(
        "call ended",
        turn=turn.turn_id,
        call=turn.call,
        provider=who.invocation.provider,
        model=who.invocation.model,
        stop=output.stop_reason,
        characters=output.text_length,
        **(output.usage.as_json() if output.usage else {}),
    )


def hear(delta: ModelOutputDelta, output: ModelOutputAccumulator, voice: Voice) -> None:
    """Remembered first, said second: what was said is always in the record."""
    delta = cleaned(delta)
    output.apply(delta)
    match delta:
        case TextPiece(text=text):
            voice.say(text)
        case ReasoningPiece(text=text):
            voice.reason(text)
        case _:
            pass
