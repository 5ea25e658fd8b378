"""Fails commands at once while a time-out of their server is fresh.

Without this, each of many requests would wait for a server that does not answer until its own
deadline. After `FRESH_SECONDS` one command at a time is sent, to find out whether the server
answers again. A refused or lost connection is noticed at once and needs none of this.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import Final

import redis

FRESH_SECONDS: Final = 0.25


class Circuit:
    """The state of one server of Redis. May be used from any thread."""

    def __init__(self) -> None:
        self._failed_at = 0.0
        self._error: redis.TimeoutError | None = None
        """The last time-out, until the server answers."""
        self._is_trying = False
        self.has_failed = False
        """Whether the last command failed because the server is away."""
        self._lock = Lock()

    @contextmanager
    def command(self) -> Iterator[None]:
        """Around a command. Raises the last time-out again, without sending the command, while it
        is fresh or another command is trying."""
        is_trial = False
        if self._error is not None:
            with self._lock:
                if (error := self._error) is not None:
                    if self._is_trying or monotonic() - self._failed_at < FRESH_SECONDS:
                        raise redis.TimeoutError(*error.args)
                    is_trial = self._is_trying = True
        try:
            with self.watched():
                yield
        finally:
            if is_trial:
                self._is_trying = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around a command that is always sent."""
        try:
            yield
        except redis.TimeoutError as error:
            with self._lock:
                self._failed_at, self._error = monotonic(), error
                self.has_failed = True
            raise
        except redis.ConnectionError:
            self.has_failed = True
            raise
        except redis.RedisError:
            self._answered()
            raise
        else:
            self._answered()

    def _answered(self) -> None:
        self._error = None
        self.has_failed = False
