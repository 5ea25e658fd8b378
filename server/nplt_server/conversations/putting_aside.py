"""Doing without what a provider refuses, and finding out whether that was the cause.

What is suspected is put in quarantine and the model asked again. If it answers, or minds
something else now, it was the cause and stays there. If it still minds the same, it was
not, or not it alone: others that stand there are put aside as well; and when nothing is
left to be done without, all of them are let out again and the turn fails. Where the
prompt itself stands there, that must be it, and no model is shown it again.
"""

from __future__ import annotations

from typing import Final

from nplt_server.conversations.suspects import Scrutiny, Suspects
from nplt_server.conversations.turn import Turn, TurnDesk
from nplt_server.errors import ProviderError, ProviderRefused, RequestTooLarge

_TRIALS_MAX: Final = 3
"""In one turn; what is left is for the next one."""


class PuttingAside:
    __slots__ = ("_desk", "_has_forgotten", "_named", "_on_trial", "_trials", "_turn")

    def __init__(self, turn: Turn, desk: TurnDesk) -> None:
        self._turn = turn
        self._desk = desk
        self._on_trial: list[int] = []
        self._named: frozenset[int] = frozenset()
        """What the refusal was about that they are on trial for; empty: nobody said."""
        self._trials = 0
        self._has_forgotten = False

    async def mend(self, error: ProviderError) -> str | None:
        """Why the model is asked again, if it is to be."""
        if not isinstance(error, ProviderRefused) or isinstance(error, RequestTooLarge):
            return None
        if error.is_of_thoughts and not self._has_forgotten:
            self._has_forgotten = True
            await self._desk.rules.forget_thoughts(self._turn.model)
            return f"{error}; {self._turn.model} is asked again without what it had thought"
        found = self._suspects(error)
        if self._is_about_something_else(found):
            if not self._named:
                await self._let_out()
                found = self._suspects(error)
            self._on_trial = []
            self._named = frozenset()
        put_aside = await self._put_aside(found, error)
        if put_aside:
            which = ", ".join(map(str, put_aside))
            return f"{error}; {self._turn.model} is asked again without what it refuses ({which})"
        if self._turn.prompt.seq in found.named:
            await self._let_out()
            await self._desk.rules.quarantine.put(self._turn.prompt.seq, self._reason(error))
            raise ProviderRefused(f"{error}: it is this prompt, and models are not shown it again")
        if found.named & self._named:
            await self._let_out()
        return None

    async def give_up(self, error: ProviderError) -> None:
        """The turn fails: what was only guessed at is not held against anybody."""
        await self._acquit()
        self._turn.of_request = (
            isinstance(error, ProviderRefused)
            and error.is_of_request
            and error.message_index is None
            and not error.entry_seqs
        )

    async def break_off(self) -> None:
        """The turn was cancelled before the model said whether it was them."""
        await self._acquit()

    def taken(self) -> None:
        """The model has answered: what it was asked without was the cause."""
        self._on_trial = []
        self._named = frozenset()

    def _suspects(self, error: ProviderRefused) -> Suspects:
        turn = self._turn
        if turn.shown is None:
            return Suspects()
        return Scrutiny(
            history=self._desk.state.history,
            shown=turn.shown,
            turn_id=turn.turn_id,
            asked=self._desk.respondent(turn.model).invocation,
        ).suspects(error)

    def _is_about_something_else(self, found: Suspects) -> bool:
        if not self._named or not found.named:
            return bool(self._named) != bool(found.named)
        return self._named.isdisjoint(found.named)

    async def _put_aside(self, found: Suspects, error: ProviderRefused) -> list[int]:
        if self._trials == _TRIALS_MAX:
            return []
        reason = self._reason(error)
        put_aside = [
            seq for seq in found.seqs if await self._desk.rules.quarantine.put(seq, reason)
        ]
        if put_aside:
            self._trials += 1
            self._on_trial += put_aside
            self._named |= found.named
        return put_aside

    async def _acquit(self) -> None:
        """Those that were only guessed at."""
        if not self._named:
            await self._let_out()

    async def _let_out(self) -> None:
        reason = f"it is not shown that {self._turn.model} refuses it"
        for seq in self._on_trial:
            await self._desk.rules.quarantine.lift(seq, reason)
        self._on_trial = []

    def _reason(self, error: ProviderRefused) -> str:
        return f"{self._turn.model}: {error}"
