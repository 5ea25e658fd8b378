"""Threads for commits: side by side, few, and nobody waits for another's disk."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial

import anyio
import pytest

from nplt_storage import StorageUnavailable
from nplt_storage.files import commit_threads
from nplt_storage.files.commit_threads import THREADS_MAX, CommitThreads


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Closed until the test, or its end, opens it."""
    gate = threading.Event()
    yield gate
    gate.set()


@pytest.fixture
def threads() -> Iterator[CommitThreads]:
    threads = CommitThreads()
    yield threads
    threads.close()


def _hang_at(gate: threading.Event) -> Callable[[], None]:
    def hang() -> None:
        assert gate.wait(timeout=30)

    return hang


def _nothing() -> None:
    pass


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await anyio.lowlevel.checkpoint()


async def test_work_is_done_elsewhere_and_waited_for(threads: CommitThreads) -> None:
    where: list[threading.Thread] = []
    await threads.submit(lambda: where.append(threading.current_thread()))
    assert where != []
    assert where[0] is not threading.current_thread()


async def test_what_went_wrong_is_raised_where_it_is_waited_for(threads: CommitThreads) -> None:
    def fail() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await threads.submit(fail)
    await threads.submit(_nothing)


async def test_commits_wait_for_the_disk_together(threads: CommitThreads) -> None:
    """Were they to wait one after the other, nobody would get through the barrier."""
    all_of_them = threading.Barrier(THREADS_MAX)
    met: list[int] = []

    def meet() -> None:
        met.append(all_of_them.wait(timeout=30))

    await asyncio.gather(*[threads.submit(meet) for _ in range(THREADS_MAX)])
    assert sorted(met) == list(range(THREADS_MAX))


async def test_each_commit_gets_its_own_outcome(threads: CommitThreads) -> None:
    done: list[int] = []

    def work(number: int) -> Callable[[], None]:
        def carry_out() -> None:
            if number % 3 == 0:
                raise ValueError(number)
            done.append(number)

        return carry_out

    results = await asyncio.gather(
        *[threads.submit(work(number)) for number in range(500)], return_exceptions=True
    )
    failed = [result.args[0] for result in results if isinstance(result, ValueError)]
    assert failed == [number for number in range(500) if number % 3 == 0]
    assert [result for result in results if result is None] == [None] * len(done)
    assert sorted(done) == [number for number in range(500) if number % 3]


async def test_there_are_no_threads_before_there_is_work_and_few_for_little(
    threads: CommitThreads,
) -> None:
    assert threads.count == 0
    for _ in range(50):
        await threads.submit(_nothing)
    assert threads.count == 1


async def test_threads_leave_when_there_is_nothing_to_do_and_come_back() -> None:
    threads = CommitThreads(idle_seconds_max=0.001)
    done: list[int] = []
    for round_ in range(3):
        await asyncio.gather(*[threads.submit(partial(done.append, round_)) for _ in range(8)])
        await _until(lambda: threads.count == 0)
    assert sorted(done) == [0] * 8 + [1] * 8 + [2] * 8


async def test_work_that_meets_threads_on_their_way_out_is_done_all_the_same() -> None:
    threads = CommitThreads(idle_seconds_max=0.000_01)
    done: list[int] = []
    for number in range(300):
        await threads.submit(partial(done.append, number))
    assert done == list(range(300))


async def test_there_are_never_more_threads_than_allowed(gate: threading.Event) -> None:
    threads = CommitThreads(2)
    waiting = [threads.submit(_hang_at(gate)) for _ in range(6)]
    await _until(lambda: threads.count == 2)
    gate.set()
    await asyncio.gather(*waiting)
    assert threads.count == 2
    threads.close()


async def test_a_hanging_commit_delays_no_other_conversation(
    threads: CommitThreads, gate: threading.Event
) -> None:
    hanging = [threads.submit(_hang_at(gate)) for _ in range(8)]
    for _ in range(100):
        await threads.submit(_nothing)
    assert not any(one.done() for one in hanging)
    gate.set()
    await asyncio.gather(*hanging)


