"""B5, B6: what a durable append costs, however long the conversation is.

A turn is two commits, the prompt and the answer, each on disk before it is acknowledged. They
are measured at the store, with the thread that each is handed to, against a bare `pwrite` and
`fdatasync` of the same bytes. In B6, 64 conversations commit side by side; it compares them with
64 bare threads in the same rounds, because no store can be quicker than the machine allows. What
is written is made before the clock starts.

Both also compare with the same system calls made from C (`peers/commits.c`): a thread is woken,
examines the file, writes and syncs, and wakes the event loop. No store that commits in threads
can be quicker than that on this file system.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from threading import Thread

import anyio

from benchmarks.conversations import (
    CONTENT_BYTES,
    CountingDisk,
    message,
    text_of,
    write_conversation,
)
from benchmarks.measuring import Rounds, rotated
from benchmarks.processes import ROOT
from benchmarks.progress import tick
from benchmarks.scratch import Plan
from benchmarks.verdicts import Question, Verdict
from nplt_storage.entries import Entry
from nplt_storage.files.directory import FileSettings
from nplt_storage.files.store import JsonFileStore
from nplt_storage.store import Record

SHORT, LONG = 10, 100_000
TURNS_PER_ROUND = 40
WRITERS = 64
COMMITS_EACH = 12
COMMITS_ALONE = 192
NO_DISK_SECONDS = 20e-6
COMMIT_BYTES = 900
NO_COMPILER = "there is no C compiler named cc: install gcc or clang"

Step = Callable[[], Awaitable[float]]
"""Makes the commits of one turn; returns the seconds that they took."""


def appending(plan: Plan) -> list[Verdict]:
    question = Question(number="B5", what="append a turn, durable, at 100,000 messages")
    if _seconds_to_sync(plan.new_path("disk")) < NO_DISK_SECONDS:
        return [question.skipped("nothing is synced here; name a real disk with --dir")]
    data_dir = plan.new_path("append")
    long = plan.sized(LONG, smoke=1_000)
    for session_id, messages in (("short", SHORT), ("long", long)):
        write_conversation(data_dir, session_id, messages)
    turns = plan.sized(TURNS_PER_ROUND, smoke=2)
    with _commits_from_c(plan, files=1) as from_c:
        rounds, turn_bytes = anyio.run(
            _append_in_turns, data_dir, long, turns, plan.rounds(), from_c
        )
    content_bytes = 2 * CONTENT_BYTES
    bytes_max = 1.5 * content_bytes + 4096
    of_c = Question(number="B5", what="the same, to the system calls from C")
    return [
        question.at_most(
            1.2,
            rounds.ratio("long", "short"),
            unit="× at 10",
            details=rounds.summary("long", "short", unit="µs", per_unit=1e6),
        ),
        Question(number="B5", what="the same, to the bare system calls").at_most(
            1.5,
            rounds.ratio("long", "bare"),
            unit="× pwrite + fdatasync",
            details=rounds.summary("long", "bare", unit="µs", per_unit=1e6),
        ),
        of_c.skipped(NO_COMPILER)
        if from_c is None
        else of_c.at_most(
            1.5,
            rounds.ratio("long", "C"),
            unit="× a thread in C",
            details=rounds.summary("long", "C", unit="µs", per_unit=1e6),
        ),
        Question(number="B5", what="bytes written for a turn of 2 × 510 bytes").at_most(
            bytes_max, turn_bytes, unit="B"
        ),
    ]


async def _append_in_turns(
    data_dir: Path, long_messages: int, turns: int, rounds: int, from_c: _CommitsFromC | None
) -> tuple[Rounds, float]:
    files = CountingDisk()
    store = await JsonFileStore.open_directory(
        data_dir, clock=_now, settings=FileSettings(disk=files)
    )
    long = await _Writer.open(store, "long", long_messages)
    short = await _Writer.open(store, "short", SHORT)
    before = files.written_bytes
    long.think_of(2)
    await long.turn()
    turn_bytes = files.written_bytes - before
    bare = _BareFile(data_dir / "bare", commit_bytes=turn_bytes // 2)
    steps: dict[str, Step] = {
        "long": _timed(long.turn),
        "short": _timed(short.turn),
        "bare": _timed(bare.turn),
    }
    if from_c is not None:
        steps["C"] = from_c.turn
    figures: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        times: dict[str, list[float]] = {name: [] for name in steps}
        for writer in (long, short):
            writer.think_of(2 * turns)
        for number in range(turns):
            for name in rotated(list(steps), number):
                times[name].append(await steps[name]())
        for name in steps:
            figures[name].append(median(times[name]))
        tick()
    await store.close()
    return Rounds(figures=figures), turn_bytes


def _timed(turn: Callable[[], Awaitable[None]]) -> Step:
    async def step() -> float:
        begun = time.perf_counter()
        await turn()
        return time.perf_counter() - begun

    return step


class _CommitsFromC:
    """The program `peers/commits.c`, while it runs."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def turn(self) -> float:
        return self.seconds(writers=1, commits_each=2)

    def seconds(self, *, writers: int, commits_each: int) -> float:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{writers} {commits_each}\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline()) / 1e9


