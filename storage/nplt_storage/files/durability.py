"""How sure an acknowledgement is: when what was written is synced to the disk.

    always      before it is acknowledged
    interval    some time later, together with what came meanwhile
    never       when the system pleases; once more when the conversation is closed

In every mode it is written before it is acknowledged, so it survives the end
of the process. The modes differ in what a power cut may take.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock, Timer
from typing import Literal, TypeAlias, assert_never

from nplt_storage.errors import StorageUnavailable
from nplt_storage.files.commit_threads import CommitThreads

DurabilityMode: TypeAlias = Literal["always", "interval", "never"]

SyncLater: TypeAlias = Callable[[Callable[[], None]], None]
"""Is given a sync that is due, and sees to it that it is done in time;
`StorageUnavailable` if it can't: then it has not taken it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Durability:
    mode: DurabilityMode = "always"
    interval_seconds: float = 1.0

    def __post_init__(self) -> None:
        if self.interval_seconds <= 0:
            raise ValueError("the interval between syncs must be longer than nothing")

    @property
    def promise(self) -> str:
        match self.mode:
            case "always":
                return "on disk (fdatasync) before it is acknowledged"
            case "interval":
                return (
                    "written before it is acknowledged, on disk (fdatasync) at most"
                    f" {self.interval_seconds:g} s later; a power cut may take what came meanwhile"
                )
            case "never":
                return (
                    "written before it is acknowledged, not synced; a power cut may take"
                    " what came since the conversation was opened"
                )
            case _:
                assert_never(self.mode)

    def sync_later(self, threads: CommitThreads) -> SyncLater | None:
        """`None`: not later, at once."""
        match self.mode:
            case "always":
                return None
            case "interval":
                return SyncSchedule(self.interval_seconds, threads).add
            case "never":
                return lambda sync: None
            case _:
                assert_never(self.mode)


class SyncSchedule:
    """What is due begins together, so many seconds after the first of it was added."""

    def __init__(self, seconds: float, threads: CommitThreads) -> None:
        self._seconds = seconds
        self._threads = threads
        self._lock = Lock()
        self._due: list[Callable[[], None]] = []

    def add(self, sync: Callable[[], None]) -> None:
        with self._lock:
            if not self._due:
                self._start_timer()
            self._due.append(sync)

    def _start_timer(self) -> None:
        timer = Timer(self._seconds, self._begin)
        timer.daemon = True  # what is due when the process ends is synced by closing
        try:
            timer.start()
        except RuntimeError as error:
            raise StorageUnavailable(f"no thread to wait in: {error}") from error

    def _begin(self) -> None:
        with self._lock:
            due, self._due = self._due, []
        for sync in due:
            try:
                self._threads.start(sync)
            except StorageUnavailable:
                sync()  # later than the others, but it is done
