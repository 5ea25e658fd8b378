"""Trying until it works: the loop between a lost connection and the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from nplt_client.connection_states import ConnectionState, Reconnecting
from nplt_client.errors import ConnectionLost, NpltError
from nplt_client.patience import Backoff, worth_another_try


async def keep_trying(
    attempt: Callable[[], Awaitable[None]],
    backoff: Backoff,
    *,
    lost: NpltError,
    say: Callable[[ConnectionState], None],
    hurry: asyncio.Event,
) -> None:
    """Returns when an attempt succeeded; raises what makes further ones pointless.
    Setting `hurry` cuts the present wait short."""
    now = asyncio.get_running_loop().time
    reason = lost.message
    backoff.lost(now())
    while (delay := backoff.next_delay(now())) is not None:
        say(Reconnecting(attempt=backoff.attempt, in_seconds=delay, reason=reason))
        hurry.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(delay):
                await hurry.wait()
        say(Reconnecting(attempt=backoff.attempt, in_seconds=0.0, reason=reason))
        try:
            await attempt()
        except NpltError as error:
            if not worth_another_try(error):
                raise
            reason = error.message
        else:
            backoff.found(now())
            return
    if not backoff.attempt:
        raise lost
    raise ConnectionLost(f"given up after {backoff.attempt} attempts: {reason}")
