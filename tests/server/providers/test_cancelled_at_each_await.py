"""A turn that is cancelled at its k-th await, for every k: no async generator is closed while it
runs, and none is left open.

Python reports such a fault nowhere near its cause: as an unraisable exception, or to the loop's
exception handler. Both are collected here.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from types import coroutine
from typing import Any, Literal

import anyio
import pytest
from tests.server.conversations import Stage, conversation_of
from tests.server.providers.poison_stage import provider_for
from tests.server.services import make_services
from tests.vendors import emulator
from tests.vendors.answers import ApiName
from tests.vendors.http_server import Reply

from nplt_server.providers import ProviderClient
from nplt_server.providers.offline import OfflineProvider

Source = ApiName | Literal["offline"]
Ending = Literal["cancel the turn", "cancel the task", "close the provider"]
SOURCES: tuple[Source, ...] = ("offline", "chat", "responses", "messages")
ENDINGS: tuple[Ending, ...] = ("cancel the turn", "cancel the task", "close the provider")
PROMPT = " ".join(f"word{number}" for number in range(30))
POINTS_QUICK = 6


@dataclass
class Reported:
    """What Python complains of about generators, and no caller sees. That a provider that is
    closed while it connects leaves a socket to the garbage collector is another matter."""

    complaints: list[str] = field(default_factory=list)

    def by_loop(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._add(f"{context.get('message')}: {context.get('exception')!r}")

    def unraisable(self, report: sys.UnraisableHookArgs) -> None:
        self._add(f"{report.err_msg}: {report.exc_value!r} in {report.object!r}")

    def _add(self, complaint: str) -> None:
        if "generator" in complaint or "already executing" in complaint:
            self.complaints.append(complaint)


@contextmanager
def reported() -> Iterator[Reported]:
    found, hook, loop = Reported(), sys.unraisablehook, asyncio.get_running_loop()
    handler = loop.get_exception_handler()
    sys.unraisablehook = found.unraisable
    loop.set_exception_handler(found.by_loop)
    try:
        yield found
    finally:
        gc.collect()
        sys.unraisablehook = hook
        loop.set_exception_handler(handler)


@dataclass
class Steps:
    """Counts the awaits of a task, and acts at one of them."""

    act_at: int
    act: Callable[[], None] = lambda: None
    count: int = 0

    @coroutine
    def run(self, work: Awaitable[object]) -> Generator[Any, Any, object]:
        steps = work.__await__()
        resume = partial(steps.send, None)
        while True:
            try:
                waits_for = resume()
            except StopIteration as end:
                return end.value
            self.count += 1
            if self.count == self.act_at:
                self.act()
            try:
                resume = partial(steps.send, (yield waits_for))
            except BaseException as error:
                resume = partial(steps.throw, error)


@pytest.fixture(autouse=True)
def pieces_arrive_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a whole answer is read at one await."""
    send = Reply.chunk

    async def send_and_wait(reply: Reply, data: bytes) -> None:
        await send(reply, data)
        await asyncio.sleep(0.0005)

    monkeypatch.setattr(Reply, "chunk", send_and_wait)


@asynccontextmanager
async def provider_of(source: Source) -> AsyncIterator[ProviderClient]:
    if source == "offline":
        yield OfflineProvider(words_per_second=500)
        return
    async with emulator() as vendors, provider_for(source, vendors) as provider:
        yield provider


async def awaits_of_turn(source: Source, ending: Ending, act_at: int) -> int:
    """Ends a turn at that await; 0: lets it run. Gives how many awaits it had."""
    steps = Steps(act_at)
    async with provider_of(source) as provider, anyio.create_task_group() as tasks:
        services = make_services(tasks, provider)
        profile = services.histories.default
        conversation = conversation_of("s1", user="local", services=services, profile=profile)
        stage = Stage(conversation)
        turns: list[asyncio.Task[object]] = []

        def act() -> None:
            if ending == "cancel the turn":
                conversation.queue.cancel_all("enough")
            elif ending == "cancel the task":
                turns[0].cancel()
            else:
                tasks.start_soon(provider.aclose)

        steps.act = act

        def spawn(work: Callable[[], Awaitable[object]]) -> None:
            async def run() -> None:
                await steps.run(work())

            turns.append(asyncio.create_task(run()))

        services.spawn = spawn
        await stage.prompt(PROMPT)
        await asyncio.wait(turns, timeout=20)
        assert all(turn.done() for turn in turns)
        for turn in turns:
            error = None if turn.cancelled() else turn.exception()
            assert not isinstance(error, RuntimeError), error
        tasks.cancel_scope.cancel()
    return steps.count


async def complaints_at(source: Source, ending: Ending, points: Callable[[int], range]) -> int:
    """Tries the points; gives how many there were."""
    with reported() as found:
        whole = await awaits_of_turn(source, ending, 0)
        tried = points(whole)
        for act_at in tried:
            await awaits_of_turn(source, ending, act_at)
            await asyncio.sleep(0)
    assert found.complaints == []
    return len(tried)


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("source", SOURCES)
async def test_no_async_generator_is_closed_while_it_runs(source: Source, ending: Ending) -> None:
    def some(whole: int) -> range:
        return range(1, whole + 1, max(1, whole // POINTS_QUICK))

    assert await complaints_at(source, ending, some)


@pytest.mark.slow
@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("source", SOURCES)
async def test_no_async_generator_is_closed_while_it_runs_at_any_await(
    source: Source, ending: Ending
) -> None:
    tried = await complaints_at(source, ending, lambda whole: range(1, whole + 1))
    print(f"{source}, {ending}: {tried} awaits")


async def test_closing_an_async_generator_that_runs_is_reported() -> None:
    async def waits() -> AsyncIterator[int]:
        await asyncio.sleep(0.01)
        yield 1

    with reported() as found:
        generator: Any = waits()
        reading = asyncio.create_task(anext(generator))
        await asyncio.sleep(0)
        closing = asyncio.create_task(generator.aclose())
        await asyncio.wait([reading, closing])
        del closing
        gc.collect()
    assert ["already running" in complaint for complaint in found.complaints] == [True]
