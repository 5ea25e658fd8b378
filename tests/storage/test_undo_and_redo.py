"""Turns are taken back and brought back in any order, wherever they are kept.

What is shown is compared with a list of turns that knows nothing of entries: those that
were not taken back, in the order they were asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.storage.store_makers import FilesMaker, MemoryMaker, RedisMaker
from tests.support.redis_server import RedisServer

from nplt_storage import ConversationHistory, ConversationStore, NotInReach, PageQuery
from nplt_storage.entries import ModelInputEntry, ModelOutputEntry, RollbackEntry
from nplt_storage.errors import BadEntry
from nplt_storage.testing import StoreMaker
from nplt_storage.testing.rules import Writer, entries_of

MOVES = st.lists(
    st.tuples(
        st.sampled_from(["prompt", "answer", "answer", "undo", "undo", "redo", "redo", "reopen"]),
        st.integers(0, 100),
    ),
    max_size=30,
)


class Turns:
    """The model: turns by name, what was taken back, and what can be brought back."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answered: list[str] = []
        self.hidden: set[str] = set()
        self.undone: list[set[str]] = []

    @property
    def waiting(self) -> list[str]:
        return [turn for turn in self.asked if turn not in self.answered]

    @property
    def shown(self) -> list[str]:
        return [
            text
            for turn in self.asked
            if turn not in self.hidden
            for text in ([turn, f"{turn}!"] if turn in self.answered else [turn])
        ]


class Person:
    def __init__(self, store: ConversationStore, writer: Writer) -> None:
        self.store = store
        self.writer = writer
        self.turns = Turns()

    async def do(self, move: str, choice: int) -> None:
        turns = self.turns
        match move:
            case "prompt":
                turn = f"turn {len(turns.asked)}"
                await self.writer.write(ModelInputEntry(turn_id=turn, content=turn))
                turns.asked.append(turn)
                turns.undone.clear()
            case "answer" if turns.waiting:
                turn = turns.waiting[0]
                await self.writer.write(ModelOutputEntry(turn_id=turn, content=f"{turn}!"))
                turns.answered.append(turn)
            case "undo" if not turns.waiting:
                standing = [turn for turn in turns.asked if turn not in turns.hidden]
                if standing:
                    first = choice % len(standing)
                    taken = standing[first : first + 1 + choice % 2]
                    await self._roll_back(
                        lambda of, in_full: of.rollback_turns(taken, in_full=in_full)
                    )
                    turns.hidden |= set(taken)
                    turns.undone.append(set(taken))
            case "redo" if not turns.waiting:
                try:
                    await self._roll_back(lambda of, in_full: of.redo(in_full=in_full))
                except BadEntry:
                    assert not turns.undone
                else:
                    turns.hidden -= turns.undone.pop()
            case "reopen":
                await self._reopen()
            case _:
                pass

    async def _roll_back(self, draft: Callable[[ConversationHistory, bool], RollbackEntry]) -> None:
        """As the server does it."""
        try:
            entry = draft(self.writer.history, False)
        except NotInReach:
            entry = draft(ConversationHistory("s1", await entries_of(self.store)), True)
        await self.writer.write(entry)
        if not self.writer.history.is_in_reach:
            await self._reopen()

    async def _reopen(self) -> None:
        self.writer = await self.writer.reopened(self.store)

    async def check(self) -> None:
        query = PageQuery(order="turns", limit=200, bytes_max=10**9)
        page = await self.store.page("s1", query)
        assert [message["content"] for message in page.messages] == self.turns.shown
        history = self.writer.history
        assert history.message_count == len(self.turns.shown)
        contents = [entry.content for turn in history.shown_turns for entry in turn.entries]  # type: ignore[union-attr]
        ended = [turn for turn in self.turns.answered if turn not in self.turns.hidden]
        assert contents == [text for turn in ended for text in (turn, f"{turn}!")]


async def live(make: StoreMaker, moves: list[tuple[str, int]]) -> None:
    store = await make.store()
    try:
        person = Person(store, await Writer.create(make, store, "s1"))
        for move, choice in moves:
            await person.do(move, choice)
            await person.check()
        await person.writer.record.close()
    finally:
        await make.close()


@settings(max_examples=40, deadline=None)
@given(moves=MOVES)
def test_in_memory(moves: list[tuple[str, int]]) -> None:
    anyio.run(live, MemoryMaker(), moves)


@settings(max_examples=15, deadline=None)
@given(moves=MOVES)
def test_in_files(moves: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        anyio.run(live, FilesMaker(Path(directory)), moves)


@pytest.mark.usefixtures("redis_server")
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(moves=MOVES)
def test_in_redis(redis_server: RedisServer, moves: list[tuple[str, int]]) -> None:
    anyio.run(live, RedisMaker(redis_server), moves)