async def test_the_loop_is_woken_once_for_all_that_finished_meanwhile(
    threads: CommitThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    wake, wakes = loop.call_soon_threadsafe, 0

    def count_and_wake(*args: object) -> object:
        nonlocal wakes
        wakes += 1
        return wake(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "call_soon_threadsafe", count_and_wake)
    waiting = [threads.submit(_nothing) for _ in range(20)]
    await asyncio.sleep(0)  # all but the first are handed over at the end of the tick
    while threads.busy:  # the loop does not get to look before
        time.sleep(0)
    await asyncio.gather(*waiting)
    assert wakes <= 2


async def test_a_commit_alone_is_begun_at_once_and_others_at_the_end_of_the_tick(
    threads: CommitThreads, gate: threading.Event
) -> None:
    waiting = [threads.submit(_hang_at(gate)) for _ in range(3)]
    assert threads.busy == 1
    await asyncio.sleep(0)
    assert threads.busy == 3
    gate.set()
    await asyncio.gather(*waiting)


async def test_a_busy_thread_takes_the_work_that_no_further_thread_can_be_started_for(
    threads: CommitThreads, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done: list[int] = []
    hanging = threads.submit(_hang_at(gate))
    monkeypatch.setattr(threading.Thread, "start", no_thread)
    waiting = [threads.submit(partial(done.append, number)) for number in range(3)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(hanging, *waiting)
    assert done == [0, 1, 2]
    assert threads.count == 1


async def test_to_stop_waiting_does_not_stop_the_work(
    threads: CommitThreads, gate: threading.Event
) -> None:
    done = threading.Event()

    def work() -> None:
        assert gate.wait(timeout=30)
        done.set()

    waiting = threads.submit(work)
    waiting.cancel()
    gate.set()
    await _until(done.is_set)


async def test_after_closing_threads_leave_as_soon_as_they_are_through(
    gate: threading.Event,
) -> None:
    threads = CommitThreads(idle_seconds_max=3600)
    hanging = threads.submit(_hang_at(gate))
    await threads.submit(_nothing)
    assert threads.count == 2
    threads.close()
    await _until(lambda: threads.count == 1)
    gate.set()
    await hanging
    await _until(lambda: threads.count == 0)


async def test_several_loops_share_the_threads(threads: CommitThreads) -> None:
    done: list[int] = []

    async def commit_often() -> None:
        for number in range(50):
            await asyncio.gather(*[threads.submit(partial(done.append, number)) for _ in range(4)])

    await asyncio.gather(*[anyio.to_thread.run_sync(asyncio.run, commit_often()) for _ in range(4)])
    assert len(done) == 4 * 50 * 4


async def test_a_loop_that_is_gone_is_not_missed(
    threads: CommitThreads, gate: threading.Event
) -> None:
    async def leave() -> None:
        threads.submit(_hang_at(gate))

    await anyio.to_thread.run_sync(asyncio.run, leave())
    gate.set()
    await _until(lambda: threads.busy == 0)
    done: list[int] = []
    await threads.submit(partial(done.append, 1))
    assert done == [1]


async def test_unawaited_work_is_done_and_its_failure_logged(
    threads: CommitThreads, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    with caplog.at_level(logging.ERROR):
        threads.start(fail)
        await _until(lambda: threads.busy == 0)
    assert "the disk is gone" in caplog.text
    await threads.submit(_nothing)


def test_a_process_can_end_while_a_commit_hangs() -> None:
    program = """
import asyncio, threading
from nplt_storage.files.append import CommitThreads
async def main():
    CommitThreads().submit(threading.Event().wait)
asyncio.run(main())
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=30).returncode == 0


# When the system has no thread to give


class NoThread(threading.Thread):
    def start(self) -> None:
        raise RuntimeError("can't start new thread")


async def test_work_for_which_there_is_no_thread_is_refused_and_later_work_is_done(
    threads: CommitThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(commit_threads, "Thread", NoThread)
        for _ in range(2):
            with pytest.raises(StorageUnavailable, match="no more threads"):
                threads.submit(_nothing)
        with pytest.raises(StorageUnavailable, match="no more threads"):
            threads.start(_nothing)
    assert threads.count == 0
    await threads.submit(_nothing)
    assert threads.count == 1


async def test_what_must_be_done_is_done_without_a_thread_too(
    threads: CommitThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError("no")

    monkeypatch.setattr(commit_threads, "Thread", NoThread)
    where: list[threading.Thread] = []
    await threads.submit_or_do(lambda: where.append(threading.current_thread()))
    assert where == [threading.current_thread()]
    with pytest.raises(OSError, match="no"):
        await threads.submit_or_do(fail)