@contextmanager
def _commits_from_c(plan: Plan, *, files: int) -> Iterator[_CommitsFromC | None]:
    """Yields `None` if there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        yield None
        return
    directory = plan.new_path("from-c")
    directory.mkdir()
    program, source = directory / "commits", ROOT / "benchmarks" / "peers" / "commits.c"
    subprocess.run([compiler, "-O2", "-pthread", "-o", program, source], check=True)
    with subprocess.Popen(
        [program, directory, str(files), str(COMMIT_BYTES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        yield _CommitsFromC(process)  # it ends when its input does


class _Writer:
    def __init__(self, record: Record, seq: int) -> None:
        self._record = record
        self._seq = seq
        self._content = text_of(CONTENT_BYTES)
        self._entries: deque[Entry] = deque()

    @classmethod
    async def open(cls, store: JsonFileStore, session_id: str, head_seq: int) -> _Writer:
        opened = await store.open(session_id)
        return cls(opened.record, head_seq)

    async def turn(self) -> None:
        await self.commit()
        await self.commit()

    def think_of(self, entries: int) -> None:
        for _ in range(entries):
            self._seq += 1
            self._entries.append(message(self._seq, content=self._content))

    async def commit(self) -> None:
        await self._record.append(self._entries.popleft())


class _BareFile:
    def __init__(self, path: Path, *, commit_bytes: int) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._data = b"x" * commit_bytes
        self._offset = 0

    async def turn(self) -> None:
        self.commit()
        self.commit()

    def commit(self) -> None:
        os.pwrite(self._descriptor, self._data, self._offset)
        os.fdatasync(self._descriptor)
        self._offset += len(self._data)


def _seconds_to_sync(path: Path) -> float:
    file = _BareFile(path, commit_bytes=1024)
    begun = time.perf_counter()
    for _ in range(10):
        file.commit()
    return (time.perf_counter() - begun) / 10


def committing_together(plan: Plan) -> list[Verdict]:
    question = Question(number="B6", what="64 conversations committing at once")
    if _seconds_to_sync(plan.new_path("disk")) < NO_DISK_SECONDS:
        return [question.skipped("nothing is synced here; name a real disk with --dir")]
    writers = plan.sized(WRITERS, smoke=4)
    with _commits_from_c(plan, files=writers) as from_c:
        rounds = anyio.run(
            _commit_together, plan.new_path("together"), writers, plan.rounds(), from_c
        )
    details = rounds.summary("all", "one", "bare all", "bare one", unit="commits/s")
    ratio = rounds.ratio("bare all", "all")
    of_c = Question(number="B6", what="the same, to the system calls from C")
    return [
        question.at_most(1.3, ratio, unit="× slower than bare threads", details=details),
        of_c.skipped(NO_COMPILER)
        if from_c is None
        else of_c.at_most(
            1.3,
            rounds.ratio("C all", "all"),
            unit="× slower than threads in C",
            details=rounds.summary("all", "C all", unit="commits/s"),
        ),
    ]


async def _commit_together(
    data_dir: Path, writers: int, rounds: int, from_c: _CommitsFromC | None
) -> Rounds:
    data_dir.mkdir()
    store = await JsonFileStore.open_directory(data_dir, clock=_now)
    records = [await store.create(f"c{number}", user="local") for number in range(writers + 1)]
    alone, *together = [_Writer(record, 0) for record in records]
    bare = [
        _BareFile(data_dir / f"bare-{number}", commit_bytes=COMMIT_BYTES)
        for number in range(writers)
    ]
    measures: dict[str, Callable[[], Awaitable[float]]] = {
        "one": lambda: _commits_per_second([alone], COMMITS_ALONE),
        "all": lambda: _commits_per_second(together, COMMITS_EACH),
        "bare one": lambda: _bare_commits_per_second(bare[:1], COMMITS_ALONE),
        "bare all": lambda: _bare_commits_per_second(bare, COMMITS_EACH),
    }
    if from_c is not None:
        measures["C all"] = lambda: _commits_per_second_from_c(from_c, writers)
    figures: dict[str, list[float]] = {name: [] for name in measures}
    for number in range(rounds):
        for name in rotated(list(measures), number):
            figures[name].append(await measures[name]())
        tick()
    await store.close()
    return Rounds(figures=figures)


async def _commits_per_second(writers: list[_Writer], commits_each: int) -> float:
    async def commit_all(writer: _Writer) -> None:
        for _ in range(commits_each):
            await writer.commit()

    for writer in writers:
        writer.think_of(commits_each)
    begun = time.perf_counter()
    async with anyio.create_task_group() as tasks:
        for writer in writers:
            tasks.start_soon(commit_all, writer)
    return len(writers) * commits_each / (time.perf_counter() - begun)


async def _bare_commits_per_second(files: list[_BareFile], commits_each: int) -> float:
    def commit_all(file: _BareFile) -> None:
        for _ in range(commits_each):
            file.commit()

    threads = [Thread(target=commit_all, args=(file,)) for file in files]
    begun = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(files) * commits_each / (time.perf_counter() - begun)


async def _commits_per_second_from_c(from_c: _CommitsFromC, writers: int) -> float:
    return writers * COMMITS_EACH / from_c.seconds(writers=writers, commits_each=COMMITS_EACH)


def _now() -> datetime:
    return datetime.now(UTC)
