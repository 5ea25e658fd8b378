"""The emulator beside code that waits: on a loop and in a thread of its own.

Scripts then run in that thread. `fail_next`, `release`, `received` and `rejections` may
be used from anywhere; `run` is for the rest.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import TypeVar

from tests.vendors.answers import Script, echo
from tests.vendors.emulator import Emulator, Limits

T = TypeVar("T")


class HostedEmulator(Emulator):
    def __init__(self, script: Script, *, key: str, limits: Limits | None) -> None:
        super().__init__(script, key=key, limits=limits)
        self._host = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._host.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[None, None, T]) -> T:
        """`hosted.run(hosted.close())`"""
        return asyncio.run_coroutine_threadsafe(coroutine, self._host).result()

    def stop(self) -> None:
        self.run(self.close())
        self._host.call_soon_threadsafe(self._host.stop)
        self._thread.join()
        self._host.close()


@contextmanager
def emulator_in_thread(
    script: Script = echo, *, key: str = "sk-emulated", limits: Limits | None = None
) -> Iterator[HostedEmulator]:
    hosted = HostedEmulator(script, key=key, limits=limits)
    try:
        hosted.run(hosted.open())
        yield hosted
    finally:
        hosted.stop()
