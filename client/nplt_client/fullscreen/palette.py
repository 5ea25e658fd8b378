"""Ctrl+P: every command, with what it does, found by a few letters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from nplt_client.chat_vocabulary import VOCABULARY, Word


class TakesCommands(Protocol):
    def type_command(self, line: str, *, at_once: bool) -> Awaitable[None]: ...


class SlashCommands(Provider):
    async def discover(self) -> Hits:
        for name, word in VOCABULARY.items():
            yield DiscoveryHit(_shown(name, word), self._typing(name, word), help=word.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for name, word in VOCABULARY.items():
            score = matcher.match(f"/{name} {word.help}")
            if score > 0:
                yield Hit(score, _shown(name, word), self._typing(name, word), help=word.help)

    @property
    def _chat(self) -> TakesCommands:
        return cast(TakesCommands, self.app)

    def _typing(self, name: str, word: Word) -> Callable[[], Awaitable[None]]:
        """One that needs an argument is only begun."""
        at_once = not word.argument or word.argument.startswith("[")
        return partial(self._chat.type_command, f"/{name}", at_once=at_once)


def _shown(name: str, word: Word) -> str:
    # A bracket begins markup there.
    return f"/{name} {word.argument}".rstrip().replace("[", r"\[")
