"""A wait that lasts too long is broken off, and nothing else is."""

from __future__ import annotations

import asyncio

import pytest

from nplt_server.providers.silence import SilenceWatch


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_wait_ends_with_its_deadline() -> None:
    watch = SilenceWatch()
    with pytest.raises(TimeoutError), watch.until(now() + 0.001):
        await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_later_wait_has_its_own_deadline_be_it_earlier_or_later() -> None:
    watch = SilenceWatch()
    with watch.until(now() + 60.0):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), watch.until(now() + 0.002):
        await asyncio.Event().wait()
    with watch.until(now() + 0.001):
        pass
    with pytest.raises(TimeoutError), watch.until(now() + 0.003):
        await asyncio.Event().wait()


async def test_the_time_between_two_waits_is_nobodys() -> None:
    watch = SilenceWatch()
    deadline = now() + 0.001
    with watch.until(deadline):
        pass
    while now() <= deadline:
        await asyncio.sleep(0.001)
    with watch.until(now() + 60.0):
        await asyncio.sleep(0)
    watch.close()


async def test_who_is_cancelled_meanwhile_is_cancelled() -> None:
    has_begun = asyncio.Event()

    async def wait() -> None:
        watch = SilenceWatch()
        with watch.until(now() + 60.0):
            has_begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(wait())
    await has_begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_goes_wrong_in_a_wait_is_told_as_it_is() -> None:
    watch = SilenceWatch()
    with pytest.raises(KeyError), watch.until(now() + 60.0):
        raise KeyError
    watch.close()
